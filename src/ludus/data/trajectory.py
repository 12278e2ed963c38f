"""Trajectory slots: preallocated columns that actors write in place and learners stack into batches. A trajectory is
one seat's view of up to T of its own decisions. Its slot has T+1 rows: the value of the row after the last decision is
the bootstrap. Short episodes are packed one after the other into a slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.batch import Batch
from ludus.data.search import SEARCH_POLICY
from ludus.data.specs import ArraySpec, SeatKind, array_spec, length_name
from ludus.data.trees import Array, IntArray, Tree, allocate, put, take, under


@dataclass(frozen=True, kw_only=True)
class TrajectoryLayout:
    """The columns of a slot."""

    kind: SeatKind
    unroll_length: int
    state: Mapping[str, ArraySpec] = field(default_factory=dict)  # memory of the policy before row 0
    recomputed: Mapping[str, ArraySpec] = field(default_factory=dict)  # columns that a buffer worker fills, by row
    searched: bool = False  # decisions may come from a search, whose policy is kept

    @cached_property
    def rows(self) -> dict[str, ArraySpec]:
        """Columns with one entry per row."""
        kind = self.kind
        return {
            **kind.decision_arrays,
            "log_prob": array_spec((len(kind.action.heads),), "float32"),
            "value": array_spec((), "float32"),
            "reward": array_spec((), "float32"),
            **({"rewards": array_spec((len(kind.rewards),), "float32")} if kind.rewards else {}),
            "elapsed": array_spec((), "int32"),
            "over": array_spec((), "bool"),
            "decision": array_spec((), "bool"),
            "first": array_spec((), "bool"),
            "version": array_spec((), "int64"),
            **({SEARCH_POLICY: array_spec((self._num_options,), "float32")} if self.searched else {}),
        }

    @property
    def _num_options(self) -> int:
        (head,) = self.kind.action.heads
        return self.kind.num_options(head)

    @cached_property
    def slot(self) -> dict[str, ArraySpec]:
        """Columns with one entry per slot."""
        return {"length": array_spec((), "int32"), **{f"state.{name}": spec for name, spec in self.state.items()}}


class SlotPool:
    """All slots of one kind of seat. Only slot numbers travel between workers."""

    def __init__(
        self,
        layout: TrajectoryLayout,
        num_slots: int,
        new: Callable[[tuple[int, ...], np.dtype[Any]], Array] = np.zeros,
    ) -> None:
        self.layout = layout
        self.num_slots = num_slots
        self.rows: Tree = allocate(layout.rows, (num_slots, layout.unroll_length + 1), new)
        self.slots: Tree = allocate(layout.slot, (num_slots,), new)
        self.recomputed: Tree = allocate(layout.recomputed, (num_slots, layout.unroll_length + 1), new)

    def num_decisions(self, slots: IntArray) -> IntArray:
        """The number of decisions in each of these slots, whatever their age."""
        before_end = np.arange(self.layout.unroll_length + 1) < self.slots["length"][slots][:, None]
        counts: IntArray = (self.rows["decision"][slots] & before_end).sum(1)
        return counts

    def newest_version(self, slots: IntArray) -> IntArray:
        """The version of the last row of each of these slots."""
        last = np.maximum(self.slots["length"][slots] - 1, 0)
        versions: IntArray = self.rows["version"][slots, last]
        return versions

    def stack(self, slots: IntArray, oldest_version: int = 0) -> Batch:
        """Copy these slots into a batch, time first. Decisions made with weights older than `oldest_version` are kept
        for the returns of their neighbours but are not `valid`."""
        return self._batch(self._copy(slots), oldest_version)

    def stack_finite(self, slots: IntArray, oldest_version: int = 0) -> tuple[Batch | None, NDArray[np.bool_]]:
        """`stack` without slots that hold a NaN or an infinity outside of padding, and a mask of the others."""
        copied = self._copy(slots)
        finite = self._are_finite(copied)
        if not finite.all():
            copied = take(copied, finite)
        return (self._batch(copied, oldest_version) if finite.any() else None), finite

    def _copy(self, slots: IntArray) -> Tree:
        """All columns of these slots, slot by slot."""
        columns = (*self.rows.items(), *self.slots.items(), *self.recomputed.items())
        return {name: array.take(slots, 0) for name, array in columns}

    def _are_finite(self, copied: Tree) -> NDArray[np.bool_]:
        """Which slots are finite. A finite sum of squares proves it for a whole column in one fast pass. Rows left over
        from an earlier trajectory do not count. Their NaNs and infinities are zeroed, because even a row that is never
        trained on could spoil a sum."""
        length, over = copied["length"], copied["over"]
        finite = np.ones(len(length), np.bool_)
        for name, array in copied.items():
            flat = array.reshape(-1)
            with np.errstate(over="ignore", invalid="ignore"):
                if array.dtype.kind != "f" or name in self.recomputed or np.isfinite(np.dot(flat, flat)):
                    continue
            bad = ~np.isfinite(array)
            if (entities := copied.get(length_name(name))) is not None:
                bad &= (np.arange(array.shape[2]) < entities[..., None])[..., None]
            if name in self.rows:
                ended = over[np.arange(len(length)), np.maximum(length - 1, 0)]
                left = np.arange(over.shape[1]) >= (length + ~ended)[:, None]  # after a bootstrap, if any
                bad[left] = False
                array[left] = np.nan_to_num(array[left], posinf=0.0, neginf=0.0)
            finite &= ~bad.reshape(len(length), -1).any(1)
        return finite

    @property
    def _extra(self) -> list[str]:
        return [*self.recomputed, *([SEARCH_POLICY] if self.layout.searched else [])]

    def _batch(self, copied: Tree, oldest_version: int) -> Batch:
        rows = {name: copied[name].swapaxes(0, 1) for name in self.rows}
        time = np.arange(self.layout.unroll_length + 1)[:, None]
        decision = rows["decision"] & (time < copied["length"])
        follows = np.zeros_like(decision)
        follows[:-1] = decision[:-1] & decision[1:] & ~rows["first"][1:]
        return Batch(
            observation=under("observation.", rows),
            legal=under("legal.", rows),
            action=under("action.", rows),
            log_prob=rows["log_prob"],
            value=rows["value"],
            reward=rows["reward"],
            rewards=rows.get("rewards"),
            elapsed=rows["elapsed"],
            over=rows["over"],
            valid=decision & (rows["version"] >= oldest_version),
            follows=follows,
            first=rows["first"],
            version=rows["version"],
            state=under("state.", copied),
            extra={name: copied[name].swapaxes(0, 1) for name in self._extra},
        )


_OF_STREAMS = ("owner", "slot", "row", "open", "clock")  # arrays of `TrajectoryWriter` with an entry per stream


class TrajectoryWriter:
    """Writes the decisions of many streams into slots. A stream is one learning seat at one table. Its latest decision
    stays open, and collects reward, until the stream's next decision or the end of the episode."""

    def __init__(
        self, pool: SlotPool, num_streams: int, hand_over: Callable[[int, IntArray], None], slots: range | None = None
    ) -> None:
        """`slots` are the slots that this writer may use; None: all of the pool."""
        self._pool = pool
        self._last_row = pool.layout.unroll_length
        self._hand_over = hand_over
        self._free = list(reversed(range(pool.num_slots) if slots is None else slots))
        self.owner = np.full(num_streams, -1, np.int64)  # the learner that gets the stream's slots, or -1
        self.slot = np.full(num_streams, -1, np.int64)
        self.row = np.full(num_streams, -1, np.int64)  # the latest row written
        self.open = np.zeros(num_streams, np.bool_)
        self.clock = np.zeros(num_streams, np.int64)  # game time of the open decision
        self.dropped_reward = 0.0  # sum of |reward| before a stream's first decision of an episode

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free(self, slots: IntArray) -> None:
        """Return slots that the learner has finished with."""
        self._free.extend(slots.tolist())

    def record(
        self,
        streams: IntArray,
        columns: Mapping[str, Array],
        state: Mapping[str, Array],
        clock: IntArray | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Write one new open decision per stream, and hand over full slots with this row as their bootstrap.

        `columns` holds an entry per stream for observation, legal, action, log_prob, value and version, `state`
        the memory before the decision, `clock` the game time (None: not timed). `replace` overwrites decisions
        that were made but not played, because the weights changed in between.
        """
        rows = self._pool.rows
        row = self.row[streams]
        opening = self.slot[streams] < 0
        if opening.any():
            self._start(streams[opening], take(state, opening))
            row = self.row[streams]
        was_open = self.open[streams]
        if replace:
            row = np.where(was_open, row - 1, row)
        elif clock is not None and was_open.any():
            going_on = streams[was_open]
            rows["elapsed"][self.slot[going_on], self.row[going_on]] = clock[was_open] - self.clock[going_on]
        row = row + 1
        slot = self.slot[streams]
        first = ~was_open
        if replace:
            # a replacement is first in its episode exactly if the decision that it replaces was
            first = np.where(was_open, rows["first"][slot, row], first)
        self._write(slot, row, columns, first)
        self.row[streams] = row
        self.open[streams] = True
        if clock is not None:
            self.clock[streams] = clock
        full = row == self._last_row
        if full.any():
            done = streams[full]
            self._finish(done, self._last_row)
            self._start(done, take(state, full))
            at_start = np.zeros(len(done), np.int64)
            self._write(self.slot[done], at_start, take(columns, full), first[full])
            self.row[done] = 0

    def credit(
        self, streams: IntArray, reward: NDArray[np.float32], rewards: NDArray[np.float32] | None = None
    ) -> None:
        """Add reward, and the further `rewards` [streams, names], to the open decision of each stream."""
        is_open = self.open[streams]
        if not is_open.all():
            self.dropped_reward += float(np.abs(reward[~is_open]).sum())
            streams, reward = streams[is_open], reward[is_open]
            rewards = None if rewards is None else rewards[is_open]
        self._pool.rows["reward"][self.slot[streams], self.row[streams]] += reward
        if rewards is not None:
            self._pool.rows["rewards"][self.slot[streams], self.row[streams]] += rewards

    def end(self, streams: IntArray) -> None:
        """The episode ended by the rules: nothing follows the open decisions."""
        streams = streams[self.open[streams]]
        self._pool.rows["over"][self.slot[streams], self.row[streams]] = True
        self._close(streams)

    def truncate(self, streams: IntArray, columns: Mapping[str, Array], clock: IntArray | None = None) -> None:
        """End truncated episodes of open streams. `columns` holds the bootstrap: the last observation and its value."""
        rows = self._pool.rows
        slot, row = self.slot[streams], self.row[streams]
        if clock is not None:
            rows["elapsed"][slot, row] = clock - self.clock[streams]
        self._write(slot, row + 1, columns, np.zeros(len(streams), np.bool_))
        rows["decision"][slot, row + 1] = False
        self.row[streams] = row + 1
        self._close(streams)

    def flush(self, streams: IntArray, state: Mapping[str, Array]) -> None:
        """Hand over unfinished slots; open decisions move to new ones. `state` is the memory before these decisions."""
        has_rows = self.slot[streams] >= 0
        is_open = self.open[streams]
        closed = streams[has_rows & ~is_open]
        if len(closed):
            self._finish(closed, self.row[closed] + 1)
            self.slot[closed] = self.row[closed] = -1
        keep = has_rows & is_open & (self.row[streams] > 0)
        going_on = streams[keep]
        if len(going_on):
            slot, row = self.slot[going_on], self.row[going_on]
            latest = take(self._pool.rows, (slot, row))
            self._finish(going_on, row)
            self._start(going_on, take(state, keep))
            put(self._pool.rows, (self.slot[going_on], 0), latest)
            self.row[going_on] = 0

    def drop(self, streams: IntArray) -> None:
        """Discard all rows that were not handed over, open decisions included."""
        held = streams[self.slot[streams] >= 0]
        self.free(self.slot[held])
        self.slot[held] = self.row[held] = -1
        self.open[held] = False

    def save(self) -> Tree:
        """The state that `load` needs to continue exactly here."""
        streams = {name: getattr(self, name) for name in _OF_STREAMS}
        return {**streams, "free": np.array(self._free, np.int64), "dropped_reward": np.array(self.dropped_reward)}

    def load(self, saved: Mapping[str, Array]) -> None:
        for name in _OF_STREAMS:
            getattr(self, name)[...] = saved[name]
        self._free = saved["free"].tolist()
        self.dropped_reward = float(saved["dropped_reward"])

    def _write(self, slot: IntArray, row: IntArray, columns: Mapping[str, Array], first: NDArray[np.bool_]) -> None:
        rows = self._pool.rows
        for name, values in columns.items():
            rows[name][slot, row] = values
        rows["reward"][slot, row] = 0.0
        if "rewards" in rows:
            rows["rewards"][slot, row] = 0.0
        rows["elapsed"][slot, row] = 1
        rows["over"][slot, row] = False
        rows["decision"][slot, row] = True
        rows["first"][slot, row] = first

    def _close(self, streams: IntArray) -> None:
        self.open[streams] = False
        full = streams[self.row[streams] >= self._last_row - 1]  # the last row is for bootstraps only
        if len(full):
            self._finish(full, self._last_row)
            self.slot[full] = self.row[full] = -1

    def _start(self, streams: IntArray, state: Mapping[str, Array]) -> None:
        if len(self._free) < len(streams):
            raise RuntimeError(
                f"{len(streams)} trajectory slots are needed and {len(self._free)} of {self._pool.num_slots} "
                "are free: raise learner.buffer_size"
            )
        slots = np.array([self._free.pop() for _ in range(len(streams))], np.int64)
        self.slot[streams] = slots
        self.row[streams] = -1
        for name, values in state.items():
            self._pool.slots[f"state.{name}"][slots] = values

    def _finish(self, streams: IntArray, length: int | IntArray) -> None:
        slots = self.slot[streams]
        self._pool.slots["length"][slots] = length
        owners = self.owner[streams]
        for owner in np.unique(owners):
            self._hand_over(int(owner), slots[owners == owner])
