"""Short ways to write matches and results in the tests of the league."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from ludus.config import apply_encoded
from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    Pair,
    Purpose,
    Result,
    RunStarted,
    Side,
)
from ludus.data.specs import GameSpec
from ludus.league.league import League
from ludus.league.rules import LeagueRules


def match_of(*sides: str | tuple[str, ...], id: int = 0, episodes: int = 100, purpose: Purpose = "training") -> Match:
    line_ups = [(side,) if isinstance(side, str) else side for side in sides]
    return Match(id, purpose, tuple(Side(players) for players in line_ups), 1, episodes)


def result_of(match: Match, *pairs: tuple[int, int, int]) -> Result:
    """`pairs`: wins, draws, losses of each pair of sides, (0, 1) first."""
    num_sides = len(match.sides)
    zeros, blanks = (0.0,) * num_sides, ("",) * num_sides
    indices = combinations(range(num_sides), 2)
    return Result(
        match_id=match.id,
        episodes=sum(pairs[0]) if pairs else match.episodes,
        steps=0,
        decisions=(0,) * num_sides,
        pairs=tuple(Pair(i, j, *counts) for (i, j), counts in zip(indices, pairs, strict=True)),
        score_sum=zeros,
        score_square_sum=zeros,
        first_models=blanks,
        last_models=blanks,
    )


def random_result(match: Match, rng: np.random.Generator) -> Result:
    pairs = [
        tuple(rng.multinomial(match.episodes, rng.dirichlet(np.ones(3))).tolist()) for _ in combinations(match.sides, 2)
    ]
    return result_of(match, *pairs)


def started_on(spec: GameSpec, rules: LeagueRules, *, seed: int = 7) -> tuple[League, list[AnyEvent]]:
    """A league on a game, ready to play, and the events that it was fed."""
    seats = tuple(len(team) for team in spec.seats_of_team)
    league = League(rules, num_teams=spec.num_teams, seats_per_team=seats, seed=seed)
    events: list[AnyEvent] = [RunStarted(0), *league.initial_events()]
    events += [LearnerProgress(player, 0, 0, 0) for role in rules.roles for player in rules.players_of(role)]
    for event in events:
        league.apply(event)
    return league, events


def started(rules: LeagueRules, *, num_teams: int = 2, seats: int = 1, seed: int = 7) -> League:
    """A league whose players have joined and whose learners have published step 0."""
    league = League(
        rules, num_teams=num_teams, seats_per_team=(seats,) * num_teams, seed=seed, change_rules=apply_encoded
    )
    league.apply(RunStarted(0))
    for event in league.initial_events():
        league.apply(event)
    for player in league.candidates.learning():
        league.apply(LearnerProgress(player, 0, 0, 0))
    return league


def play(league: League, *sides: str, pairs: tuple[tuple[int, int, int], ...], purpose: Purpose = "training") -> Match:
    """Issue and finish one match."""
    match = match_of(*sides, id=league.matches.last_id + 1, episodes=sum(pairs[0]), purpose=purpose)
    league.apply(MatchIssued(match))
    league.apply(MatchFinished(result_of(match, *pairs)))
    return match
