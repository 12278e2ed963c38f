from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import entr
from small_leagues import DOMINATED, ROCK_PAPER_SCISSORS, chain, random_payoff

from ludus.league.equilibrium import check_antisymmetric, max_entropy_nash, nash, symmetric_nash, zero_sum_value


@pytest.mark.parametrize("seed", range(10))
def test_nobody_beats_the_equilibrium_of_a_random_league(seed: int) -> None:
    payoff = random_payoff(50, seed)
    for solve in (symmetric_nash, max_entropy_nash):
        mixture = solve(payoff)
        assert (mixture >= 0).all()
        assert mixture.sum() == pytest.approx(1.0)
        assert (payoff @ mixture).max() < 1e-6
    np.testing.assert_allclose(mixture, nash(payoff).row, atol=1e-7)  # the only one there is


@settings(deadline=None, max_examples=60)
@given(arrays(np.int8, st.integers(1, 7).map(lambda n: (n, n)), elements=st.integers(-2, 2)))
def test_ties_are_no_obstacle(noise: np.ndarray) -> None:
    payoff = (noise - noise.T) / 2.0
    for solve in (symmetric_nash, max_entropy_nash):
        mixture = solve(payoff)
        assert mixture.sum() == pytest.approx(1.0)
        assert (payoff @ mixture).max() <= 1e-6
    assert entr(mixture).sum() >= entr(nash(payoff).row).sum() - 1e-6


def test_known_equilibria() -> None:
    np.testing.assert_allclose(max_entropy_nash(ROCK_PAPER_SCISSORS), 1 / 3, atol=1e-9)
    np.testing.assert_allclose(max_entropy_nash(DOMINATED), [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=1e-9)
    np.testing.assert_allclose(max_entropy_nash(chain(6)), [0, 0, 0, 0, 0, 1], atol=1e-9)


def test_of_many_equilibria_the_most_even_is_taken() -> None:
    np.testing.assert_allclose(max_entropy_nash(np.zeros((4, 4))), 0.25)
    # Two even players above a third: any mixture of the two is an equilibrium.
    payoff = np.array([[0.0, 0.0, 0.5], [0.0, 0.0, 0.1], [-0.5, -0.1, 0.0]])
    np.testing.assert_allclose(max_entropy_nash(payoff), [0.5, 0.5, 0.0], atol=1e-7)
    # The third beats the second, so that the first must have at least 0.7 to keep it out.
    payoff = np.array([[0.0, 0.0, 0.3], [0.0, 0.0, -0.7], [-0.3, 0.7, 0.0]])
    np.testing.assert_allclose(max_entropy_nash(payoff), [0.7, 0.3, 0.0], atol=1e-7)


def test_copies_share_what_the_original_had() -> None:
    seats = [0, 0, 0, 1, 2]
    mixture = max_entropy_nash(ROCK_PAPER_SCISSORS[np.ix_(seats, seats)])
    np.testing.assert_allclose(mixture, [1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 3], atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (6, 2), (20, 35), (50, 50)])
def test_the_value_of_a_game_with_two_sides(shape: tuple[int, int]) -> None:
    for seed in range(3):
        payoff = np.random.default_rng(seed).normal(size=shape)
        assert zero_sum_value(payoff) == pytest.approx(nash(payoff).value, abs=1e-8)
    assert zero_sum_value(np.full(shape, -0.3)) == pytest.approx(-0.3)


def test_what_is_no_league_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="square"):
        check_antisymmetric(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"payoff\[0, 1\] is nan"):
        check_antisymmetric([[0.0, np.nan], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"payoff\[0, 1\] = 0.6 and payoff\[1, 0\] = 0.4 must add up to 0"):
        check_antisymmetric([[0.0, 0.6], [0.4, 0.0]])


def test_many_near_ties_still_give_an_equilibrium() -> None:
    """Two hundred snapshots of one player, each measured against its ten predecessors only: the linear
    programme behind the most even equilibrium gives up on such payoffs, and the solver must not."""
    rng = np.random.default_rng(3)
    size = 200
    rows, columns = np.tril_indices(size, -1)
    near = rows - columns <= 10
    payoff = np.zeros((size, size))
    payoff[rows[near], columns[near]] = 2 * rng.binomial(64, 0.52, near.sum()) / 64 - 1
    payoff -= payoff.T
    mixture = max_entropy_nash(payoff)
    assert mixture.sum() == pytest.approx(1.0)
    assert mixture.min() >= 0
    assert (payoff @ mixture).max() < 1e-6
