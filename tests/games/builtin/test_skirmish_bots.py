from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.data.trees import put
from ludus.games.builtin.skirmish import Mode, Skirmish, SkirmishTables
from ludus.games.builtin.skirmish_bots import CYCLE
from ludus.games.builtin.skirmish_rules import ADVANCE, GATHER, HORSE, NO_OP
from ludus.games.builtin.skirmish_view import ORDER, SELF
from ludus.games.game import allocate_actions

Play = Callable[..., NDArray[np.float32]]
SOURCE = Skirmish()
BOTS = SOURCE.bots()


def test_the_strategies_form_a_cycle_of_all() -> None:
    assert len(CYCLE) >= 4
    assert {*CYCLE, "random"} == set(BOTS)


@pytest.mark.slow
@pytest.mark.parametrize(("winner", "loser"), list(zip(CYCLE, (*CYCLE[1:], CYCLE[0]), strict=True)))
def test_each_strategy_beats_the_next(winner: str, loser: str, play: Play) -> None:
    first = play(SOURCE, [BOTS[winner], BOTS[loser]], 12)[:, 0]
    second = play(SOURCE, [BOTS[loser], BOTS[winner]], 12)[:, 1]
    assert (np.concatenate([first, second]) > 0).mean() >= 0.7


def test_a_rush_beats_random_play_in_both_seats(play: Play) -> None:
    assert (play(SOURCE, [BOTS["rush"], BOTS["random"]], 4)[:, 0] > 0).all()
    assert (play(SOURCE, [BOTS["random"], BOTS["rush"]], 4)[:, 1] > 0).all()


def orders_given(mode: Mode, bot: str) -> tuple[int, int]:
    """How many orders other than to train a bot gives to units that carry one out already, of how many."""
    source = Skirmish(mode=mode)
    game, bots, rng = source.tables(2), source.bots(), np.random.default_rng(0)
    game.reset(np.arange(2), np.arange(2, dtype=np.uint64))
    again = orders = 0
    while game.view.to_act.any():
        actions = allocate_actions(game.spec, game.num_tables)
        tables, mine = np.nonzero(game.view.to_act)
        put(actions[0], (tables, mine), bots[bot].act(game, tables, mine, rng))
        entities = game.view.observation[0]["entities"]
        for table, seat in zip(tables.tolist(), mine.tolist(), strict=True):
            action = int(actions[0]["action"][table, seat])
            if NO_OP < action <= GATHER:
                seen = entities[table, seat]
                picks = np.flatnonzero(seen[:, SELF])
                if mode == "1v1":
                    picks = actions[0]["units"][table, seat]
                    picks = picks[picks >= 0]
                orders += 1
                again += int((seen[picks, ORDER + action - 1] > 0).any())
        game.step(actions)
    return again, orders


@pytest.mark.parametrize(
    ("mode", "bot"), [("1v1", "rush"), ("1v1", "boom"), ("3v3", "push"), ("3v3", "hunt"), ("3v3", "careful")]
)
def test_an_order_that_is_carried_out_is_not_given_again(mode: Mode, bot: str) -> None:
    again, orders = orders_given(mode, bot)
    assert orders > 10
    assert again == 0


def test_an_army_at_its_goal_is_left_alone() -> None:
    """Otherwise a commander would do nothing but send it there."""
    game = SOURCE.tables(1)
    assert isinstance(game, SkirmishTables)
    game.reset(np.array([0]), np.array([0], np.uint64))
    state, army = game.state, slice(5, 5 + 8)
    state.resources[:] = 0
    state.alive[0, 0, army], state.kind[0, 0, army], state.health[0, 0, army] = True, HORSE, 1
    state.order[0, 0, 1:5] = GATHER
    for at in (state.x, state.y):
        at[0, 0, army] = 16.0
    still = allocate_actions(game.spec, 1)
    game.step(still)
    chosen = BOTS["horses"].act(game, np.array([0]), np.array([0]), np.random.default_rng(0))
    assert chosen["action"].tolist() == [ADVANCE]
    for at in (state.x, state.y):
        at[0, 0, army] = at[0, 1, 0]
    state.alive[0, 0, 5 + 7] = False
    game.step(still)
    chosen = BOTS["horses"].act(game, np.array([0]), np.array([0]), np.random.default_rng(0))
    assert chosen["action"].tolist() == [NO_OP]


def test_scripted_heroes_beat_random_ones(play: Play) -> None:
    source = Skirmish(mode="3v3")
    bots = source.bots()
    for name in ("push", "hunt"):
        assert (play(source, [bots[name]] * 3 + [bots["random"]] * 3, 6)[:, 0] > 0).mean() > 0.8
