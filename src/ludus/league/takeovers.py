"""Which members of a population go on from the weights and settings of a better one: pure decisions.

All draws come from a generator made of the run's seed, the member, the number of its takeovers and of the
judgement, so that a decision that a crash interrupted comes out the same again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from scipy.special import ndtri

from ludus.data.records import PlayerReset, Settings
from ludus.league.draws import member_generator
from ludus.league.fitness import leads
from ludus.league.league import League
from ludus.league.players import Standing
from ludus.league.population import Lead, Population


@dataclass(frozen=True, kw_only=True, slots=True)
class Takeover:
    """`player` should go on from the live weights of `donor`."""

    player: str
    donor: str
    settings: Settings
    reason: str


def due_takeovers(league: League, news: Collection[str] | None = None) -> list[Takeover]:
    """Of the members whose latest progress made them due, and is news (None: all of them are asked about). In
    one round, who gives does not take."""
    found: list[Takeover] = []
    for name, role in league.rules.roles.items():
        if role.population is None:
            continue
        members = [
            standing
            for standing in league.standings.values()
            if standing.player.role == name
            and standing.latest_model is not None
            and not standing.reset_pending
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
    """The event that puts a takeover into force, once the donor's latest weights are in the pool."""
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
    """A snapshot of its latest weights is in the league already."""
    model = str(league.standings[player].latest_model)
    return any(
        one.frozen and one.parent == player and one.model == model for one in league.candidates.players
    )


def _is_due(member: Standing, population: Population) -> bool:
    """Its latest progress went over the end of an interval."""
    before = (member.trained_before - member.reset_at) // population.every
    return member.trained >= population.ready_after and _interval(member, population) > before


def _interval(member: Standing, population: Population) -> int:
    return (member.trained - member.reset_at) // population.every


def _judge(
    league: League, population: Population, member: Standing, others: list[Standing]
) -> Takeover | None:
    """Not while most of the others have too few games: a rank among the rest would say little."""
    player = member.player.id
    found = leads(league, population, member, others)
    if 2 * len(found) < len(others):
        return None
    rng = member_generator(league.seed, player, member.takeovers, _interval(member, population))
    donor = population.selection.choose(found, rng)
    if donor is None or not _is_sure(found[donor], population.confidence):
        return None
    by, error = found[donor].by, found[donor].standard_error
    return Takeover(
        player=player,
        donor=donor,
        settings=population.explore(league.settings_of(donor), rng),
        reason=f"{population.fitness}: {donor} is ahead by {by:.3g} ± {1.96 * error:.2g}",
    )


def _is_sure(lead: Lead, confidence: float) -> bool:
    return lead.by > 0 and lead.by >= float(ndtri(confidence)) * lead.standard_error
