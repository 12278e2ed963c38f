"""A summary of a league: ratings, win rates, equilibrium, scores and tags of the current players."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ludus.data.records import PlayerRemoved
from ludus.league.equilibrium import symmetric_nash
from ludus.league.league import League
from ludus.league.matchmaking import FixedLaw, branches_of
from ludus.league.measures import LeagueMeasures, measure
from ludus.league.payoff import Floats, Payoff
from ludus.league.payoff_estimate import estimate_scores
from ludus.league.players import BEST_VALIDATION, BY_HAND, RETIRED, Player
from ludus.league.ratings import Rating, fit_elo
from ludus.league.role_scores import RoleScore


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueNumbers:
    """The numbers of a summary that take long to compute, as plain values."""

    ratings: tuple[Rating, ...]
    equilibrium: dict[str, float]
    tags: dict[str, dict[str, str]]
    measures: LeagueMeasures | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueSummary:
    """All current players, in joining order, with the numbers computed from their games."""

    players: tuple[Player, ...]
    ratings: tuple[Rating, ...]
    """Elo relative to `anchor`, from training and evaluation games together."""
    anchor: str
    win_rates: Floats
    """Of the row against the column; NaN below `payoff.min_games`, where matchmaking assumes 0.5."""
    games: Floats
    points: Floats
    """Wins, and half of the draws."""
    equilibrium: dict[str, float]
    """Share of each frozen player in the mixture that no frozen player beats on average."""
    scores: dict[str, tuple[float, float]]
    """Games with one team: mean score and its standard error."""
    role_scores: dict[str, tuple[RoleScore | None, ...]]
    """Games that compare roles: by team, what each player gets and what its opponents get there."""
    tags: dict[str, dict[str, str]]
    """Learning player -> "best" and "latest" -> snapshot."""
    measures: LeagueMeasures | None
    """Measures of the frozen players, from win rates; None if not requested."""

    @property
    def numbers(self) -> LeagueNumbers:
        return LeagueNumbers(ratings=self.ratings, equilibrium=self.equilibrium, tags=self.tags, measures=self.measures)


def summarise(
    league: League, *, measured: bool = False, with_alpha_rank: bool = False, numbers: LeagueNumbers | None = None
) -> LeagueSummary:
    """`measured` adds the league measures: half a second in a league of 200, twice that with alpha-rank. `numbers`:
    those of a summary of the same league before, which are not computed again."""
    payoff = league.payoffs.view("combined")
    players = tuple(league.players[player] for player in league.candidates)
    ids = [player.id for player in players]
    anchor = next((player.id for player in players if player.scripted), ids[0])
    frozen = [player.id for player in players if player.frozen]
    games, points = payoff.counts(ids)
    if numbers is None:
        numbers = LeagueNumbers(
            ratings=_ratings(league, payoff, ids, anchor),
            equilibrium=equilibrium_of(frozen, payoff),
            tags={player: tags for player in league.standings if (tags := tags_of(league, player))},
            measures=measure(payoff, frozen, with_alpha_rank=with_alpha_rank)
            if measured and league.num_teams > 1
            else None,
        )
    return LeagueSummary(
        players=players,
        ratings=numbers.ratings,
        anchor=anchor,
        win_rates=np.where((games > 0) & (games >= payoff.rules.min_games), payoff.matrix(ids), np.nan),
        games=games,
        points=points,
        equilibrium=numbers.equilibrium,
        scores={name: (score.mean, score.standard_error) for name, score in league.scores.items()},
        role_scores={name: found for name in ids if (found := league.role_scores.of(name))},
        tags=numbers.tags,
        measures=numbers.measures,
    )


def _ratings(league: League, payoff: Payoff, ids: Sequence[str], anchor: str) -> tuple[Rating, ...]:
    """Games against players whose weights cannot be read count on."""
    members = [*ids, *league.absent]
    found = fit_elo(members, *payoff.counts(members), anchor=anchor)
    return tuple(found[player] for player in ids)


def elo_of(summary: LeagueSummary) -> dict[str, tuple[float, float]]:
    """Elo and its standard error, of the players that have one."""
    return {
        one.player: (one.elo, one.standard_error)
        for one in summary.ratings
        if one.elo is not None and one.standard_error is not None
    }


def ranked(summary: LeagueSummary) -> list[list[tuple[Player, Rating]]]:
    """Players by Elo, best first, in groups that can be compared: live weights, then averaged ones, because an average
    over many versions plays differently. Bots rank among the averaged players, if there are any."""
    averaged = any(player.played_weights == "average" for player in summary.players)
    groups: list[list[tuple[Player, Rating]]] = [[], []]
    for player, rating in zip(summary.players, summary.ratings, strict=True):
        groups[averaged and player.played_weights != "live"].append((player, rating))
    for group in groups:
        group.sort(key=lambda row: float("inf") if row[1].elo is None else -row[1].elo)
    return [group for group in groups if group]


def tags_of(league: League, player: str) -> dict[str, str]:
    """The snapshots behind `player@best` and `player@latest`, where they exist."""
    found = {"best": best_snapshot(league, player), "latest": (None, *league.candidates.history_of(player))[-1]}
    return {tag: snapshot for tag, snapshot in found.items() if snapshot is not None}


def best_snapshot(league: League, player: str) -> str | None:
    """The snapshot with the best mean score (games with one team) or evaluation Elo, if any; ties go to the newest. A
    clone that was never evaluated has the snapshot with the best validation."""
    history = league.candidates.history_of(player)
    if league.num_teams == 1:
        measured = {snapshot: score.mean for snapshot, score in league.scores.items()}
    else:
        measured = _evaluation_elo(league, history)
    newest_first = [snapshot for snapshot in reversed(history) if snapshot in measured]
    validated = (snapshot for snapshot in reversed(history) if league.players[snapshot].reason == BEST_VALIDATION)
    return max(newest_first, key=measured.__getitem__, default=next(validated, None))


def due_retirements(league: League, player: str) -> list[PlayerRemoved]:
    """The snapshots of a learning player that its role's history has no room for."""
    bound = league.rules.roles[league.standings[player].player.role].history
    now = [one for one in league.candidates.history_of(player) if league.players[one].reason != BY_HAND]
    if bound is None or len(now) <= bound.size:
        return []
    taken = [one.id for one in league.players.values() if one.parent == player and one.frozen]
    ages = {snapshot: len(taken) - place for place, snapshot in enumerate(taken)}
    if league.num_teams == 1:
        hardness = {one: league.scores[one].mean for one in now if one in league.scores}
    else:
        rates = [league.payoff.win_rates(rival, now) for rival in league.standings]
        hardness = dict(zip(now, (-np.min(rates, axis=0)).tolist(), strict=True))
    strongest = sorted(hardness, key=hardness.__getitem__, reverse=True)[: bound.strongest]
    rules = [rule for role in league.rules.roles.values() for rule in branches_of(role.matchmaking)]
    named = [one for rule in rules if isinstance(rule, FixedLaw) for one in rule.shares]
    best = best_snapshot(league, player)
    kept = {*strongest, *named, *(() if best is None else (best,))}
    surplus = bound.surplus({one: ages[one] for one in now}, kept)
    return [PlayerRemoved(snapshot, RETIRED) for snapshot in surplus]


