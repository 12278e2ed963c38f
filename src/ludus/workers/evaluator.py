"""The evaluator: chooses which pairs of players to measure. Ordinary actors play them; nobody trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ludus.data.records import Match
from ludus.league.league import League

MOST_TRIES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """What every new snapshot is measured against."""

    opponents: tuple[str, ...] = ("random",)
    """Scripted players; those that are not among the bots of the league join it."""
    past: int = 3
    """How many of the latest earlier snapshots it also meets."""
    episodes: int = 512
    """At least so many episodes per pair, seats in rotation."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        if self.past < 0:
            raise ValueError(f"past must be at least 0, got {self.past}")


class Evaluator:
    """Reads the league: what has not been measured and is not being measured comes next."""

    def __init__(self, config: EvaluationConfig, league: League) -> None:
        self._config = config
        self._league = league
        self._tries: Counter[tuple[str, ...]] = Counter()
        """Matches asked for; one that ends void is tried again, but not for ever."""
        self._done: set[tuple[str, ...]] = set()
        """Seen to be measured: frozen players stay so, and a long league has thousands of pairs."""

    def next_sides(self) -> tuple[str, ...] | None:
        """The sides of the evaluation match that is needed most, or None."""
        sides = next(self._due(), None)
        if sides is not None:
            self._tries[sides] += 1
        return sides

    @property
    def is_busy(self) -> bool:
        """Something is due or being measured."""
        return bool(self._open_sides()) or next(self._due(), None) is not None

    def _due(self) -> Iterator[tuple[str, ...]]:
        waiting = self._open_sides()
        for sides in self._wanted():
            if sides in self._done:
                continue
            if self._measured(sides):
                self._done.add(sides)
            elif sides not in waiting and self._tries[sides] < MOST_TRIES:
                yield sides

    def _wanted(self) -> Iterator[tuple[str, ...]]:
        """Every snapshot against the opponents and its latest predecessors, oldest first."""
        frozen = self._league.candidates.frozen()
        for index, player in enumerate(frozen):
            if self._league.num_teams == 1:
                yield (player,)
                continue
            past = frozen[max(0, index - self._config.past) : index]
            for other in (*self._config.opponents, *past):
                yield (player, *(other,) * (self._league.num_teams - 1))

    def _open_sides(self) -> set[tuple[str, ...]]:
        return {
            tuple(side.players[0] for side in held.match.sides)
            for held in self._league.matches.open_matches.values()
            if held.match.purpose == "evaluation"
        }

    def episodes_per_table(self, tables: int) -> int:
        """Enough for the configured number of episodes, and every side equally often on every team."""
        teams = self._league.num_teams
        rounds = -(-self._config.episodes // (tables * teams))
        return rounds * teams

    def is_score(self, match: Match) -> bool:
        """The result of this match is a score and not a win rate."""
        return match.purpose == "evaluation" and len(match.sides) == 1

    def _measured(self, sides: tuple[str, ...]) -> bool:
        if len(sides) == 1:
            return sides[0] in self._league.scores
        return self._league.payoffs.view("evaluation").games(sides[0], sides[1]) > 0
