"""What waits for the learner."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ludus.data.specs import ActionSpec, Choice, ObservationSpec, SeatKind, Vector
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import IntArray
from ludus.workers.buffer import Buffer

KIND = SeatKind(
    name="player",
    observation=ObservationSpec(parts={"seen": Vector(size=1)}),
    action=ActionSpec(heads={"move": Choice(num=2)}),
)
LENGTHS = [4, 3, 2, 4, 1, 4]


class Freed:
    def __init__(self) -> None:
        self.slots: list[tuple[int, int]] = []

    def __call__(self, kind: int, slots: IntArray) -> None:
        self.slots += [(kind, slot) for slot in slots.tolist()]


@pytest.fixture
def freed() -> Freed:
    return Freed()


def new_buffer(freed: Freed, max_decisions: int = 100, max_slots: int = 100, num_actors: int = 1) -> Buffer:
    """Over two kinds of seat; slot i of each has LENGTHS[i] decisions."""
    pools = tuple(SlotPool(TrajectoryLayout(kind=KIND, unroll_length=4), len(LENGTHS)) for _ in range(2))
    for pool in pools:
        pool.slots["length"][:] = LENGTHS
        pool.rows["decision"][...] = True
    return Buffer(pools, max_decisions=max_decisions, max_slots=max_slots, free=freed, num_actors=num_actors)


def test_a_batch_is_all_that_came_before_the_hand_over_ended(freed: Freed) -> None:
    buffer = new_buffer(freed)
    buffer.put(1, np.array([3, 0]))
    buffer.put(0, np.array([2]))
    assert not buffer.ready
    buffer.complete()
    assert (buffer.ready, buffer.decisions) == (True, 10)
    assert {kind: slots.tolist() for kind, slots in buffer.take().items()} == {0: [2], 1: [3, 0]}
    assert (buffer.ready, buffer.decisions, buffer.take()) == (False, 0, {})
    assert freed.slots == [], "whoever takes slots frees them"


def test_a_hand_over_of_nothing_is_an_empty_batch_and_used_up(freed: Freed) -> None:
    buffer = new_buffer(freed)
    buffer.complete()
    assert buffer.ready
    assert buffer.take() == {}
    buffer.put(0, np.array([1]))
    assert not buffer.ready, "the next batch is not complete yet"


def test_a_batch_takes_a_hand_over_of_every_actor(freed: Freed) -> None:
    buffer = new_buffer(freed, num_actors=2)
    buffer.put(0, np.array([1]))
    buffer.complete(0)
    buffer.complete(0)
    assert not buffer.ready
    buffer.complete(1)
    assert buffer.ready
    buffer.take()
    assert not buffer.ready
    buffer.complete(1)
    assert buffer.ready, "the second hand-over of actor 0 was kept"


def test_what_a_dead_actor_handed_over_is_forgotten(freed: Freed) -> None:
    buffer = new_buffer(freed, num_actors=2)
    buffer.put(0, np.array([0, 1]))
    buffer.complete(0)
    buffer.complete(1)
    buffer.forget(0, lambda kind, slot: slot == 0)
    assert not buffer.ready
    buffer.complete(0)
    assert buffer.take()[0].tolist() == [1]


def test_the_oldest_are_dropped_and_counted(freed: Freed) -> None:
    buffer = new_buffer(freed, max_decisions=10)
    buffer.put(0, np.array([0, 1]))
    buffer.put(1, np.array([2]))
    assert (buffer.decisions, buffer.dropped) == (9, 0)
    buffer.put(0, np.array([4]))
    assert (buffer.decisions, buffer.dropped) == (10, 0)
    buffer.put(1, np.array([3]))
    assert (buffer.decisions, buffer.dropped) == (10, 4)
    assert freed.slots == [(0, 0)]
    buffer.put(1, np.array([5]))
    assert (buffer.decisions, buffer.dropped) == (9, 9)
    assert freed.slots == [(0, 0), (0, 1), (1, 2)]


def test_the_newest_stays_even_if_it_alone_is_too_much(freed: Freed) -> None:
    buffer = new_buffer(freed, max_decisions=2)
    buffer.put(0, np.array([0, 3]))
    assert buffer.decisions == 4
    assert freed.slots == [(0, 0)]


def test_short_trajectories_do_not_use_up_all_slots(freed: Freed) -> None:
    buffer = new_buffer(freed, max_slots=2)
    buffer.put(0, np.array([4, 1, 2]))
    assert (buffer.decisions, buffer.dropped) == (5, 1)
    assert freed.slots == [(0, 4)]


def test_rows_that_are_no_decisions_do_not_count(freed: Freed) -> None:
    buffer = new_buffer(freed)
    buffer._pools[0].rows["decision"][0, 3] = False  # the bootstrap after a truncation
    buffer.put(0, np.array([0]))
    assert buffer.decisions == 3


def test_clearing_frees_what_waits(freed: Freed) -> None:
    buffer = new_buffer(freed)
    buffer.put(1, np.array([2, 5]))
    buffer.complete()
    buffer.clear()
    assert (buffer.ready, buffer.decisions) == (False, 0)
    assert freed.slots == [(1, 2), (1, 5)]


def test_it_goes_on_from_what_it_saved(freed: Freed) -> None:
    buffer = new_buffer(freed, max_decisions=9)
    buffer.put(0, np.array([0, 1, 3]))
    buffer.complete()
    other = new_buffer(freed, max_decisions=9)
    other.load(json.loads(json.dumps(buffer.save())))
    assert (other.ready, other.decisions, other.dropped) == (True, 7, 4)
    assert other.take()[0].tolist() == [1, 3]
