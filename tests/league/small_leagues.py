"""Payoffs with known answers, and games played by them, for the tests of measures and meta-solvers."""

from __future__ import annotations

import numpy as np
from league_rows import match_of, result_of

from ludus.league.payoff import Payoff, PayoffRules

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
DOMINATED = np.zeros((5, 5))
"""Rock, paper, scissors, and two players that lose to all three of them."""
DOMINATED[:3, :3] = ROCK_PAPER_SCISSORS
DOMINATED[:3, 3:], DOMINATED[3:, :3] = 0.5, -0.5
DOMINATED[3, 4], DOMINATED[4, 3] = 0.9, -0.9


def random_payoff(size: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).uniform(-1.0, 1.0, size=(size, size))
    return np.asarray((noise - noise.T) / 2)


def chain(size: int) -> np.ndarray:
    """The later a player, the stronger: Elo's model with one unit of log odds between neighbours."""
    rank = np.arange(size)
    return np.tanh((rank[:, None] - rank) / 2)


def names(size: int) -> list[str]:
    return [f"p{index}" for index in range(size)]


def played(payoff: np.ndarray, games: int, rng: np.random.Generator | None = None) -> Payoff:
    """Every pair plays so many games, by chance or, without `rng`, exactly as the payoff says."""
    book = Payoff(PayoffRules(decay=1.0))
    for i in range(len(payoff)):
        for j in range(i + 1, len(payoff)):
            chance = (1.0 + payoff[i, j]) / 2
            wins = round(games * chance) if rng is None else int(rng.binomial(games, chance))
            match = match_of(f"p{i}", f"p{j}", episodes=games)
            book.record(match, result_of(match, (wins, 0, games - wins)))
    return book


def exploitability(payoff: np.ndarray, row: np.ndarray, column: np.ndarray) -> float:
    """The sum of what both sides could gain by best responses; 0 at an equilibrium."""
    return float((payoff @ column).max() - (row @ payoff).min())
