"""Measures of a whole league: Nash average, Nash clusters, Hodge decomposition, diversity, population performance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ludus.league.equilibrium import check_antisymmetric, max_entropy_nash, symmetric_nash, zero_sum_value
from ludus.league.payoff import Floats, Payoff
from ludus.league.payoff_estimate import PayoffEstimate, Unidentified, estimate_payoff
from ludus.league.psro import alpha_rank

_IN_SUPPORT = 1e-7
"""Smallest share of the support of an equilibrium, relative to the largest."""
_LOG_ODDS_CAP = 0.998
"""Payoffs are clipped to this (999 wins to 1), because log odds are unbounded."""


def nash_clusters(payoff: Any) -> list[tuple[int, ...]]:
    """Layers of the league, as rows of the payoff: repeatedly remove the support of the equilibrium of largest entropy
    (Czarnecki et al. 2020). A transitive league has layers of one player; rock-paper-scissors is one layer."""
    matrix = check_antisymmetric(payoff)
    left = np.arange(len(matrix))
    clusters: list[tuple[int, ...]] = []
    while len(left):
        mixture = max_entropy_nash(matrix[np.ix_(left, left)])
        inside = mixture > _IN_SUPPORT * mixture.max()
        clusters.append(tuple(left[inside].tolist()))
        left = left[~inside]
    return clusters


def strengths(payoff: Floats, clusters: Sequence[tuple[int, ...]]) -> Floats:
    """Mean payoff of the players of each layer against the whole league."""
    against_all = payoff.sum(axis=1) / max(1, len(payoff) - 1)
    return np.array([against_all[list(players)].mean() for players in clusters])


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number with its credible interval, given the games."""

    value: float
    low: float
    high: float


def hodge(payoff: Any) -> tuple[Floats, float | None]:
    """Combinatorial Hodge decomposition (Balduzzi et al. 2018): ratings, whose differences are the transitive part (for
    log odds, they are Elo's), and the share of that part in the sum of squares; None if the matrix is 0."""
    matrix = check_antisymmetric(payoff)
    ratings = matrix.mean(axis=1)
    gradient = ratings[:, None] - ratings
    total = float((matrix**2).sum())
    return ratings, min(1.0, float((gradient**2).sum()) / total) if total > 0 else None


def log_odds(payoff: Floats) -> Floats:
    """Log odds of winning from payoffs 2 w - 1. Elo's model is linear in them, so its curl is 0."""
    return np.asarray(2.0 * np.arctanh(np.clip(payoff, -_LOG_ODDS_CAP, _LOG_ODDS_CAP)))


def nash_average(payoff: Any) -> tuple[Floats, Floats]:
    """(shares, skills) of Nash averaging (Balduzzi et al. 2018): the equilibrium, and payoffs against it, at most 0."""
    shares = max_entropy_nash(payoff)
    return shares, np.asarray(payoff, np.float64) @ shares


def effective_diversity(payoff: Any, mixture: Floats) -> float:
    """Half of what the mixture's players win from each other (Balduzzi et al. 2019), from 0 to 1/4."""
    return float(mixture @ np.maximum(check_antisymmetric(payoff), 0.0) @ mixture) / 2


