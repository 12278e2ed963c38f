"""Who sits on the seats of a team, and whose trajectories train whom."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from ludus.data.records import Side
from ludus.data.seat_patterns import patterns_of_seats
from ludus.league.matchmaking import Candidates, Law, Matchmaker, draw, uniform
from ludus.league.payoff import Payoff
from ludus.league.players import unknown

SELF = "self"
LineUp = Mapping[str, str | Matchmaker]
"""Pattern of seats within the team (`seat0`, `seat[12]`, `*`; the first that fits holds) -> who sits there:
"self", a player, a learning role (one of its other players, nobody twice while there are enough), or a
matchmaker, which draws for every seat. Empty: the player itself on every seat."""

OpponentSeats = Literal["repeated", "line_up"]
Trainees = Literal["self", "side", "everyone"]


def check_line_up(line_up: LineUp, seats_per_team: Sequence[int], known: Collection[str]) -> None:
    """Refuse what can never be seated, naming the pattern that asks for it. `known`: players and roles."""
    if not line_up:
        return
    if len(set(seats_per_team)) > 1:
        raise ValueError(
            "line_up: teams must have equally many seats, since sides take turns on them; "
            f"these have {', '.join(map(str, seats_per_team))}"
        )
    if SELF not in _by_seat(line_up, seats_per_team[0]):
        raise ValueError(f"line_up: no seat is left to the player itself; put {SELF!r} on one")
    for pattern, who in line_up.items():
        if isinstance(who, str) and who != SELF and who not in known:
            raise ValueError(
                f"line_up: {pattern}: {unknown('player or role', who, (SELF, *dict.fromkeys(known)))}"
            )


def seat_players(
    line_up: LineUp,
    captain: str,
    num_seats: int,
    candidates: Candidates,
    payoff: Payoff,
    rng: np.random.Generator,
) -> tuple[str, ...]:
    """The players of a team by seat, or the captain alone if it sits on all of them."""
    seated: list[str] = []
    for who in _by_seat(line_up, num_seats) if line_up else ():
        if isinstance(who, str):
            law = _law(who, captain, seated, candidates, payoff)
            seated.append(draw(law, rng) if len(law) > 1 else next(iter(law)))
        else:
            seated.append(who.choose(captain, candidates, payoff, rng)[0])
    return tuple(seated) if set(seated) - {captain} else (captain,)


def make_sides(
    teams: Sequence[tuple[str, tuple[str, ...]]], trains: Trainees, learning: Collection[str]
) -> tuple[Side, ...]:
    """Sides from (captain, players) of each team; the first one's captain is whom the match is made for.

    "self": that player trains, wherever it sits. "side": the learning players on its side do, wherever they
    sit. "everyone": all learning players at the table do.
    """
    learner, own = teams[0]
    everyone = (player for _, players in teams for player in players)
    trainees = {"self": {learner}, "side": {learner, *own}, "everyone": {*everyone}}[trains] & {*learning}
    return tuple(_side(captain, players, trainees) for captain, players in teams)


def _side(captain: str, players: tuple[str, ...], trainees: set[str]) -> Side:
    training = tuple(dict.fromkeys(player for player in players if player in trainees))
    everybody = {*players} <= trainees
    return Side(
        players=players,
        trains=everybody or training or False,
        captain=None if players == (captain,) else captain,
    )


def _by_seat(line_up: LineUp, num_seats: int) -> list[str | Matchmaker]:
    seats = [(f"seat{number}",) for number in range(num_seats)]
    return [line_up[pattern] for pattern in patterns_of_seats(line_up, seats, "line_up")]


def _law(
    who: str | Matchmaker, captain: str, seated: Sequence[str], candidates: Candidates, payoff: Payoff
) -> Law:
    """Who takes a seat. The captain does, if the player has left the league or its role has no other."""
    if not isinstance(who, str):
        return who.probabilities(captain, candidates, payoff)
    if who in candidates.roles:
        others = [player for player in candidates.learning(who) if player != captain]
        return uniform([player for player in others if player not in seated] or others, captain)
    return {who if who in candidates and who != SELF else captain: 1.0}
