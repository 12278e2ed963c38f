"""What waits for the learner, and how far actors are ahead of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ludus.data.specs import ActionSpec, Choice, ObservationSpec, SeatKind, Vector
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import IntArray
from ludus.workers.buffer import ActorLead, Buffer, Taken

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


def new_buffer(freed: Freed, **options: Any) -> Buffer:
    """Over two kinds of seat; slot i of each has LENGTHS[i] decisions, made with version i. With two actors,
    the first three slots are the first actor's."""
    pools = tuple(SlotPool(TrajectoryLayout(kind=KIND, unroll_length=4), len(LENGTHS)) for _ in range(2))
    for pool in pools:
        pool.slots["length"][:] = LENGTHS
        pool.rows["decision"][...] = True
        pool.rows["version"][...] = np.arange(len(LENGTHS))[:, None]
    return Buffer(pools, **{"max_decisions": 100, "max_slots": 100, "free": freed, **options})


def slots_of(taken: dict[int, Taken]) -> dict[int, list[int]]:
    return {kind: one.slots.tolist() for kind, one in taken.items()}


def test_what_is_taken_is_all_that_waits(freed: Freed) -> None:
    buffer = new_buffer(freed)
    buffer.put(1, np.array([3, 0]))
    buffer.put(0, np.array([2]))
    assert buffer.decisions == 10
    taken = buffer.take()
    assert slots_of(taken) == {0: [2], 1: [3, 0]}
    assert taken[1].decisions.tolist() == [4, 4]
    assert taken[1].is_new.all()
    assert (buffer.decisions, freed.slots) == (0, []), "the learner still reads them"
    buffer.give_back()
    assert sorted(freed.slots) == [(0, 2), (1, 0), (1, 3)]
    assert buffer.take() == {}


def test_the_newest_are_taken_until_there_is_enough(freed: Freed) -> None:
    buffer = new_buffer(freed)
    buffer.put(0, np.array([0, 1, 2]))
    buffer.put(1, np.array([3]))
    assert slots_of(buffer.take(enough=5)) == {0: [2], 1: [3]}, "4 + 2 decisions"
    buffer.give_back()
    assert buffer.decisions == 7
    assert slots_of(buffer.take(enough=3)) == {0: [1]}
    assert slots_of(buffer.take(enough=99)) == {0: [0]}


def test_an_actor_is_held_up_until_its_hand_over_is_used(freed: Freed) -> None:
    buffer = new_buffer(freed, num_actors=2)
    buffer.put(0, np.array([0, 4]))
    assert buffer.held_up().tolist() == [False, False], "no hand-over has ended"
    buffer.complete(0)
    assert buffer.held_up().tolist() == [True, False]
    buffer.complete(1)
    assert buffer.held_up().tolist() == [True, True], "slot 4 is the second actor's"
    buffer.take()
    assert buffer.held_up().tolist() == [False, False]
    assert buffer.consumed.tolist() == [4, 1]


def test_a_hand_over_of_nothing_holds_nobody_up(freed: Freed) -> None:
    buffer = new_buffer(freed)
    buffer.complete()
    assert not buffer.held_up().any()


def test_a_lead_may_be_so_many_hand_overs_long() -> None:
    taking_turns, ahead = ActorLead(0), ActorLead(2)
    for lead in (taking_turns, ahead):
        for size in (10, 11, 9):
            lead.decisions += size
            lead.complete()
    assert [taking_turns.is_too_long(used) for used in (0, 29, 30)] == [True, True, False]
    assert [ahead.is_too_long(used) for used in (0, 9, 10)] == [True, True, False]
    ahead.decisions += 10
    assert not ahead.is_too_long(10), "what has not been handed over does not count"
    ahead.complete()
    assert [ahead.is_too_long(used) for used in (20, 21)] == [True, False]


def test_what_a_dead_actor_handed_over_is_forgotten(freed: Freed) -> None:
    buffer = new_buffer(freed, num_actors=2)
    buffer.put(0, np.array([0, 1, 3]))
    buffer.take(enough=1)
    buffer.give_back()
    buffer.complete(0)
    buffer.complete(1)
    buffer.forget(0)
    assert buffer.held_up().tolist() == [False, False]
    assert (buffer.decisions, buffer.consumed.tolist()) == (0, [0, 4])
    buffer.put(0, np.array([2]))
    buffer.complete(0)
    assert buffer.held_up().tolist() == [True, False]
    assert slots_of(buffer.take()) == {0: [2]}


