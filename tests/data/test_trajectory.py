"""Trajectory slots against a slow reference: plain lists, one stream at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from ludus.data.specs import ActionSpec, ArraySpec, Choice, Entities, ObservationSpec, SeatKind, Vector
from ludus.data.trajectory import SlotPool, TrajectoryLayout, TrajectoryWriter

KIND = SeatKind(
    name="player",
    observation=ObservationSpec(parts={"seen": Vector(size=1), "things": Entities(maximum=3, features=2)}),
    action=ActionSpec(heads={"move": Choice(num=3)}),
)
STATE = {"h": ArraySpec(shape=(2,), dtype=np.dtype("float32"))}


def new_pool(unroll_length: int = 3, num_slots: int = 8) -> SlotPool:
    return SlotPool(TrajectoryLayout(kind=KIND, unroll_length=unroll_length, state=STATE), num_slots)


def columns_of(numbers: Any, version: int = 0) -> dict[str, Any]:
    """One row per number; the number is written all over it."""
    numbers = np.asarray(numbers)
    return {
        "observation.seen": numbers[:, None].astype(np.float32),
        "observation.things": np.repeat(numbers, 6).reshape(-1, 3, 2).astype(np.float32),
        "observation.things_length": np.full(len(numbers), 2, np.int32),
        "legal.move": np.ones((len(numbers), 3), np.bool_),
        "action.move": (numbers % 3).astype(np.int32),
        "log_prob": -numbers[:, None].astype(np.float32),
        "value": (numbers / 2).astype(np.float32),
        "version": np.full(len(numbers), version, np.int64),
    }


def state_of(numbers: Any) -> dict[str, Any]:
    return {"h": np.repeat(np.asarray(numbers), 2).reshape(-1, 2).astype(np.float32)}


@dataclass
class Row:
    number: int
    """Names the decision; a bootstrap row after a truncation has one too."""
    first: bool
    made_at: int
    state: int
    decision: bool = True
    reward: float = 0.0
    elapsed: int = 1
    over: bool = False


@dataclass
class HandedOver:
    owner: int
    rows: list[Row]
    bootstrap: Row | None


@dataclass
class SlowStream:
    """What one stream should do, in plain Python."""

    unroll_length: int
    timed: bool
    owner: int
    rows: list[Row] = field(default_factory=list)
    open: bool = False
    out: list[HandedOver] = field(default_factory=list)
    dropped: float = 0.0

    def record(self, number: int, state: int, clock: int, *, replacing: bool) -> None:
        if replacing and self.open:
            self.rows[-1] = Row(number, self.rows[-1].first, clock, state)
            return
        if self.open and self.timed:
            self.rows[-1].elapsed = clock - self.rows[-1].made_at
        self.rows.append(Row(number, not self.open, clock, state))
        self.open = True
        if len(self.rows) > self.unroll_length:
            self._hand_over(self.rows[:-1], self.rows[-1])
            self.rows = self.rows[-1:]

    def credit(self, reward: float) -> None:
        if self.open:
            self.rows[-1].reward += reward
        else:
            self.dropped += abs(reward)

    def end(self) -> None:
        if self.open:
            self.rows[-1].over = True
            self._close()

    def truncate(self, number: int, clock: int) -> None:
        if self.timed:
            self.rows[-1].elapsed = clock - self.rows[-1].made_at
        self.rows.append(Row(number, False, clock, 0, decision=False))
        self._close()

    def flush(self) -> None:
        if self.open and len(self.rows) > 1:
            self._hand_over(self.rows[:-1], self.rows[-1])
            self.rows = self.rows[-1:]
        elif not self.open and self.rows:
            self._hand_over(self.rows, None)
            self.rows = []

    def _close(self) -> None:
        self.open = False
        if len(self.rows) >= self.unroll_length:
            self._hand_over(self.rows[: self.unroll_length], next(iter(self.rows[self.unroll_length :]), None))
            self.rows = []

    def _hand_over(self, rows: list[Row], bootstrap: Row | None) -> None:
        self.out.append(HandedOver(self.owner, [replace(row) for row in rows], bootstrap and replace(bootstrap)))


class Duel:
    """The writer and the reference, given the same random events."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.unroll_length = int(self.rng.integers(1, 6))
        self.timed = bool(self.rng.integers(2))
        self.num_streams = int(self.rng.integers(1, 7))
        self.pool = new_pool(self.unroll_length, 60)
        self.pool.rows["value"][...] = 99.0  # what an earlier life of the slots has left
        self.pool.rows["decision"][...] = True
        self.writer = TrajectoryWriter(self.pool, self.num_streams, self.hand_over)
        self.writer.owner[:] = self.rng.integers(0, 2, self.num_streams)
        self.slow = [SlowStream(self.unroll_length, self.timed, int(owner)) for owner in self.writer.owner]
        self.learner: list[int] = []
        """Slots that were handed over and not given back."""
        self.seen: list[tuple[int, int, dict[str, Any]]] = []
        self.clock = 0
        self.numbers = 0
        self.decided: set[int] = set()
        """Decisions that count: not replaced."""
        self.trained: list[int] = []

    def hand_over(self, owner: int, slots: Any) -> None:
        for slot in slots.tolist():
            arrays = {**self.pool.rows, **self.pool.slots}
            self.seen.append((owner, slot, {name: array[slot].copy() for name, array in arrays.items()}))
            self.learner.append(slot)

    def new_numbers(self, count: int) -> list[int]:
        self.numbers += count
        return list(range(self.numbers - count + 1, self.numbers + 1))

    def step(self) -> None:
        some = np.flatnonzero(self.rng.random(self.num_streams) < 0.6)
        self.clock += int(self.rng.integers(1, 4))
        event = self.rng.choice(
            ["record", "credit", "end", "truncate", "flush", "replace"], p=[0.4, 0.2, 0.12, 0.08, 0.1, 0.1]
        )
        getattr(self, event)(some)
        self.check()

    def _clock(self, streams: Any) -> Any:
        return np.full(len(streams), self.clock) if self.timed else None

    def record(self, some: Any, *, replacing: bool = False) -> None:
        numbers = self.new_numbers(len(some))
        open_before = [self.slow[stream].open for stream in some]
        states = list(numbers)
        for place, stream in enumerate(some):
            if replacing and open_before[place]:  # the memory before the decision is still the same
                replaced = self.slow[stream].rows[-1]
                states[place] = replaced.state
                self.decided.discard(replaced.number)
            self.slow[stream].record(numbers[place], states[place], self.clock, replacing=replacing)
        self.decided.update(numbers)
        self.writer.record(some, columns_of(numbers), state_of(states), self._clock(some), replace=replacing)

    def replace(self, some: Any) -> None:
        self.record(some, replacing=True)

    def credit(self, some: Any) -> None:
        reward = self.rng.integers(-3, 4, len(some)).astype(np.float32)
        for stream, amount in zip(some, reward.tolist(), strict=True):
            self.slow[stream].credit(amount)
        self.writer.credit(some, reward)

    def end(self, some: Any) -> None:
        for stream in some:
            self.slow[stream].end()
        self.writer.end(some)

    def truncate(self, some: Any) -> None:
        some = np.array([stream for stream in some if self.slow[stream].open], np.int64)
        numbers = self.new_numbers(len(some))
        for stream, number in zip(some, numbers, strict=True):
            self.slow[stream].truncate(number, self.clock)
        columns = columns_of(numbers)
        del columns["version"]
        self.writer.truncate(some, columns, self._clock(some))

    def flush(self, some: Any) -> None:
        states = [self.slow[stream].rows[-1].state if self.slow[stream].rows else 0 for stream in some]
        for stream in some:
            self.slow[stream].flush()
        self.writer.flush(some, state_of(states))

    def check(self) -> None:
        expected = [handed for stream in self.slow for handed in stream.out]
        for stream in self.slow:
            stream.out = []
        assert len(self.seen) == len(expected)
        for wanted in expected:
            held = next(seen for seen in self.seen if int(seen[2]["observation.seen"][0, 0]) == wanted.rows[0].number)
            self.check_slot(wanted, *held)
            self.trained.extend(row.number for row in wanted.rows if row.decision)
        self.seen = []
        self.check_streams()
        if self.learner and self.rng.random() < 0.3:
            self.writer.free(np.array(self.learner))
            self.learner = []

    def check_slot(self, wanted: HandedOver, owner: int, slot: int, got: dict[str, Any]) -> None:
        length = len(wanted.rows)
        assert owner == wanted.owner
        assert got["length"] == length <= self.unroll_length
        assert got["state.h"].tolist() == [wanted.rows[0].state] * 2
        rows = [*wanted.rows, wanted.bootstrap] if wanted.bootstrap else wanted.rows
        for at, row in enumerate(rows):
            for name, value in columns_of([row.number]).items():
                if row.decision or name != "version":
                    assert np.array_equal(got[name][at], value[0]), name
            assert got["first"][at] == row.first
        for at, row in enumerate(wanted.rows):
            assert got["decision"][at] == row.decision
            assert (got["reward"][at], got["elapsed"][at], got["over"][at]) == (row.reward, row.elapsed, row.over)
        batch = self.pool.stack(np.array([slot]))
        decision = [row.decision for row in wanted.rows]
        follows = [decision[at] and decision[at + 1] and not wanted.rows[at + 1].first for at in range(length - 1)]
        padding = [False] * (self.unroll_length + 1 - length)
        assert batch.valid[:, 0].tolist() == decision + padding
        assert batch.follows[:, 0].tolist() == [*follows, False, *padding]
        assert self.pool.num_decisions(np.array([slot])).tolist() == [sum(decision)]

    def check_streams(self) -> None:
        writer = self.writer
        assert writer.open.tolist() == [stream.open for stream in self.slow]
        assert (writer.row + 1).tolist() == [len(stream.rows) for stream in self.slow]
        assert writer.dropped_reward == sum(stream.dropped for stream in self.slow)
        held = writer.slot[writer.slot >= 0].tolist()
        free = writer.save()["free"].tolist()
        assert len(held) + len(self.learner) + writer.num_free == self.pool.num_slots
        assert sorted(held + self.learner + free) == list(range(self.pool.num_slots))


