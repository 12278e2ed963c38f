from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.data.game_tree import OVER
from ludus.games.builtin.tic_tac_toe import TicTacToe, TicTacToeRules, TicTacToeState, TicTacToeTables
from ludus.games.game import allocate_actions

Play = Callable[..., NDArray[np.float32]]
SOURCE = TicTacToe()
BOTS = SOURCE.bots()


def fresh_tables(num_tables: int) -> TicTacToeTables:
    game = SOURCE.tables(num_tables)
    assert isinstance(game, TicTacToeTables)
    game.reset(np.arange(num_tables), np.zeros(num_tables, np.uint64))
    return game


def play_moves(game: TicTacToeTables, moves: str) -> None:
    actions = allocate_actions(game.spec, game.num_tables)
    for move in moves:
        actions[0]["move"][:] = int(move)
        game.step(actions)


def test_the_whole_tree_has_the_known_numbers_of_games() -> None:
    """255,168 games: 131,184 won by the first seat, 77,904 by the second, 46,080 drawn."""
    ways: Counter[TicTacToeState] = Counter({SOURCE.tree(): 1})
    ends: Counter[float] = Counter()
    positions = 0
    while ways:
        positions += len(ways)
        after: Counter[TicTacToeState] = Counter()
        for state, number in ways.items():
            if state.seat() == OVER:
                ends[state.returns()[0]] += number
                continue
            for action in state.legal_actions():
                after[state.child(action)] += number
        ways = after
    assert positions == 5478
    assert ends == {1.0: 131_184, -1.0: 77_904, 0.0: 46_080}


def test_tables_play_as_the_tree() -> None:
    num_tables = 100
    game = fresh_tables(num_tables)
    states = [SOURCE.tree()] * num_tables
    actions = allocate_actions(game.spec, num_tables)
    rng = np.random.default_rng(0)
    view = game.view
    while not view.over.all():
        for table in np.flatnonzero(~view.over).tolist():
            state = states[table]
            seat = state.seat()
            assert game.tree_state(table) == state
            assert view.to_act[table].tolist() == [seat == 0, seat == 1]
            assert np.flatnonzero(view.legal[0]["move"][table, seat]).tolist() == state.legal_actions()
            assert (view.observation[0]["board"][table, seat] == state.observation()["board"]).all()
            move = int(rng.choice(state.legal_actions()))
            actions[0]["move"][table, seat] = move
            states[table] = state.child(move)
        game.step(actions)
    for table, state in enumerate(states):
        assert state.seat() == OVER
        assert view.score[table].tolist() == view.reward[table].tolist() == list(state.returns())


def test_a_full_board_is_a_draw() -> None:
    game = fresh_tables(1)
    play_moves(game, "01243576")
    assert not game.view.over[0]
    play_moves(game, "8")
    assert game.view.over[0]
    assert game.view.score[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("moves", "message"), [("44", "seat 1: move 4 is not one of"), ("9", "seat 0: move 9 is not one of")]
)
def test_names_the_move_that_is_not_legal(moves: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        play_moves(fresh_tables(1), moves)


@pytest.mark.parametrize(("moves", "cells"), [("", [4]), ("4", [0, 2, 6, 8]), ("0415", [2]), ("041", [2])])
def test_rules(moves: str, cells: list[int]) -> None:
    state = SOURCE.tree()
    for move in moves:
        state = state.child(int(move))
    legal = np.isin(np.arange(9), state.legal_actions())[None]
    board = state.observation()["board"][None]
    assert np.flatnonzero(TicTacToeRules().probabilities({"board": board}, legal)[0]).tolist() == cells


@pytest.mark.parametrize("other", ["random", "rules", "alpha_beta_2"])
def test_perfect_play_never_loses(play: Play, other: str) -> None:
    assert play(SOURCE, [BOTS["perfect"], BOTS[other]])[:, 0].min() >= 0.0
    assert play(SOURCE, [BOTS[other], BOTS["perfect"]])[:, 1].min() >= 0.0


def test_perfect_play_against_itself_is_drawn(play: Play) -> None:
    assert not play(SOURCE, [BOTS["perfect"], BOTS["perfect"]]).any()


@pytest.mark.parametrize(
    ("stronger", "weaker"),
    [("rules", "random"), ("alpha_beta_2", "random"), ("uct_100", "random"), ("uct_100", "alpha_beta_2")],
)
def test_ladder(play: Play, stronger: str, weaker: str) -> None:
    """Mean score over both seats."""
    first = play(SOURCE, [BOTS[stronger], BOTS[weaker]], 60)[:, 0]
    second = play(SOURCE, [BOTS[weaker], BOTS[stronger]], 60)[:, 1]
    assert np.concatenate([first, second]).mean() > 0.15
