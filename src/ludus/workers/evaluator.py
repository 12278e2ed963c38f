"""The evaluator: chooses which pairs of players to measure. Ordinary actors play them; nobody trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ludus.data.records import Match
from ludus.league.league import League
from ludus.league.least_known import least_known_pair
from ludus.league.matches import first_players
from ludus.league.meta_strategy import reads_every_pair
from ludus.league.rules import LeagueRules

MOST_FAILURES = 3
"""A match that ends without a result is tried again, but not for ever."""

Sides = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """What every new snapshot is measured against, and how often snapshots are measured again."""

    opponents: tuple[str, ...] = ("random",)
    """Scripted players; those that are not among the bots of the league join it."""
    past: int | Literal["all"] = 3
    """How many of the latest earlier snapshots it also meets. All of them, whatever is set, where matchmaking
    reads a meta-strategy (PSRO) off the games between snapshots."""
    ladder: int = 1
    """Further matches per new snapshot, each between the two snapshots that are least known by then."""
    episodes: int = 512
    """At least so many episodes per match, seats in rotation."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        for name in ("past", "ladder"):
            number = getattr(self, name)
            if number != "all" and number < 0:
                raise ValueError(f"{name} must be at least 0, got {number}")


class Evaluator:
    """Reads the league: what has not been measured and is not being measured comes next, then the ladder.

    All that it knows follows from the ledger, so that it goes on after a restart as if there had been none.
    """

    def __init__(self, config: EvaluationConfig, league: League) -> None:
        self._config = config
        self._league = league
        self._listed_for: tuple[Sides, LeagueRules | None] = ((), None)
        """The snapshots and rules that `_missing` was made for."""
        self._missing: dict[Sides, None] = {}
        """What has to be measured and was not when last looked at, in order."""
        self._least_known: tuple[object, Sides | None] = (None, None)
        """The latest choice of the ladder, and what it was read off."""

    def next_sides(self) -> Sides | None:
        """The sides of the evaluation match that is needed most, or None."""
        waiting = self._open_sides()
        return self._due(waiting) or self._ladder(waiting)

    @property
    def is_busy(self) -> bool:
        """Something is due or being measured."""
        return bool(self._open_sides()) or self.next_sides() is not None

    def episodes_per_table(self, tables: int) -> int:
        """Enough for the configured number of episodes, and every side equally often on every team."""
        teams = self._league.num_teams
        rounds = -(-self._config.episodes // (tables * teams))
        return rounds * teams

    def is_score(self, match: Match) -> bool:
        """The result of this match is a score and not a win rate."""
        return match.purpose == "evaluation" and len(match.sides) == 1

    def _due(self, waiting: set[Sides]) -> Sides | None:
        """The first that has to be measured, was not, and is not being measured."""
        frozen, rules = self._league.candidates.frozen(), self._league.rules
        listed, listed_rules = self._listed_for
        if listed_rules is not rules or frozen[: len(listed)] != listed:
            listed, self._missing = (), {}
        if len(listed) < len(frozen):
            self._missing |= dict.fromkeys(self._wanted(frozen, len(listed)))
        self._listed_for = (frozen, rules)
        measured, found = [], None
        for sides in self._missing:
            if self._measured(sides):
                measured.append(sides)
            elif sides not in waiting and not self._given_up(sides):
                found = sides
                break
        for sides in measured:
            del self._missing[sides]
        return found

    def _wanted(self, frozen: Sides, start: int) -> Iterator[Sides]:
        """Every snapshot from `start` on against the opponents and its latest predecessors, oldest first, but
        for pairs that have met already."""
        if self._league.num_teams == 1:
            yield from ((player,) for player in frozen[start:])
            return
        reach = self._reach
        for index, player in enumerate(frozen[start:], start):
            others = (*self._config.opponents, *frozen[max(0, index - reach) : index])
            games = self._league.payoffs.evaluation.games_against(player, others)
            yield from (self._sides(player, others[unmet]) for unmet in np.flatnonzero(games == 0).tolist())

    @property
    def _reach(self) -> int:
        """How many predecessors a snapshot meets."""
        past, number = self._config.past, len(self._league.players)
        return number if past == "all" or reads_every_pair(self._league.rules) else past

    def _ladder(self, waiting: set[Sides]) -> Sides | None:
        """The least-known pair, while fewer matches were played, or given up, than all snapshots so far come
        to."""
        frozen, book = self._league.candidates.frozen(), self._league.matches
        if self._league.num_teams == 1 or len(frozen) < 2 or not self._config.ladder:
            return None
        given_up = {sides for sides in book.failed_evaluations if self._given_up(sides)}
        if book.evaluations + len(waiting) + len(given_up) >= self._planned():
            return None
        refused = given_up | waiting
        state = (book.evaluations, frozen, refused)
        if self._least_known[0] != state:
            pair = least_known_pair(
                self._league.payoffs.evaluation,
                frozen,
                links=self._config.opponents,
                episodes=self._config.episodes,
                without=[frozenset(sides) for sides in refused],
            )
            self._least_known = (state, self._sides(*pair) if pair else None)
        return self._least_known[1]

    def _planned(self) -> int:
        """Evaluation matches for all snapshots that ever were: a fixed number for each, and the ladder's for
        each that has another one to meet."""
        number = sum(player.frozen for player in self._league.players.values())
        reach = min(self._reach, number - 1)
        predecessors = reach * (reach - 1) // 2 + (number - reach) * reach
        return number * len(self._config.opponents) + predecessors + self._config.ladder * (number - 1)

    def _sides(self, player: str, other: str) -> Sides:
        return (player, *(other,) * (self._league.num_teams - 1))

    def _open_sides(self) -> set[Sides]:
        return {
            first_players(held.match)
            for held in self._league.matches.open_matches.values()
            if held.match.purpose == "evaluation"
        }

    def _given_up(self, sides: Sides) -> bool:
        return self._league.matches.failed_evaluations.get(sides, 0) >= MOST_FAILURES

    def _measured(self, sides: Sides) -> bool:
        if len(sides) == 1:
            return sides[0] in self._league.scores
        return self._league.payoffs.evaluation.games(sides[0], sides[1]) > 0
