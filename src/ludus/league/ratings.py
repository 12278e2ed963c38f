"""Ratings: Elo with error bars, fitted to the payoff, and OpenSkill, folded from the ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from openskill.models import PlackettLuce

from ludus.data.checks import require_in, unknown
from ludus.data.records import (
    AnyEvent,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    MatchVoid,
    PlayerReset,
    Result,
    RunStarted,
)
from ludus.league.payoff import Floats, chance_of_winning, groups, normal_quantile

ELO_SCALE = 400.0 / math.log(10.0)
"""Elo points per unit of log odds: 400 points are odds of 10 to 1."""
WIDE_ELO = 200.0
"""Half a 95 % interval beyond which a rating says nothing yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rating:
    """Elo relative to the anchor. Both numbers are None without a chain of games to the anchor."""

    player: str
    elo: float | None = None
    standard_error: float | None = None
    games: float = 0.0

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        if self.elo is None or self.standard_error is None:
            return None
        half = normal_quantile(0.5 + confidence / 2) * self.standard_error
        return self.elo - half, self.elo + half


PRIOR_DEVIATION = 1000.0
"""Standard deviation of the prior of Elo. It keeps players that never lost finite and hardly moves the others."""


def fit_elo(players: Sequence[str], games: Floats, points: Floats, *, anchor: str | None = None) -> dict[str, Rating]:
    """Maximum a posteriori Bradley-Terry strengths, from `Payoff.counts`; a draw is half a win for each. Standard
    errors are those of the difference to the anchor (default: the first player)."""
    if not players:
        raise ValueError("fit_elo needs at least one player")
    anchor = players[0] if anchor is None else anchor
    if anchor not in players:
        raise ValueError(unknown("anchor", anchor, players))
    games, points = _check_counts(len(players), games, points)
    group = groups(games > 0)
    origin = list(players).index(anchor)
    members = np.flatnonzero(group == group[origin])
    total = games.sum(axis=1)
    rated = {player: Rating(player=player, games=float(played)) for player, played in zip(players, total, strict=True)}
    if len(members) > 1:
        block = np.ix_(members, members)
        at = int(np.flatnonzero(members == origin)[0])
        strength, covariance = _fit_strengths(games[block], points[block], ELO_SCALE / PRIOR_DEVIATION)
        variance = np.diag(covariance) + covariance[at, at] - 2 * covariance[at]
        elo = ELO_SCALE * (strength - strength[at])
        error = ELO_SCALE * np.sqrt(np.maximum(variance, 0.0))
        for member, own_elo, own_error in zip(members.tolist(), elo.tolist(), error.tolist(), strict=True):
            rating = rated[players[member]]
            rated[players[member]] = replace(rating, elo=own_elo, standard_error=own_error)
    return rated


def _check_counts(size: int, games: Floats, points: Floats) -> tuple[Floats, Floats]:
    games, points = np.array(games, np.float64), np.array(points, np.float64)
    for name, table in (("games", games), ("points", points)):
        if table.shape != (size, size):
            raise ValueError(f"{name} must have shape {(size, size)}, got {table.shape}")
        if not np.isfinite(table).all() or (table < 0).any():
            row, column = np.argwhere(~(np.isfinite(table) & (table >= 0)))[0]
            raise ValueError(f"{name}[{row}, {column}] = {table[row, column]} must be finite and at least 0")
    np.fill_diagonal(games, 0.0)
    np.fill_diagonal(points, 0.0)
    if not np.allclose(points + points.T, games, rtol=1e-9, atol=1e-9):
        raise ValueError("points of a pair must add up to its games: wins + draws / 2 for each of the two")
    return games, points


def _fit_strengths(games: Floats, points: Floats, prior_rate: float) -> tuple[Floats, Floats]:
    """(strengths, covariance) by Newton's method with step halving, summed over the pairs that have met."""
    precision = prior_rate**2
    size = len(games)
    strength = np.zeros(size)
    first, second = np.nonzero(np.triu(games))
    played, won, lost = games[first, second], points[first, second], points[second, first]

    def posterior(at: Floats) -> float:
        gap = at[first] - at[second]
        likelihood = -(played * np.logaddexp(0.0, -gap) + lost * gap).sum()
        return float(likelihood - 0.5 * precision * (at @ at))

    def curvature(at: Floats) -> tuple[Floats, Floats]:
        chance = chance_of_winning(at[first] - at[second])
        surprise = won - played * chance
        gradient = np.bincount(first, surprise, size) - np.bincount(second, surprise, size) - precision * at
        information = played * chance * (1.0 - chance)
        hessian = np.zeros((size, size))
        hessian[first, second] = hessian[second, first] = -information
        np.fill_diagonal(hessian, precision - hessian.sum(axis=1))
        return gradient, hessian

    value = posterior(strength)
    for _ in range(200):
        gradient, hessian = curvature(strength)
        step = np.linalg.solve(hessian, gradient)
        # Twice the predicted gain; stop when it is below the rounding error of the posterior.
        if float(gradient @ step) <= 1e-12 * max(1.0, abs(value)):
            break
        length = 1.0
        while length > 1e-9 and posterior(strength + length * step) < value:
            length /= 2
        strength = strength + length * step
        value = posterior(strength)
    return strength, np.asarray(np.linalg.inv(curvature(strength)[1]), np.float64)


_RANKS = ((1, 2), (1, 1), (2, 1))
"""Ranks of two sides after a win, a draw and a loss of the first."""