@pytest.mark.parametrize("seed", range(40))
def test_writer_does_what_the_slow_reference_does(seed: int) -> None:
    duel = Duel(seed)
    for _ in range(120):
        duel.step()
    duel.flush(np.arange(duel.num_streams))
    duel.check()
    waiting = [row.number for stream in duel.slow for row in stream.rows]
    assert all(len(stream.rows) == stream.open for stream in duel.slow)
    assert sorted(duel.trained + waiting) == sorted(duel.decided), "a decision is lost or counted twice"


def test_writer_goes_on_from_what_it_saved() -> None:
    first, second = Duel(3), Duel(3)
    for _ in range(50):
        first.step()
        second.step()
    other = TrajectoryWriter(second.pool, second.num_streams, second.hand_over)
    other.load({name: array.copy() for name, array in second.writer.save().items()})
    second.writer = other
    for _ in range(50):
        first.step()
        second.step()
    assert first.trained == second.trained
    assert first.writer.save()["free"].tolist() == other.save()["free"].tolist()


def test_writer_says_what_to_raise_when_no_slot_is_free() -> None:
    writer = TrajectoryWriter(new_pool(num_slots=1), 2, lambda owner, slots: None)
    with pytest.raises(RuntimeError, match=r"2 trajectory slots are needed and 1 of 1 are free.*buffer_size"):
        writer.record(np.arange(2), columns_of([1, 2]), state_of([1, 2]))


