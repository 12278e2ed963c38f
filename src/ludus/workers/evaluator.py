"""Evaluation during training: the choice of matches, which actors play, and their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from ludus.data.records import Match, ModelId, Pair, Result
from ludus.league.league import League
from ludus.league.matches import first_players
from ludus.league.payoff import wilson_interval
from ludus.league.payoff_estimate import least_known_pair
from ludus.league.psro import reads_every_pair
from ludus.league.role_scores import first_side, role_lines
from ludus.league.rules import EvaluationConfig, LeagueRules
from ludus.league.summary import best_snapshot
from ludus.store.model_pool import BEST
from ludus.store.run_folder import MetricsFile, RunFolder

MOST_FAILURES = 3
"""Attempts at a match that ends without a result."""

Sides = tuple[str, ...]


class Evaluator:
    """Chooses evaluation matches from the league alone: first pairs that have not met, then the ladder."""

    def __init__(self, config: EvaluationConfig, league: League) -> None:
        self._config = config
        self._league = league
        self._listed_for: tuple[Sides, LeagueRules | None] = ((), None)
        """The snapshots and rules that `_missing` was made for."""
        self._missing: dict[Sides, None] = {}
        """Matches that are still to be played, in order."""
        self._least_known: tuple[object, Sides | None] = (None, None)
        """The state of the league at the latest choice of the ladder, and the choice."""

    def next_sides(self) -> Sides | None:
        """The sides of the next evaluation match; None if none is due."""
        waiting = self._open_sides()
        return self._due(waiting) or self._ladder(waiting)

    @property
    def is_busy(self) -> bool:
        return bool(self._open_sides()) or self.next_sides() is not None

    def episodes_per_table(self, tables: int) -> int:
        """Enough for the configured number of episodes, with every side equally often on every team."""
        teams = self._league.num_teams
        rounds = -(-self._config.episodes // (tables * teams))
        return rounds * teams

    def is_score(self, match: Match) -> bool:
        return match.purpose == "evaluation" and len(match.sides) == 1

    def _due(self, waiting: set[Sides]) -> Sides | None:
        """The first match that is missing and not open."""
        frozen, rules = self._league.candidates.frozen(), self._league.rules
        listed, listed_rules = self._listed_for
        gone = {*listed} - {*frozen}
        if gone:  # such as snapshots that `Role.history` has no room for
            listed = tuple(player for player in listed if player not in gone)
            self._missing = {sides: None for sides in self._missing if gone.isdisjoint(sides)}
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
        """Every snapshot from `start` on against unmet opponents and latest predecessors, oldest first."""
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
        """The number of predecessors that a snapshot meets."""
        past, number = self._config.past, len(self._league.players)
        return number if past == "all" or reads_every_pair(self._league.rules) else past

    def _ladder(self, waiting: set[Sides]) -> Sides | None:
        """The pair with the least certain result, while fewer matches were played or given up than planned."""
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
        """Number of evaluation matches for all snapshots so far, including the ladder's."""
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


Source = Literal["train", "eval"]
"""Whether a match was one of the run's own evaluations or of `ludus eval`."""


class EvaluationBook:
    """Keeps the evaluations of a run as metrics and tags. Both follow from the ledger."""

    def __init__(
        self, folder: RunFolder, noted: Callable[[Match], None] = lambda match: None, rows: MetricsFile | None = None
    ) -> None:
        """`noted`: called after each evaluation. `rows`: their file, where it is held open."""
        self._folder = folder
        self._rows = rows
        self._noted = noted
        self._best: dict[str, ModelId] = {}

    def note(self, league: League, match: Match, result: Result) -> None:
        """Write an evaluation that the league has applied, and move the tags of its players."""
        sides = first_players(match)
        weights = [None if (one := league.players[side]).scripted else one.weights for side in sides]
        game = self._folder.facts.game
        roles = () if game is None else game.roles
        row = {"match": match.id, **evaluation_row("train", sides, weights, result, roles=roles)}
        if self._rows is None:
            keep_rows(self._folder, [row])
        else:
            self._rows.append(row)
        self.move_best(league, [parent for side in sides if (parent := league.players[side].parent)])
        self._noted(match)

    def move_best(self, league: League, players: Iterable[str]) -> None:
        """Move the tags `PLAYER@best` to the snapshots with the best evaluations."""
        for player in dict.fromkeys(players):
            snapshot = best_snapshot(league, player)
            model = league.players[snapshot].model if snapshot else None
            if model is not None and self._best.get(player) != ModelId.parse(model):
                self._best[player] = ModelId.parse(model)
                self._folder.models.tag(BEST, self._best[player])


EVALUATIONS = "evaluations.jsonl"
"""The file of the run's metrics that holds its evaluations and those of `ludus eval`."""


def keep_rows(folder: RunFolder, rows: Iterable[dict[str, Any]]) -> None:
    with MetricsFile(folder.metrics / EVALUATIONS) as kept:
        for row in rows:
            kept.append(row)


def evaluation_row(
    source: Source,
    players: Sequence[str],
    weights: Sequence[str | None],
    result: Result,
    *,
    greedy: bool = False,
    roles: Sequence[str] = (),
) -> dict[str, Any]:
    """A result as plain values, with a 95 % interval of the first side's win rate. `weights`: None for a bot. `roles`:
    of the teams, where players are compared by role."""
    mean, standard_error = result.mean_score(0)
    row: dict[str, Any] = {
        "source": source,
        "players": list(players),
        "models": list(result.last_models),
        "weights": list(weights),
        "greedy": greedy,
        "episodes": result.episodes,
        "score": mean,
        "score_standard_error": standard_error,
        "steps_per_episode": result.steps / result.episodes,
    }
    if result.pairs:
        against = [_against(players[pair.other], pair, result) for pair in result.pairs if pair.side == 0]
        row |= {name: value for name, value in against[0].items() if name != "player"}
        if len(against) > 1:
            row["against"] = against
    if by_role := first_side(result):
        row["roles"] = msgspec.to_builtins(role_lines(by_role, roles))
    return row


def _against(player: str, pair: Pair, result: Result) -> dict[str, Any]:
    points = pair.wins + pair.draws / 2
    return {
        "player": player,
        "wins": pair.wins,
        "draws": pair.draws,
        "losses": pair.losses,
        "win_rate": points / result.episodes,
        "win_rate_interval": list(wilson_interval(points, result.episodes)),
    }
