"""How far the other members of a population are ahead of one of them, by what their games and scores say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scipy.special import expit

from ludus.league.league import League
from ludus.league.payoff import Payoff
from ludus.league.players import Standing
from ludus.league.population import Lead, Population
from ludus.league.ratings import ELO_SCALE, fit_elo

Score = tuple[float, float, float]
"""Mean, standard error, episodes."""


def leads(
    league: League, population: Population, member: Standing, others: Sequence[Standing]
) -> dict[str, Lead]:
    """The other members that can be compared with `member` now, in their order. Empty while it has too few
    games itself."""
    everyone = [member, *others]
    least = population.min_games
    if population.fitness == "win_rate":
        return _by_games(league.payoffs.combined, member.player.id, [one.player.id for one in others], least)
    if population.fitness == "rating":
        names = {one.player.id: one.player.id for one in everyone}
        return _by_rating(league.payoffs.combined, list(league.candidates), names, least)
    if population.fitness == "score":
        return _by_score({one.player.id: _training_score(one) for one in everyone}, least)
    snapshots = {one.player.id: _newest_snapshot(league, one) for one in everyone}
    if league.num_teams == 1:
        return _by_score({one: _measured_score(league, name) for one, name in snapshots.items()}, least)
    known = {one: name for one, name in snapshots.items() if name is not None}
    if member.player.id not in known:
        return {}
    return _by_rating(league.payoffs.evaluation, list(league.candidates), known, least)


def _by_rating(payoff: Payoff, players: list[str], names: Mapping[str, str], least: float) -> dict[str, Lead]:
    """`names`: the members, the judged one first, and the player that stands for each."""
    anchor = next(iter(names.values()))
    ratings = fit_elo(players, *payoff.counts(players), anchor=anchor)
    if ratings[anchor].games < least:
        return {}
    found = {}
    for member, player in list(names.items())[1:]:
        rating = ratings[player]
        if rating.elo is not None and rating.standard_error is not None and rating.games >= least:
            rate = float(expit(rating.elo / ELO_SCALE))
            found[member] = Lead(by=rating.elo, standard_error=rating.standard_error, win_rate=rate)
    return found


def _by_games(payoff: Payoff, member: str, others: Sequence[str], least: float) -> dict[str, Lead]:
    found = {}
    for other in others:
        games = payoff.games(other, member)
        if games >= least:
            rate = (payoff.wins(other, member) + payoff.draws(other, member) / 2) / games
            # As if each had won one game more, so that a pair with one winner is not certain.
            padded = (rate * games + 1) / (games + 2)
            error = math.sqrt(padded * (1 - padded) / (games + 2))
            found[other] = Lead(by=rate - 0.5, standard_error=error, win_rate=rate)
    return found


def _by_score(scores: Mapping[str, Score | None], least: float) -> dict[str, Lead]:
    """The judged member comes first."""
    known = {one: score for one, score in scores.items() if score is not None and score[2] >= least}
    first = next(iter(scores))
    if first not in known:
        return {}
    mean, error, _ = known.pop(first)
    return {
        one: Lead(by=other[0] - mean, standard_error=math.hypot(error, other[1]))
        for one, other in known.items()
    }


def _training_score(standing: Standing) -> Score | None:
    mean, error = standing.recent_score, standing.recent_score_error
    return None if mean is None or error is None else (mean, error, standing.score_episodes)


def _measured_score(league: League, snapshot: str | None) -> Score | None:
    measured = league.scores.get(snapshot) if snapshot is not None else None
    return None if measured is None else (measured.mean, measured.standard_error, float(measured.episodes))


def _newest_snapshot(league: League, standing: Standing) -> str | None:
    """Of its weights since it last started: an older one says nothing about it."""
    own = [
        player
        for player in league.candidates.players
        if player.frozen and player.parent == standing.player.id
    ]
    if not own or own[-1].model != standing.ancestor:
        return None
    return own[-1].id