def named_models(league: League) -> set[str]:
    """The models that something in the league still needs: its players, what learning players began or go on from, and
    the sides of open matches."""
    found = {league.players[player].model for player in (*league.candidates, *league.absent)}
    found |= {standing.ancestor for standing in league.standings.values()}
    found |= {step.model for line in league.lineage.values() for step in line}
    sides = [side for held in league.matches.open_matches.values() for side in held.match.sides]
    found |= {league.players[player].model for side in sides for player in side.players if player in league.players}
    return {model for model in found if model is not None}


def _evaluation_elo(league: League, history: tuple[str, ...]) -> dict[str, float]:
    """Elo of the snapshots connected by evaluation games to the newest measured one."""
    candidates = league.candidates
    rated = (*candidates.frozen(), *candidates.scripted())
    games, points = league.payoffs.evaluation.counts(rated)
    met = {player for player, total in zip(rated, games.sum(axis=1).tolist(), strict=True) if total}
    anchor = next((snapshot for snapshot in reversed(history) if snapshot in met), None)
    if anchor is None:
        return {}
    ratings = fit_elo(rated, games, points, anchor=anchor)
    return {player: rating.elo for player, rating in ratings.items() if rating.elo is not None}


def equilibrium_of(ids: Sequence[str], payoff: Payoff) -> dict[str, float]:
    """Nash mixture over the mean scores of the largest group of players that have met often enough, if any."""
    known, scores = estimate_scores(payoff, ids)
    if not known:
        return {}
    shares = symmetric_nash(scores)
    return {player: float(share) for player, share in zip(known, shares, strict=True) if share > 1e-6}
