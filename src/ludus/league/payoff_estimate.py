"""Estimates of the payoff of every pair, met or not, and the pair that is known least. The win rate of a pair has a
Beta prior around the Elo prediction, worth k games; k is weighted by its likelihood given the pairs that met."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from ludus.league.payoff import Floats, Payoff, chance_of_winning, largest_group
from ludus.league.ratings import ELO_SCALE, PRIOR_DEVIATION, fit_elo

Unidentified = Literal["one_player", "no_games", "all_even"]
"""Why a payoff cannot be estimated: too few players, no two have met, or every pair is even."""
WHY_NOT: dict[Unidentified, str] = {
    "one_player": "there are fewer than two frozen players",
    "no_games": "no two frozen players have met; evaluation.past or evaluation.ladder lets them",
    "all_even": "every pair of frozen players is even",
}
"""Reasons as text."""

_WORTH = 2.0 ** np.linspace(0.0, 10.0, 161)
"""Candidates for k, the games that the Elo prediction is worth: from 1 (no structure) to 1024 (pure Elo)."""
_KNOTS = slice(None, None, 16)
"""The subset of `_WORTH` at which the likelihood is computed; a spline interpolates the rest."""
_STREAM = 1000
"""Key of the random stream, distinct from those of matches and resets."""
_PRIOR_PRECISION = (ELO_SCALE / PRIOR_DEVIATION) ** 2
_MOST_VARIANCE = 2.0 / _PRIOR_PRECISION
"""Variance of the difference of two players without games."""
_MOST_STRENGTH = 100.0
"""Bound of strengths in log odds, which keeps numbers finite."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PayoffEstimate:
    """Expected payoff 2 w - 1 of each player (row) against each (column), w being the win rate."""

    players: tuple[str, ...]
    """The largest group of players connected by games; others cannot be compared with it."""
    payoff: Floats
    games: Floats
    _points: Floats
    _strength: Floats
    _worth: Floats
    """Probability of each of `_WORTH`."""

    @property
    def pairs_met(self) -> float:
        """Share of the pairs that have a game; Elo predicts the payoff of the others."""
        size = len(self.players)
        return float((self.games > 0).sum()) / (size * (size - 1))

    def sample(self, draws: int, seed: int) -> Iterator[Floats]:
        """Payoffs drawn from the posterior; a function of the seed and the games."""
        from scipy.linalg import solve_triangular  # slow to import: a reader of a saved fold does without

        key = np.random.SeedSequence(seed, spawn_key=(_STREAM,))
        rng = np.random.Generator(np.random.Philox(key))
        size = len(self.players)
        above = np.triu_indices(size, 1)
        games, points = self.games[above], self._points[above]
        roots: dict[int, Floats] = {}
        for _ in range(draws):
            choice = int(np.searchsorted(np.cumsum(self._worth)[:-1], rng.random(), side="right"))
            if choice not in roots:
                precision = _precision(_WORTH[choice], self.games, self._strength)
                roots[choice] = np.asarray(np.linalg.cholesky(precision))
            noise = solve_triangular(roots[choice], rng.standard_normal(size), lower=True, trans="T")
            strength = self._strength + noise
            prior = _WORTH[choice] * _chance(strength[above[0]] - strength[above[1]])
            rates = rng.beta(points + prior, games - points + _WORTH[choice] - prior)
            payoff = np.zeros((size, size))
            payoff[above] = 2.0 * rates - 1.0
            yield payoff - payoff.T


def estimate_payoff(payoff: Payoff, players: Sequence[str]) -> PayoffEstimate | Unidentified:
    """The expected payoff from win rates (a draw is half a win); margins do not count."""
    if len(players) < 2:
        return "one_player"
    games, points = payoff.counts(players)
    np.fill_diagonal(games, 0.0)
    np.fill_diagonal(points, 0.0)
    if not games.any():
        return "no_games"
    members = largest_group(games > 0)
    games, points = games[np.ix_(members, members)], points[np.ix_(members, members)]
    if np.allclose(points, games / 2, rtol=1e-12, atol=0.0):
        return "all_even"
    names = tuple(players[int(index)] for index in members)
    ratings = fit_elo(names, games, points)
    strength = np.array([rating.elo for rating in ratings.values()], np.float64) / ELO_SCALE
    chance = _chance(strength[:, None] - strength)
    worth = _weigh_worth(games, points, strength)
    rates = np.zeros_like(games)
    for index in np.flatnonzero(worth):
        rates += worth[index] * (points + _WORTH[index] * chance) / (games + _WORTH[index])
    matrix = 2.0 * rates - 1.0
    return PayoffEstimate(
        players=names, payoff=(matrix - matrix.T) / 2, games=games, _points=points, _strength=strength, _worth=worth
    )


