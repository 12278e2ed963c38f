"""What has been measured, for people and later commands: rows in the run's metrics, and the tag `best`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ludus.data.records import Match, ModelId, Result
from ludus.league.best import best_snapshot
from ludus.league.league import League
from ludus.league.matches import first_players
from ludus.league.payoff import wilson_interval
from ludus.store.metrics_file import MetricsFile
from ludus.store.model_pool import BEST
from ludus.store.run_folder import RunFolder

Source = Literal["train", "eval"]
"""Whether a match was one of the run's own evaluations, or of a command."""


class EvaluationBook:
    """Follows the evaluations of a run. The ledger holds them all; this can be made again from it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._best: dict[str, ModelId] = {}

    def note(self, league: League, match: Match, result: Result) -> None:
        """Write down an evaluation that the league has folded, and move the tags of those it measured."""
        sides = first_players(match)
        weights = [None if (one := league.players[side]).scripted else one.weights for side in sides]
        row = {"match": match.id, **evaluation_row("train", sides, weights, result)}
        keep_rows(self._folder, [row])
        self.move_best(league, [parent for side in sides if (parent := league.players[side].parent)])

    def move_best(self, league: League, players: Iterable[str]) -> None:
        """Let `PLAYER@best` be the snapshot that has measured best."""
        for player in dict.fromkeys(players):
            snapshot = best_snapshot(league, player)
            model = league.players[snapshot].model if snapshot else None
            if model is not None and self._best.get(player) != ModelId.parse(model):
                self._best[player] = ModelId.parse(model)
                self._folder.models.tag(BEST, self._best[player])


def keep_rows(folder: RunFolder, rows: Iterable[dict[str, Any]]) -> None:
    """Add evaluations to the run's metrics."""
    with MetricsFile(folder.metrics / "evaluations.jsonl") as kept:
        for row in rows:
            kept.append(row)


def evaluation_row(
    source: Source,
    players: Sequence[str],
    weights: Sequence[str | None],
    result: Result,
    *,
    greedy: bool = False,
) -> dict[str, Any]:
    """A result as plain values: win rate (or score) of the first side with a 95 % interval, and the models
    that were measured. `weights` says which of a model's two sets each side used; None for a bot."""
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
        pair = result.pairs[0]
        points = pair.wins + pair.draws / 2
        row |= {
            "wins": pair.wins,
            "draws": pair.draws,
            "losses": pair.losses,
            "win_rate": points / result.episodes,
            "win_rate_interval": list(wilson_interval(points, result.episodes)),
        }
    return row