def test_a_trajectory_is_used_as_often_as_allowed(freed: Freed) -> None:
    buffer = new_buffer(freed, uses=3)
    buffer.put(0, np.array([0, 1]))
    for use in range(3):
        taken = buffer.take()[0]
        assert (taken.slots.tolist(), taken.is_new.tolist()) == ([0, 1], [use == 0] * 2)
        assert freed.slots == []
        assert buffer.consumed.tolist() == [7], "only the first use counts as news for the actor"
        buffer.give_back()
    assert freed.slots == [(0, 0), (0, 1)]
    assert (buffer.take(), buffer.decisions) == ({}, 0)


def test_new_trajectories_come_before_used_ones(freed: Freed) -> None:
    buffer = new_buffer(freed, uses=2)
    buffer.put(0, np.array([0]))
    buffer.take()
    buffer.give_back()
    buffer.put(0, np.array([3]))
    assert slots_of(buffer.take(enough=4)) == {0: [3]}
    buffer.give_back()
    assert buffer.take()[0].is_new.tolist() == [False, False]


def test_what_is_refused_is_not_used_again(freed: Freed) -> None:
    buffer = new_buffer(freed, uses=2)
    buffer.put(0, np.array([0, 1]))
    buffer.put(1, np.array([1]))
    buffer.take()
    buffer.give_back(refused={0: np.array([1])})
    assert freed.slots == [(0, 1)]
    assert slots_of(buffer.take()) == {0: [0], 1: [1]}


def test_what_is_too_old_is_let_go_of(freed: Freed) -> None:
    buffer = new_buffer(freed, uses=2)
    buffer.put(0, np.array([1, 2, 3, 0]))
    buffer.take(enough=1)  # slot 0 has been used, so nothing is lost of it
    buffer.give_back()
    assert buffer.drop_older_than(2) == 3
    assert freed.slots == [(0, 1), (0, 0)]
    assert slots_of(buffer.take()) == {0: [2, 3]}
    assert buffer.consumed.tolist() == [4 + 3 + 2 + 4]


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
    assert sorted(freed.slots) == [(0, 0), (0, 1), (1, 2)]
    assert buffer.consumed.tolist() == [9], "nobody waits for what was dropped"


def test_dropping_what_was_used_loses_nothing(freed: Freed) -> None:
    buffer = new_buffer(freed, max_decisions=6, uses=2)
    buffer.put(0, np.array([0]))
    buffer.take()
    buffer.give_back()
    buffer.put(0, np.array([3]))
    assert (buffer.decisions, buffer.dropped, freed.slots) == (4, 0, [(0, 0)])


def test_the_newest_stays_even_if_it_alone_is_too_much(freed: Freed) -> None:
    buffer = new_buffer(freed, max_decisions=2)
    buffer.put(0, np.array([0, 3]))
    assert buffer.decisions == 4
    assert freed.slots == [(0, 0)]


def test_short_trajectories_do_not_use_up_all_slots_of_an_actor(freed: Freed) -> None:
    buffer = new_buffer(freed, max_slots=2, num_actors=2)
    buffer.put(0, np.array([4, 1, 2]))
    assert buffer.dropped == 0
    buffer.put(0, np.array([0]))
    assert (buffer.decisions, buffer.dropped) == (7, 3)
    assert freed.slots == [(0, 1)]


def test_rows_that_are_no_decisions_do_not_count(freed: Freed) -> None:
    buffer = new_buffer(freed)
    buffer._pools[0].rows["decision"][0, 3] = False  # the bootstrap after a truncation
    buffer.put(0, np.array([0]))
    assert buffer.decisions == 3


def test_clearing_frees_what_waits_and_holds_nobody_up(freed: Freed) -> None:
    buffer = new_buffer(freed)
    buffer.put(1, np.array([2, 5]))
    buffer.complete()
    buffer.clear()
    assert (buffer.held_up().tolist(), buffer.decisions) == ([False], 0)
    assert freed.slots == [(1, 2), (1, 5)]


def test_it_goes_on_from_what_it_saved(freed: Freed) -> None:
    buffer = new_buffer(freed, max_decisions=9, uses=2)
    buffer.put(0, np.array([0, 1, 3]))
    buffer.complete()
    buffer.take(enough=1)
    buffer.give_back()
    other = new_buffer(freed, max_decisions=9, uses=2)
    other.load(json.loads(json.dumps(buffer.save())))
    assert (other.held_up().tolist(), other.decisions, other.dropped) == ([True], 7, 4)
    assert other.consumed.tolist() == [8]
    taken = other.take()[0]
    assert (taken.slots.tolist(), taken.is_new.tolist()) == ([1, 3], [True, False])
    assert not other.held_up().any()
    empty = new_buffer(freed)
    empty.load(json.loads(json.dumps(new_buffer(freed).save())))
    assert empty.take() == {}