def estimate_scores(payoff: Payoff, players: Sequence[str]) -> tuple[tuple[str, ...], Floats]:
    """Mean scores of the largest group of players connected by games. Pairs that have not met get the difference of the
    ratings that fit the known scores best (HodgeRank, Jiang et al. 2011). Empty if no two have met."""
    games, _ = payoff.counts(players)
    np.fill_diagonal(games, 0.0)
    met = games >= max(payoff.rules.min_games, np.finfo(np.float64).tiny)
    if not met.any():
        return (), np.zeros((0, 0))
    members = largest_group(met)
    block = np.ix_(members, members)
    games, met, scores = games[block], met[block], payoff.mean_scores(players)[block]
    weights = np.where(met, games, 0.0)
    laplacian = np.diag(weights.sum(axis=1)) - weights
    # Ratings that sum to 0: without the last term their level is free, and the matrix has no inverse.
    ratings = np.linalg.solve(laplacian + weights.max() / len(members), (weights * scores).sum(axis=1))
    most = float(np.abs(scores).max())
    expected = np.clip(ratings[:, None] - ratings, -most, most)
    return tuple(players[int(index)] for index in members), np.where(met, scores, expected)


def _chance(gap: Floats) -> Floats:
    """Win probability, clipped so that a Beta prior around it keeps some width."""
    return np.clip(chance_of_winning(gap), 1e-6, 1.0 - 1e-6)


def _precision(worth: float, games: Floats, strength: Floats) -> Floats:
    """Precision of the strengths. The less a pair has to follow Elo, the less its games tell about strengths."""
    chance = _chance(strength[:, None] - strength)
    information = games * (worth + 1.0) / (worth + games) * chance * (1.0 - chance)
    return np.asarray(np.diag(information.sum(axis=1) + _PRIOR_PRECISION) - information)


def _weigh_worth(games: Floats, points: Floats, strength: Floats) -> Floats:
    """Posterior weight of each of `_WORTH`, summing to 1. The strengths were fitted to the same games, which makes
    pairs look closer to Elo than they are; half the log determinant, from integrating them out, corrects for it."""
    from scipy.special import betaln  # slow to import, as above

    met = np.triu(games > 0, 1)
    n, won, prior = games[met], points[met], _chance(strength[:, None] - strength)[met]

    def log_likelihood(worth: float) -> float:
        strayed = betaln(won + worth * prior, n - won + worth - worth * prior)
        integrated = np.linalg.slogdet(_precision(worth, games, strength)).logabsdet / 2
        return float((strayed - betaln(worth * prior, worth - worth * prior)).sum() - integrated)

    knots = np.array([log_likelihood(float(worth)) for worth in _WORTH[_KNOTS]])
    logs = cubic_spline(np.log(_WORTH[_KNOTS]), knots, np.log(_WORTH))
    weights = np.exp(logs - logs.max())
    # Each of the others would cost a matrix and change no digit that is shown.
    weights[weights < 1e-4] = 0.0
    return np.asarray(weights / weights.sum())