class OpenSkillTable:
    """OpenSkill (Plackett-Luce) skill of every player: a separate and slow fold. A result of n games between two sides
    makes min(n, `updates_per_row`) updates, one of more sides a single update, ranked by points. One player against
    several sides of another counts as two sides; other results with a player on two sides, such as self-play, are left
    out."""

    def __init__(self, updates_per_row: int = 8, *, seats: int = 1) -> None:
        require_in(self, "[1, inf]", updates_per_row=updates_per_row, seats=seats)
        self.updates_per_row = updates_per_row
        self.seats = seats
        self._model = PlackettLuce()
        self._skill: dict[str, tuple[float, float]] = {}
        self._open: dict[int, Match] = {}

    def save(self) -> tuple[dict[str, tuple[float, float]], list[Match]]:
        return self._skill, [*self._open.values()]

    def load(self, skill: dict[str, tuple[float, float]], open_matches: Sequence[Match]) -> None:
        """Become what was saved; this table is new."""
        self._skill, self._open = skill, {match.id: match for match in open_matches}

    def skill(self, player: str) -> tuple[float, float]:
        """(mu, sigma); the prior for a player without games."""
        return self._skill.get(player, (self._model.mu, self._model.sigma))

    def apply(self, event: AnyEvent) -> None:
        """Fold one ledger event. Human games do not count."""
        match event:
            case MatchLeased():
                pass
            case MatchIssued(match=issued) if issued.purpose != "human":
                self._open[issued.id] = issued
            case MatchFinished(result=result) if result.match_id in self._open:
                self.record(self._open.pop(result.match_id), result)
            case MatchVoid(match_id=match_id):
                self._open.pop(match_id, None)
            case RunStarted():
                self._open.clear()
            case PlayerReset(player=player):
                self._reset(player)
            case _:
                pass

    def record(self, match: Match, result: Result) -> None:
        line_ups = [side.players for side in match.sides]
        if self.seats == 1 and len(line_ups) == 2 and len(line_ups[0]) == len(line_ups[1]) == 1:
            if line_ups[0] != line_ups[1]:
                self._duel(line_ups[0][0], line_ups[1][0], result)
            return
        if len({*line_ups[1:]}) == 1:  # two sides, or one against copies of another, as in evaluations
            line_ups = line_ups[:2]
        sides = [{*line_up} for line_up in line_ups]
        if len(sides) < 2 or len(set().union(*sides)) < sum(map(len, sides)):
            return
        seats = max(self.seats, *map(len, line_ups))
        teams = [line_up * (seats // len(line_up)) for line_up in line_ups]
        if seats == 1 and len(teams) == 2:
            self._duel(teams[0][0], teams[1][0], result)
            return
        ratings = [[self._rating(player) for player in team] for team in teams]
        for ranks in self._outcomes(len(teams), result):
            ratings = self._model.rate(ratings, ranks=list(ranks))
        for team, rated in zip(teams, ratings, strict=True):
            for player, rating in zip(team, rated, strict=True):  # equal for a player on several seats
                self._skill[player] = (float(rating.mu), float(rating.sigma))

    def _duel(self, a: str, b: str, result: Result) -> None:
        """One player against one, the usual case: as the model's `rate`, without its copies."""
        (mean, deviation), (other, spread) = self.skill(a), self.skill(b)
        drift, noise, kappa = self._model.tau**2, 2 * self._model.beta**2, self._model.kappa
        sqrt, tanh = math.sqrt, math.tanh
        variance, other_variance = deviation * deviation, spread * spread
        for rank, other_rank in self._outcomes(2, result):
            variance += drift
            other_variance += drift
            total = variance + other_variance + noise
            scale = sqrt(total)
            chance = 0.5 + 0.5 * tanh((mean - other) / (2 * scale))  # the logistic function
            surprise = ((other_rank - rank + 1) / 2 - chance) / scale
            mean += variance * surprise
            other -= other_variance * surprise
            learned = chance * (1 - chance) / (scale * total)
            left, other_left = (
                1 - variance * sqrt(variance) * learned,
                1 - other_variance * sqrt(other_variance) * learned,
            )
            variance *= left if left > kappa else kappa
            other_variance *= other_left if other_left > kappa else kappa
        self._skill[a], self._skill[b] = (mean, sqrt(variance)), (other, sqrt(other_variance))

    def _reset(self, player: str) -> None:
        """Back to the prior; open matches of the player will not count."""
        self._skill.pop(player, None)
        self._open = {
            match_id: match
            for match_id, match in self._open.items()
            if not any(player in side.players for side in match.sides)
        }

    def _rating(self, player: str) -> Any:
        mu, sigma = self.skill(player)
        return self._model.rating(mu=mu, sigma=sigma)

    def _outcomes(self, num_sides: int, result: Result) -> Sequence[tuple[int, ...]]:
        if num_sides == 2:
            wins = draws = losses = 0
            for pair in result.pairs:
                if pair.side == 0:
                    wins, draws, losses = wins + pair.wins, draws + pair.draws, losses + pair.losses
            return _spread(wins, draws, losses, min(result.episodes, self.updates_per_row))
        points = [0.0] * num_sides
        for pair in result.pairs:
            points[pair.side] += pair.wins + pair.draws / 2
            points[pair.other] += pair.losses + pair.draws / 2
        return [tuple(1 + sum(other > mine for other in points) for mine in points)]


@lru_cache(maxsize=4096)
def _spread(wins: int, draws: int, losses: int, updates: int) -> tuple[tuple[int, ...], ...]:
    """`updates` outcomes in the proportions of the result; each is the one that lags most."""
    counts, given = (wins, draws, losses), [0, 0, 0]
    games = sum(counts)
    outcomes = []
    for update in range(1, updates + 1):
        behind = [count * update / games - done for count, done in zip(counts, given, strict=True)]
        chosen = behind.index(max(behind))
        given[chosen] += 1
        outcomes.append(_RANKS[chosen])
    return tuple(outcomes)
