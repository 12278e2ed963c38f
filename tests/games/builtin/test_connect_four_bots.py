from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.bots import GreedyBot
from ludus.games.builtin.connect_four import (
    ConnectFour,
    ConnectFourAlphaBeta,
    ConnectFourRules,
    ConnectFourState,
    has_four,
)
from ludus.games.search import AlphaBetaBot

Play = Callable[..., NDArray[np.float32]]
BOTS = ConnectFour().bots()


def position(moves: str) -> ConnectFourState:
    state = ConnectFourState(0, 0)
    for move in moves:
        state = state.child(int(move))
    return state


def random_positions(number: int, seed: int, least_plies: int = 0) -> list[ConnectFourState]:
    """Unfinished positions of random games."""
    random = Random(seed)
    found: list[ConnectFourState] = []
    while len(found) < number:
        state = ConnectFourState(0, 0)
        for _ in range(random.randrange(least_plies, 42)):
            if state.seat() >= 0:
                state = state.child(random.choice(state.legal_actions()))
        if state.seat() >= 0:
            found.append(state)
    return found


def chosen_columns(bot: GreedyBot, states: list[ConnectFourState]) -> list[list[int]]:
    board = np.stack([state.observation()["board"] for state in states])
    legal = np.array([[column in state.legal_actions() for column in range(7)] for state in states])
    probs = bot.probabilities({"board": board}, legal)
    assert np.allclose(probs.sum(axis=1), 1.0)
    assert all(len({*row[row > 0]}) == 1 for row in probs)  # ties are broken evenly
    return [np.flatnonzero(row).tolist() for row in probs]


@pytest.mark.parametrize(("depth", "number"), [(1, 300), (2, 300), (3, 100), (4, 60), (5, 20)])
def test_alpha_beta_chooses_as_the_generic_one(depth: int, number: int) -> None:
    states = random_positions(number, seed=depth) + random_positions(number // 2, seed=depth, least_plies=30)
    generic = AlphaBetaBot(depth=depth)
    expected = [generic.best_actions(state, Random(0)) for state in states]
    assert chosen_columns(ConnectFourAlphaBeta(depth=depth), states) == expected


def test_depth_two_wins_at_once_or_never_lets_the_other_win_next() -> None:
    states = random_positions(300, seed=0)
    for state, chosen in zip(states, chosen_columns(ConnectFourAlphaBeta(depth=2), states), strict=True):
        moves = state.legal_actions()
        wins = [move for move in moves if has_four(state.child(move).other)]
        safe = [
            move
            for move in moves
            if not any(has_four(state.child(move).child(reply).other) for reply in state.child(move).legal_actions())
        ]
        assert chosen == (wins or safe or moves)


def test_alpha_beta_prefers_the_quick_win() -> None:
    # Column 6 wins now; columns 1 and 4 make two more threats and win two plies later whatever comes.
    assert chosen_columns(ConnectFourAlphaBeta(depth=5), [position("2030626363")]) == [[6]]


@pytest.mark.parametrize(
    ("moves", "columns"),
    [
        ("", [3]),
        ("343434", [3]),  # wins, though the other threatens as well
        ("34343", [3]),  # the other's line is stopped
        ("333333", [2, 4]),  # the centre is full: nearest to it, either side
        ("112233", [0, 4]),  # two ways to win
    ],
)
def test_rules(moves: str, columns: list[int]) -> None:
    assert chosen_columns(ConnectFourRules(), [position(moves)]) == [columns]


@pytest.mark.parametrize(
    ("stronger", "weaker", "least"),
    [
        ("rules", "random", 0.8),
        ("alpha_beta_2", "random", 0.7),
        ("alpha_beta_4", "alpha_beta_2", 0.3),
        ("uct_100", "random", 0.8),
        ("uct_100", "alpha_beta_2", 0.3),
    ],
)
def test_ladder(play: Play, stronger: str, weaker: str, least: float) -> None:
    """Mean score over both seats."""
    num_tables = 12 if "uct" in stronger else 150
    first = play(ConnectFour(), [BOTS[stronger], BOTS[weaker]], num_tables)[:, 0]
    second = play(ConnectFour(), [BOTS[weaker], BOTS[stronger]], num_tables)[:, 1]
    assert np.concatenate([first, second]).mean() > least


def test_rollouts_play_by_the_rules() -> None:
    """Random play from the start is near a known balance, and a won position cannot be lost."""
    random = Random(0)
    outcomes = [ConnectFourState(0, 0).rollout(random)[0] for _ in range(2000)]
    assert 0.05 < np.mean(outcomes) < 0.17  # seat 0 wins 55.6 %, seat 1 44.2 %
    assert set(outcomes) <= {-1.0, 0.0, 1.0}
    last_cell = position("436014551150160155104632660465204242223333"[:-1])
    assert last_cell.rollout(random) == (0.0, 0.0)


def test_depth_must_be_positive() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        ConnectFourAlphaBeta(depth=0)