def cubic_spline(x: Floats, y: Floats, at: Floats) -> Floats:
    """Not-a-knot cubic spline through at least four points. scipy's takes longer to import than this to run."""
    step = np.diff(x)
    slope = np.diff(y) / step
    bends = np.zeros((len(x), len(x)))  # rows: conditions on the second derivatives
    for i in range(1, len(x) - 1):
        bends[i, i - 1 : i + 2] = step[i - 1], 2.0 * (step[i - 1] + step[i]), step[i]
    bends[0, :3] = step[1], -(step[0] + step[1]), step[0]
    bends[-1, -3:] = step[-1], -(step[-2] + step[-1]), step[-2]
    second = np.linalg.solve(bends, np.concatenate([[0.0], 6.0 * np.diff(slope), [0.0]]))
    piece = np.clip(np.searchsorted(x, at) - 1, 0, len(step) - 1)
    left, right, width = at - x[piece], x[piece + 1] - at, step[piece]
    curved = second[piece] * (right**3 / width - right * width)
    curved += second[piece + 1] * (left**3 / width - left * width)
    return np.asarray((y[piece] * right + y[piece + 1] * left) / width + curved / 6.0)


def least_known_pair(
    payoff: Payoff,
    players: Sequence[str],
    *,
    links: Sequence[str] = (),
    episodes: int,
    without: Collection[frozenset[str]] = (),
) -> tuple[str, str] | None:
    """The pair of `players` whose match would reduce the variance of their rating difference most, later first; pairs
    that have not met come before others. `links` are opponents that connect the players but are not chosen. A match of
    n episodes reduces the variance v by v / (1 + 1 / (n p (1 - p) v)), where p is the expected win rate."""
    size, everyone = len(players), (*players, *links)
    if size < 2:
        return None
    games, points = payoff.counts(everyone)
    np.fill_diagonal(games, 0.0)
    covariance, strengths = _fit_log_odds(games, points)
    own = np.diag(covariance)[:size].copy()
    variance = own[:, None] + own
    covariance *= 2.0  # in place from here on: in a large league allocations cost more than the arithmetic
    variance -= covariance[:size, :size]
    # 1 / (p (1 - p)) without a logistic function per pair: p / (1 - p) is the square of a quotient.
    root = np.exp(np.clip(strengths[:size], -_MOST_STRENGTH, _MOST_STRENGTH) / 2.0)
    quotient = root[:, None] / root
    quotient += 1.0 / quotient
    quotient *= quotient
    quotient /= episodes
    quotient += variance
    gain = np.multiply(variance, variance, out=variance)
    gain /= quotient
    gain += _MOST_VARIANCE * (games[:size, :size] == 0)  # more than any pair that has met can gain
    gain += _each_pair_once(size)
    place = {player: index for index, player in enumerate(players)}
    for pair in without:
        if len(pair) == 2 and pair <= place.keys():
            low, high = sorted(place[player] for player in pair)
            gain[low, high] = -np.inf
    earlier, later = divmod(int(gain.argmax()), size)
    return (players[later], players[earlier]) if gain[earlier, later] > -np.inf else None


@lru_cache(maxsize=1)  # it grows with the square of the league
def _each_pair_once(size: int) -> Floats:
    """0 above the diagonal, minus infinity elsewhere."""
    return np.where(np.triu(np.ones((size, size), np.bool_), 1), 0.0, -np.inf)


def _fit_log_odds(games: Floats, points: Floats) -> tuple[Floats, Floats]:
    """(covariance, valid in the upper triangle; strengths), by least squares, which is cheaper than `fit_elo`."""
    from scipy.linalg.lapack import dpotrf, dpotri, dpotrs  # slow to import, as above

    first, second = np.nonzero(games)
    once = first < second
    first, second = first[once], second[once]
    played = games[first, second]
    rates = (points[first, second] + 0.5) / (played + 1.0)
    information = played * rates * (1.0 - rates)
    precision = np.zeros(games.shape)
    precision[first, second] = precision[second, first] = -information
    np.fill_diagonal(precision, _PRIOR_PRECISION - precision.sum(axis=1))
    pull, size = information * np.log(rates / (1.0 - rates)), len(games)
    # LAPACK is column-major: the transpose of this symmetric matrix is passed without a copy.
    root, _ = dpotrf(precision.T, lower=1, overwrite_a=1)
    strengths, _ = dpotrs(root, np.bincount(first, pull, size) - np.bincount(second, pull, size), lower=1)
    lower, _ = dpotri(root, lower=1, overwrite_c=1)
    return lower.T, strengths
