"""What a tick does, on one table that is set up by hand."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_battle import State, set_up, tick
from ludus.games.builtin.skirmish_rules import ATTACK, BOW, GATHER, HORSE, NO_OP, SPEAR, WORKER


def bases_only() -> State:
    state = State.allocate(1)
    set_up(state, np.array([0]), np.array([0], np.uint64), ())
    state.alive[:, :, 1:] = False
    return state


def place(state: State, side: int, kind: int, x: float, y: float, number: int = 1) -> NDArray[np.int64]:
    """New idle units of one kind; returns their slots."""
    slots = np.flatnonzero(~state.alive[0, side])[:number]
    at = (0, side, slots)
    state.alive[at], state.kind[at], state.health[at] = True, kind, rules.HEALTH[kind]
    state.x[at], state.y[at], state.order[at] = x, y, NO_OP
    return slots


def enemy_base(state: State) -> tuple[float, float]:
    return float(state.x[0, 1, 0]), float(state.y[0, 1, 0])


@pytest.mark.parametrize(("winner", "loser"), [(SPEAR, HORSE), (HORSE, BOW), (BOW, SPEAR)])
def test_each_fighter_beats_the_next_at_equal_cost(winner: int, loser: int) -> None:
    assert rules.COST[winner] == rules.COST[loser]
    state = bases_only()
    strong = place(state, 0, winner, 14.0, 16.0, number=6)
    weak = place(state, 1, loser, 18.0, 16.0, number=6)
    for _ in range(120):
        tick(state, heroes=0)
    assert not state.alive[0, 1, weak].any()
    assert state.alive[0, 0, strong].sum() >= 2


@pytest.mark.parametrize(("beyond", "struck"), [(-0.1, "worker"), (0.1, "base")])
def test_a_base_counts_as_so_much_farther_than_it_is(beyond: float, struck: str) -> None:
    state = bases_only()
    x, y = enemy_base(state)
    (spear,) = place(state, 0, SPEAR, x - 1.0, y)
    place(state, 1, WORKER, x - 1.0, y - 1.0 - rules.BASE_LAST - beyond)
    tick(state, heroes=0)
    chases = state.y[0, 0, spear] < y
    assert (struck == "worker") == chases
    assert (struck == "base") == (state.health[0, 1, 0] < rules.HEALTH[rules.BASE])


def test_an_enemy_out_of_notice_hides_no_base() -> None:
    state = bases_only()
    x, y = enemy_base(state)
    start = x - rules.NOTICE + 0.5
    (spear,) = place(state, 0, SPEAR, start, y)
    place(state, 1, WORKER, start, y - rules.NOTICE - 0.5)
    tick(state, heroes=0)
    assert state.x[0, 0, spear] > start


def test_an_attack_ends_with_its_target() -> None:
    """The next unit of the enemy is in the dead one's slot, and was not named."""
    state = bases_only()
    x, y = enemy_base(state)
    (spear,) = place(state, 0, SPEAR, x - 6.0, y)
    (named,) = place(state, 1, WORKER, x - 6.0, y - 1.0)
    state.health[0, 1, named] = 1
    state.order[0, 0, spear], state.target[0, 0, spear] = ATTACK, named
    state.queue[0, 1, 0], state.trained[0, 1] = BOW, rules.TRAIN_TICKS[BOW] - 2
    tick(state, heroes=0)
    assert not state.alive[0, 1, named]
    tick(state, heroes=0)
    assert state.alive[0, 1, named]
    assert state.kind[0, 1, named] == BOW
    assert state.order[0, 0, spear] == NO_OP


def test_no_more_is_taken_from_a_patch_than_it_holds() -> None:
    state = bases_only()
    state.patch[0] = (rules.LOAD, *[0] * (rules.PATCHES - 2), rules.PATCH_AMOUNT)
    x, y = float(state.patch_x[0, 0]), float(state.patch_y[0, 0])
    workers = place(state, 0, WORKER, x, y, number=3)
    at = (0, 0, workers)
    state.order[at], state.target[at], state.digging[at] = GATHER, 0, rules.DIG_TICKS - 1
    tick(state, heroes=0)
    assert state.carries[at].tolist() == [True, False, False]
    assert state.patch[0, 0] == 0
    tick(state, heroes=0)
    # They dig anew where there is more, rather than take what they dug here with them.
    assert not state.digging[at].any()
    assert state.target[0, 0, workers[1]] != 0
