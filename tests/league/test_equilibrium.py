from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from small_leagues import exploitability

from ludus.league.equilibrium import nash, symmetric_nash

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def test_rock_paper_scissors() -> None:
    solution = nash(ROCK_PAPER_SCISSORS)
    for strategy in (solution.row, solution.column, symmetric_nash(ROCK_PAPER_SCISSORS)):
        np.testing.assert_allclose(strategy, 1 / 3, atol=1e-9)
    assert solution.value == pytest.approx(0.0, abs=1e-9)


def test_a_game_with_a_known_value() -> None:
    solution = nash([[3.0, -1.0], [-2.0, 4.0]])
    np.testing.assert_allclose(solution.row, [0.6, 0.4])
    np.testing.assert_allclose(solution.column, [0.5, 0.5])
    assert solution.value == pytest.approx(1.0)


def test_a_dominant_player_takes_all() -> None:
    win_rates = np.array([[0.5, 0.9, 0.8], [0.1, 0.5, 0.7], [0.2, 0.3, 0.5]])
    for strategy in (nash(win_rates - 0.5).row, symmetric_nash(win_rates - 0.5)):
        np.testing.assert_allclose(strategy, [1.0, 0.0, 0.0], atol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (5, 1), (7, 4), (40, 40), (60, 90)])
def test_random_games_leave_nothing_to_exploit(shape: tuple[int, int]) -> None:
    for seed in range(4):
        matrix = np.random.default_rng(seed).normal(size=shape) * 10.0 ** (seed - 2)
        solution = nash(matrix)
        assert solution.row.sum() == pytest.approx(1.0)
        assert solution.column.sum() == pytest.approx(1.0)
        assert exploitability(matrix, solution.row, solution.column) < 1e-8 * max(1.0, np.abs(matrix).max())


def test_a_league_of_random_win_rates_has_a_symmetric_equilibrium() -> None:
    for seed in range(5):
        noise = np.random.default_rng(seed).uniform(-0.5, 0.5, size=(30, 30))
        rates = 0.5 + (noise - noise.T) / 2
        for strategy in (nash(rates - 0.5).row, symmetric_nash(rates - 0.5)):
            assert exploitability(rates - 0.5, strategy, strategy) < 1e-8


@settings(deadline=None, max_examples=40)
@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.floats(-1e6, 1e6)))
def test_any_finite_game_is_solved(matrix: np.ndarray) -> None:
    solution = nash(matrix)
    for strategy in (solution.row, solution.column):
        assert strategy.sum() == pytest.approx(1.0)
        assert (strategy >= 0).all()
    assert exploitability(matrix, solution.row, solution.column) <= 1e-7 * max(1.0, np.abs(matrix).max())


def test_what_is_no_game_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"payoff\[1, 0\] is nan"):
        nash([[0.0, 1.0], [float("nan"), 0.0]])
    with pytest.raises(ValueError, match="at least one entry"):
        nash(np.zeros((0, 0)))
    with pytest.raises(ValueError, match=r"must add up to 0; of win rates w take 2 w - 1"):
        symmetric_nash([[0.5, 0.6], [0.6, 0.5]])
