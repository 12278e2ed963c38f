"""Which two players a further evaluation match would tell most about."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.special import logit

from ludus.league.payoff import Payoff
from ludus.league.ratings import ELO_SCALE

_PRIOR_PRECISION = (ELO_SCALE / 1000.0) ** 2
"""A player that has met nobody is within 1000 Elo of the others, as in `fit_elo`."""
_MOST_VARIANCE = 2.0 / _PRIOR_PRECISION
"""Of a difference: that of two players who have met nobody."""
_MOST_STRENGTH = 100.0
"""In log odds; beyond it nothing is uncertain, and numbers must stay finite."""

Floats = NDArray[np.float64]


def least_known_pair(
    payoff: Payoff,
    players: Sequence[str],
    *,
    links: Sequence[str] = (),
    episodes: int,
    without: Collection[frozenset[str]] = (),
) -> tuple[str, str] | None:
    """The two of `players` whose match would make the difference of their ratings most certain, later first.

    Pairs that have not met come before those that have: a rating cannot tell who beats whom in a circle.
    `links` are met by players and so connect them, but are not chosen. None where every pair is in `without`.

    With variance v of a difference, and win rate p expected, a match of n episodes takes v / (1 + 1 / (n p
    (1 - p) v)) from it. Ratings are fitted to log odds by least squares: one inverse, where the exact fit of
    `fit_elo` takes several, and near enough to compare pairs by.
    """
    size, everyone = len(players), (*players, *links)
    if size < 2:
        return None
    games, points = payoff.counts(everyone)
    np.fill_diagonal(games, 0.0)
    covariance, strengths = _fit(games, points)
    own = np.diag(covariance)[:size].copy()
    variance = own[:, None] + own
    covariance *= 2.0  # in place from here on: in a large league new arrays cost more than the sums
    variance -= covariance[:size, :size]
    # p (1 - p) without a logistic function of every pair: p / (1 - p) is the square of a quotient.
    root = np.exp(np.clip(strengths[:size], -_MOST_STRENGTH, _MOST_STRENGTH) / 2.0)
    quotient = root[:, None] / root
    quotient += 1.0 / quotient
    quotient *= quotient
    quotient /= episodes
    quotient += variance
    gain = np.multiply(variance, variance, out=variance)
    gain /= quotient
    gain += _MOST_VARIANCE * (games[:size, :size] == 0)  # more than any pair that has met can gain
    gain += _not_twice(size)
    place = {player: index for index, player in enumerate(players)}
    for pair in without:
        if len(pair) == 2 and pair <= place.keys():
            low, high = sorted(place[player] for player in pair)
            gain[low, high] = -np.inf
    earlier, later = divmod(int(gain.argmax()), size)
    return (players[later], players[earlier]) if gain[earlier, later] > -np.inf else None


@lru_cache(maxsize=4)
def _not_twice(size: int) -> Floats:
    """0 for every pair of players, the earlier one first, and no gain for the rest of the table."""
    return np.where(np.triu(np.ones((size, size), np.bool_), 1), 0.0, -np.inf)


def _fit(games: Floats, points: Floats) -> tuple[Floats, Floats]:
    """(covariance, of which the upper triangle counts; strengths), from the pairs that have met: in a large
    league they are few."""
    first, second = np.nonzero(games)
    once = first < second
    first, second = first[once], second[once]
    played = games[first, second]
    rates = (points[first, second] + 0.5) / (played + 1.0)
    information = played * rates * (1.0 - rates)
    precision = np.zeros(games.shape)
    precision[first, second] = precision[second, first] = -information
    np.fill_diagonal(precision, _PRIOR_PRECISION - precision.sum(axis=1))
    pull, size = information * logit(rates), len(games)
    # LAPACK counts columns first: the transposed matrix, which is the same one, is not copied.
    root, _ = dpotrf(precision.T, lower=1, overwrite_a=1)
    strengths, _ = dpotrs(root, np.bincount(first, pull, size) - np.bincount(second, pull, size), lower=1)
    lower, _ = dpotri(root, lower=1, overwrite_c=1)
    return lower.T, strengths