def test_old_decisions_are_not_valid_but_still_follow() -> None:
    taken: list[int] = []
    pool = new_pool(unroll_length=3)
    writer = TrajectoryWriter(pool, 1, lambda owner, slots: taken.extend(slots.tolist()))
    for version in (4, 5, 6):
        writer.record(np.array([0]), columns_of([version], version), state_of([0]))
    writer.end(np.array([0]))
    batch = pool.stack(np.array(taken), oldest_version=5)
    assert batch.valid[:, 0].tolist() == [False, True, True, False]
    assert batch.follows[:, 0].tolist() == [True, True, False, False]
    assert pool.num_decisions(np.array(taken)).tolist() == [3]


def test_stack_is_time_first_and_strips_the_prefixes() -> None:
    pool = new_pool(unroll_length=2, num_slots=4)
    pool.rows["observation.seen"][..., 0] = np.arange(12).reshape(4, 3)
    pool.slots["state.h"][...] = np.arange(8).reshape(4, 2)
    batch = pool.stack(np.array([3, 1]))
    assert batch.observation["seen"][..., 0].tolist() == [[9, 3], [10, 4], [11, 5]]
    assert batch.state["h"].tolist() == [[6, 7], [2, 3]]
    assert set(batch.observation) == {"seen", "things", "things_length"}
    assert set(batch.legal) == set(batch.action) == {"move"}
    pool.rows["observation.seen"][...] = -1  # a batch is a copy: the slots are used again
    assert batch.observation["seen"][0, 0] == 9


