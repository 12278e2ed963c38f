from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from small_leagues import DOMINATED, ROCK_PAPER_SCISSORS, chain, exploitability, random_payoff

from ludus.league.equilibrium import max_entropy_nash
from ludus.league.psro import (
    META_SOLVERS,
    MetaSolver,
    alpha_rank,
    projected_replicator,
    rectified_nash,
    rectified_opponents,
)

UNEVEN = np.array([[0.0, -1.0, 0.2], [1.0, 0.0, -1.0], [-0.2, 1.0, 0.0]])
"""Rock-paper-scissors in which rock hardly beats scissors; its equilibrium is (5, 1, 5) / 11."""


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(META_SOLVERS)), st.integers(1, 12), st.integers(0, 10**6), st.booleans())
def test_every_solver_gives_probabilities(name: str, size: int, seed: int, sure: bool) -> None:
    payoff = random_payoff(size, seed)
    mixture = META_SOLVERS[name](np.sign(payoff) if sure else payoff)
    assert mixture.shape == (size,)
    assert (mixture >= 0).all()
    assert mixture.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("name", META_SOLVERS)
def test_where_nobody_differs_all_are_alike(name: str) -> None:
    for payoff in (np.zeros((1, 1)), np.zeros((4, 4)), ROCK_PAPER_SCISSORS):
        np.testing.assert_allclose(META_SOLVERS[name](payoff), 1 / len(payoff), atol=1e-6)


@pytest.mark.parametrize("name", sorted(set(META_SOLVERS) - {"uniform"}))
def test_dominated_players_get_next_to_nothing(name: str) -> None:
    np.testing.assert_allclose(META_SOLVERS[name](DOMINATED), [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=5e-3)


def test_projected_replicator_agrees_with_the_only_equilibrium() -> None:
    np.testing.assert_allclose(max_entropy_nash(UNEVEN), [5 / 11, 1 / 11, 5 / 11], atol=1e-9)
    np.testing.assert_allclose(projected_replicator(UNEVEN), [5 / 11, 1 / 11, 5 / 11], atol=5e-3)
    for seed in range(5):
        payoff = random_payoff(50, seed)
        mixture = projected_replicator(payoff)
        assert (payoff @ mixture).max() < 0.02 < (payoff @ np.full(50, 0.02)).max()


def test_projected_replicator_keeps_everybody_in_the_game() -> None:
    assert projected_replicator(chain(5), exploration=0.1).min() >= 0.1 / 5 - 1e-12


def test_alpha_rank_of_a_chain_is_all_on_the_top() -> None:
    shares = alpha_rank(chain(30))
    assert shares[-1] == pytest.approx(1.0, abs=1e-6)


def test_alpha_rank_follows_who_beats_whom_and_not_by_how_much() -> None:
    np.testing.assert_allclose(alpha_rank(UNEVEN), 1 / 3, atol=1e-6)


def test_alpha_rank_of_two_players_is_the_ratio_of_their_takeovers() -> None:
    payoff = np.array([[0.0, 0.002], [-0.002, 0.0]])
    shares = alpha_rank(payoff, alpha=10.0, population=20)
    # rho(x) / rho(-x) = e^((population - 1) x)
    assert shares[0] / shares[1] == pytest.approx(np.exp(19 * 10.0 * 0.002))


def test_alpha_rank_solves_its_own_chain() -> None:
    payoff = random_payoff(12, 3) / 100
    shares = alpha_rank(payoff, alpha=10.0, population=20)
    distance = 10.0 * payoff.T + np.eye(12)  # [resident, mutant]; the diagonal is never used
    moves = np.expm1(-distance) / np.expm1(-20 * distance) / 11
    np.fill_diagonal(moves, 0.0)
    np.fill_diagonal(moves, 1.0 - moves.sum(axis=1))
    np.testing.assert_allclose(shares @ moves, shares, atol=1e-7)
    assert shares.max() > 1.5 * shares.min()


def test_rectified_nash_trains_against_those_that_a_player_does_not_lose_to() -> None:
    rock, paper, scissors = rectified_opponents(ROCK_PAPER_SCISSORS)
    np.testing.assert_allclose(rock, [0.5, 0.0, 0.5], atol=1e-9)
    np.testing.assert_allclose(paper, [0.5, 0.5, 0.0], atol=1e-9)
    np.testing.assert_allclose(scissors, [0.0, 0.5, 0.5], atol=1e-9)
    # Out of the equilibrium, and beaten by all of it: nothing to amplify, the equilibrium itself.
    np.testing.assert_allclose(rectified_opponents(DOMINATED)[4], max_entropy_nash(DOMINATED), atol=1e-9)
    for seed in range(3):
        payoff = random_payoff(20, seed)
        nash, rows = max_entropy_nash(payoff), rectified_opponents(payoff)
        np.testing.assert_allclose(rows.sum(axis=1), 1.0)
        for player in np.flatnonzero(nash > 1e-9):
            weights = nash * (payoff[player] >= 0)
            np.testing.assert_allclose(rows[player], weights / weights.sum(), atol=1e-9)
        np.testing.assert_allclose(rectified_nash(payoff), nash @ rows)


def respond(game: np.ndarray, solver: MetaSolver) -> tuple[np.ndarray, np.ndarray]:
    """Policy-space response oracles with exact best responses: mixtures over rows and over columns.

    A player holds a row and a column, and plays either side of the game half the time.
    """
    players = [(0, 0)]
    while True:
        rows, columns = np.array(players).T
        wins = game[np.ix_(rows, columns)]
        mixture = solver((wins - wins.T) / 2)
        row, column = (
            np.bincount(picks, weights=mixture, minlength=size)
            for picks, size in zip((rows, columns), game.shape, strict=True)
        )
        answer = int((game @ column).argmax()), int((row @ game).argmin())
        if answer in players:
            return row, column
        players.append(answer)


@pytest.mark.parametrize(
    "game",
    [ROCK_PAPER_SCISSORS, UNEVEN, random_payoff(50, 0)]
    + [np.random.default_rng(seed).uniform(-1, 1, size=(50, 50)) for seed in range(3)],
)
def test_response_oracles_reach_the_equilibrium_of_the_whole_game(game: np.ndarray) -> None:
    row, column = respond(game, META_SOLVERS["nash"])
    assert exploitability(game, row, column) < 1e-6