def effective_players(mixture: Floats) -> float:
    """The number of players of a uniform mixture with the same entropy."""
    inside = mixture[mixture > 0]
    return float(np.exp(-(inside * np.log(inside)).sum()))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayerMeasures:
    player: str
    nash_share: Estimate
    """Share in the equilibrium of largest entropy."""
    nash_skill: Estimate
    """Mean payoff against that equilibrium: 0 for its players, below 0 for others."""
    alpha_rank: Estimate | None
    """Share in alpha-rank's stationary law; None if not requested."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A Nash cluster of the estimated payoff."""

    players: tuple[str, ...]
    strength: Estimate
    """Mean payoff against the whole league. The interval is conditional on the players of the layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueMeasures:
    """Measures of a league. They are None or empty if `unidentified` gives a reason."""

    unidentified: Unidentified | None = None
    left_out: tuple[str, ...] = ()
    """Players that no chain of games connects to the others. They are not measured."""
    pairs_met: float = 0.0
    """Share of the measured pairs with a game; Elo predicts the others."""
    confidence: float = 0.95
    """Confidence of every interval."""
    transitive_share: Estimate | None = None
    """Share of the log odds explained by ratings; the rest is cyclic."""
    effective_diversity: Estimate | None = None
    effective_players: Estimate | None = None
    """Effective number of players in the equilibrium."""
    players: tuple[PlayerMeasures, ...] = ()
    layers: tuple[Layer, ...] = ()
    """Strongest first."""


def measure(
    payoff: Payoff,
    players: Sequence[str],
    *,
    confidence: float = 0.95,
    draws: int = 32,
    seed: int = 0,
    with_alpha_rank: bool = True,
) -> LeagueMeasures:
    """All measures of the league of `players`, from its win rates, with intervals from `draws` payoffs sampled given
    the games. Single numbers are medians of the draws, because the expected payoff is smoother than any draw."""
    _check_sampling(confidence, draws)
    estimate = estimate_payoff(payoff, players)
    if not isinstance(estimate, PayoffEstimate):
        return LeagueMeasures(unidentified=estimate, left_out=tuple(players), confidence=confidence)
    shares, skills = nash_average(estimate.payoff)
    clusters = nash_clusters(estimate.payoff)
    drawn, rank_draws = [], []
    for sample in estimate.sample(draws, seed):
        drawn.append(_measure_draw(sample, clusters))
        if with_alpha_rank:
            rank_draws.append(alpha_rank(sample))
    numbers, share_draws, skill_draws, strength_draws = (np.array(column) for column in zip(*drawn, strict=True))
    ranks: Iterable[Estimate | None] = [None] * len(shares)
    if with_alpha_rank:
        ranks = _intervals(alpha_rank(estimate.payoff), np.array(rank_draws), confidence)
    transitive, diversity, size = _intervals(np.median(numbers, axis=0), numbers, confidence)
    per_player = zip(
        estimate.players,
        _intervals(shares, share_draws, confidence),
        _intervals(skills, skill_draws, confidence),
        ranks,
        strict=True,
    )
    layers = zip(clusters, _intervals(strengths(estimate.payoff, clusters), strength_draws, confidence), strict=True)
    measured = set(estimate.players)
    return LeagueMeasures(
        left_out=tuple(player for player in players if player not in measured),
        pairs_met=estimate.pairs_met,
        confidence=confidence,
        transitive_share=transitive,
        effective_diversity=diversity,
        effective_players=size,
        players=tuple(
            PlayerMeasures(player=player, nash_share=share, nash_skill=skill, alpha_rank=rank)
            for player, share, skill, rank in per_player
        ),
        layers=tuple(
            Layer(players=tuple(estimate.players[row] for row in cluster), strength=strength)
            for cluster, strength in layers
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PopulationComparison:
    """What the first population wins from the second, from -1 to 1, if both play their best mixture."""

    unidentified: Unidentified | Literal["no_chain"] | None = None
    """"no_chain": the largest group of players connected by games has no player of one population."""
    left_out: tuple[str, ...] = ()
    performance: Estimate | None = None


def compare_populations(
    payoff: Payoff,
    first: Sequence[str],
    second: Sequence[str],
    *,
    confidence: float = 0.95,
    draws: int = 32,
    seed: int = 0,
) -> PopulationComparison:
    """Relative population performance of two groups of players, such as two runs whose players have met."""
    _check_sampling(confidence, draws)
    both = sorted(set(first) & set(second))
    if both:
        raise ValueError(f"player {both[0]!r} is in both populations; name each in one of them")
    everyone = (*first, *second)
    estimate = estimate_payoff(payoff, everyone)
    if not isinstance(estimate, PayoffEstimate):
        return PopulationComparison(unidentified=estimate, left_out=everyone)
    row = {player: index for index, player in enumerate(estimate.players)}
    left_out = tuple(player for player in everyone if player not in row)
    rows, columns = ([row[player] for player in side if player in row] for side in (first, second))
    if not rows or not columns:
        return PopulationComparison(unidentified="no_chain", left_out=left_out)
    block = np.ix_(rows, columns)
    value = zero_sum_value(estimate.payoff[block])
    drawn = [zero_sum_value(sample[block]) for sample in estimate.sample(draws, seed)]
    (performance,) = _intervals(np.array([value]), np.array(drawn)[:, None], confidence)
    return PopulationComparison(left_out=left_out, performance=performance)


def _measure_draw(
    payoff: Floats, clusters: Sequence[tuple[int, ...]]
) -> tuple[tuple[float, float, float], Floats, Floats, Floats]:
    """Single numbers, shares, skills and strengths of the given layers, for one payoff."""
    shares = symmetric_nash(payoff)  # drawn payoffs have no ties, and so one equilibrium
    _, transitive = hodge(log_odds(payoff))
    numbers = (transitive or 0.0, effective_diversity(payoff, shares), effective_players(shares))
    return numbers, shares, payoff @ shares, strengths(payoff, clusters)


def _intervals(values: Floats, drawn: Floats, confidence: float) -> Iterator[Estimate]:
    """Credible interval of each column of the draws, widened to hold the value. Weibull's quantiles are unbiased for
    few draws; the default ones would make intervals too narrow."""
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1.0 - tail], axis=0, method="weibull")
    for value, below, above in zip(values, np.minimum(low, values), np.maximum(high, values), strict=True):
        yield Estimate(value=float(value), low=float(below), high=float(above))


def _check_sampling(confidence: float, draws: int) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if draws < 2:
        raise ValueError(f"draws must be at least 2, got {draws}; an interval needs a spread")
