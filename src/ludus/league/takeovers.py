"""Takeovers in population-based training. A judgement interrupted by a crash comes out the same again."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ludus.data.records import PlayerReset, Settings
from ludus.league.league import League
from ludus.league.payoff import Payoff, normal_quantile
from ludus.league.players import Standing, member_generator
from ludus.league.population import Lead, Population
from ludus.league.ratings import ELO_SCALE, fit_elo

Score = tuple[float, float, float]
"""Mean, standard error, episodes."""


def leads(league: League, population: Population, member: Standing, others: Sequence[Standing]) -> dict[str, Lead]:
    """The leads of the other members that can be compared with `member`, in order; none if it has too few games."""
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
    """`names`: member, the judged one first -> the player rated in its place."""
    anchor = next(iter(names.values()))
    ratings = fit_elo(players, *payoff.counts(players), anchor=anchor)
    if ratings[anchor].games < least:
        return {}
    found = {}
    for member, player in list(names.items())[1:]:
        rating = ratings[player]
        if rating.elo is not None and rating.standard_error is not None and rating.games >= least:
            rate = 0.5 + 0.5 * math.tanh(rating.elo / (2 * ELO_SCALE))
            found[member] = Lead(by=rating.elo, standard_error=rating.standard_error, win_rate=rate)
    return found


def _by_games(payoff: Payoff, member: str, others: Sequence[str], least: float) -> dict[str, Lead]:
    found = {}
    for other in others:
        games = payoff.games(other, member)
        if games >= least:
            rate = (payoff.wins(other, member) + payoff.draws(other, member) / 2) / games
            # One more win for each side, so that a pair with one winner keeps an error.
            padded = (rate * games + 1) / (games + 2)
            error = math.sqrt(padded * (1 - padded) / (games + 2))
            found[other] = Lead(by=rate - 0.5, standard_error=error, win_rate=rate)
    return found


def _by_score(scores: Mapping[str, Score | None], least: float) -> dict[str, Lead]:
    """`scores`: the judged member comes first."""
    known = {one: score for one, score in scores.items() if score is not None and score[2] >= least}
    first = next(iter(scores))
    if first not in known:
        return {}
    mean, error, _ = known.pop(first)
    return {one: Lead(by=other[0] - mean, standard_error=math.hypot(error, other[1])) for one, other in known.items()}


def _training_score(standing: Standing) -> Score | None:
    mean, error = standing.recent_score, standing.recent_score_error
    return None if mean is None or error is None else (mean, error, standing.score_episodes)


def _measured_score(league: League, snapshot: str | None) -> Score | None:
    measured = league.scores.get(snapshot) if snapshot is not None else None
    return None if measured is None else (measured.mean, measured.standard_error, float(measured.episodes))


def _newest_snapshot(league: League, standing: Standing) -> str | None:
    """The newest snapshot taken since the member last started; older ones are of other weights."""
    own = [player for player in league.candidates.players if player.frozen and player.parent == standing.player.id]
    if not own or own[-1].model != standing.ancestor:
        return None
    return own[-1].id


@dataclass(frozen=True, kw_only=True, slots=True)
class Takeover:
    """A decision that `player` continues from the live weights of `donor`."""

    player: str
    donor: str
    settings: Settings
    reason: str


def due_takeovers(league: League, news: Collection[str] | None = None) -> list[Takeover]:
    """Takeovers of the members that are due, among `news`. A donor does not take over in the same round."""
    found: list[Takeover] = []
    for name, role in league.rules.roles.items():
        if role.population is None:
            continue
        members = [
            standing
            for standing in league.standings.values()
            if standing.player.role == name and standing.latest_model is not None and not standing.reset_pending
        ]
        for member in members:
            taking = {takeover.player for takeover in found}
            giving = {takeover.donor for takeover in found}
            is_news = news is None or member.player.id in news
            if not is_news or not _is_due(member, role.population) or member.player.id in giving:
                continue
            others = [one for one in members if one is not member and one.player.id not in taking]
            takeover = _judge(league, role.population, member, others)
            found += [takeover] if takeover is not None else []
    return found


def reset_for(league: League, takeover: Takeover) -> PlayerReset:
    """The event that carries out a takeover, once the donor's latest weights are in the model pool."""
    model = league.standings[takeover.donor].latest_model
    if model is None:
        raise ValueError(f"{takeover.donor!r} has no weights that {takeover.player!r} could take over")
    return PlayerReset(
        player=takeover.player,
        incarnation=league.standings[takeover.player].incarnation + 1,
        model=str(model),
        settings=takeover.settings,
        donor=takeover.donor,
        reason=takeover.reason,
    )


def is_frozen_now(league: League, player: str) -> bool:
    """Whether a snapshot of the player's latest weights is in the league already."""
    model = str(league.standings[player].latest_model)
    return any(one.frozen and one.parent == player and one.model == model for one in league.candidates.players)


def _is_due(member: Standing, population: Population) -> bool:
    """Whether the member's latest progress crossed the end of an interval."""
    before = (member.trained_before - member.reset_at) // population.every
    return member.trained >= population.ready_after and _interval(member, population) > before


def _interval(member: Standing, population: Population) -> int:
    return (member.trained - member.reset_at) // population.every


def _judge(league: League, population: Population, member: Standing, others: list[Standing]) -> Takeover | None:
    """The takeover of a due member, if any. None while most of the others have too few games to compare."""
    player = member.player.id
    found = leads(league, population, member, others)
    if 2 * len(found) < len(others):
        return None
    rng = member_generator(league.seed, player, member.takeovers, _interval(member, population))
    donor = population.selection.choose(found, rng)
    if donor is None:
        return None
    by, error = found[donor].by, found[donor].standard_error
    if by <= 0 or by < normal_quantile(population.confidence) * error:
        return None
    return Takeover(
        player=player,
        donor=donor,
        settings=population.explore(league.settings_of(donor), rng),
        reason=f"{population.fitness}: {donor} is ahead by {by:.3g} ± {1.96 * error:.2g}",
    )