@pytest.mark.parametrize("column", ["observation.seen", "reward", "value", "log_prob", "state.h"])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_slots_that_hold_no_number_are_found(column: str, broken: float) -> None:
    pool = new_pool(num_slots=3)
    {**pool.rows, **pool.slots}[column][1].reshape(-1)[0] = broken
    assert pool.stack_finite(np.arange(3))[1].tolist() == [True, False, True]


def test_what_an_earlier_trajectory_left_in_a_slot_does_not_count() -> None:
    pool = new_pool(unroll_length=3, num_slots=2)
    pool.slots["length"][:] = 2
    pool.rows["decision"][:, :2] = True
    pool.rows["over"][0, 1] = True  # nothing follows: row 2 is not read
    for column in ("value", "observation.seen"):
        pool.rows[column][:, 2:] = np.nan
    batch, finite = pool.stack_finite(np.arange(2))
    assert finite.tolist() == [True, False], "the second needs row 2 as its bootstrap"
    assert batch is not None
    assert np.isfinite(batch.value).all()
    assert np.isfinite(batch.observation["seen"]).all()


def test_a_finite_stack_leaves_out_the_others() -> None:
    pool = new_pool(num_slots=3)
    pool.slots["length"][:] = 1
    pool.rows["decision"][:, 0] = True
    pool.rows["reward"][:] = [[1], [2], [3]]
    batch, finite = pool.stack_finite(np.array([0, 2]))
    assert batch is not None
    assert (batch.reward[0].tolist(), finite.tolist()) == ([1, 3], [True, True])
    pool.rows["value"][2, 0] = np.nan
    pool.rows["value"][0, 0] = 3e38  # its square is too large, but it is a number
    batch, finite = pool.stack_finite(np.array([2, 0, 1]))
    assert batch is not None
    assert (batch.reward[0].tolist(), finite.tolist()) == ([1, 2], [False, True, True])
    assert pool.stack_finite(np.array([2]))[0] is None


def test_padding_of_entities_may_be_anything() -> None:
    pool = new_pool(num_slots=2)
    pool.rows["observation.things"][...] = np.nan
    pool.rows["observation.things"][:, :, :2] = 1.0
    pool.rows["observation.things_length"][0] = 2
    pool.rows["observation.things_length"][1] = 3
    assert pool.stack_finite(np.arange(2))[1].tolist() == [True, False]
    assert np.isnan(pool.rows["observation.things"][0, 0, 2]).all(), "looking must not change anything"
