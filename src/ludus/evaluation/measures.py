"""Measurements of a run's players: matches between any of them, and how much one can be beaten by.

Both load the run's game and networks, and with them the code that the run names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from ludus.config import ConfigError, apply_overrides
from ludus.evaluation.best_response import Attempt, ExploitRecord, default_budget, players_of
from ludus.evaluation.exploitability import NotExactError, exact_game, measure_exactly
from ludus.evaluation.targets import Target, find_player
from ludus.evaluation.tournament import Tournament
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.lookup import add_bots
from ludus.runtime.assemble import load_players, load_state, require_devices
from ludus.runtime.coordinator import Training
from ludus.runtime.services import services_at_hand
from ludus.runtime.start import ProgressLines, require_ray_for, require_room, training_of
from ludus.store.model_pool import ModelPool
from ludus.store.run_folder import MetricsFile, RunFolder
from ludus.workers.evaluator import evaluation_row, keep_rows
from ludus.workers.player_cache import FixedPlayers, is_model_name, resolve_player

Weights = Literal["average", "live"]
FIXED = ("game", "bots", "policies", "model", "league", "evaluation", "middleware", "name")
"""Settings that an exploiter shares with its target, or that make no sense for it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of the first player against each of the others; a draw is half a win."""

    rows: tuple[dict[str, Any], ...]
    """As plain values, one per opponent: what `ludus eval --json` prints."""

    @property
    def win_rate(self) -> float:
        """Against the first opponent."""
        return float(self.rows[0]["win_rate"])

    @property
    def win_rate_interval(self) -> tuple[float, float]:
        """Of 95 %, against the first opponent."""
        low, high = self.rows[0]["win_rate_interval"]
        return low, high

    @property
    def score(self) -> float:
        """Mean score against the first opponent, or of the player in a game with one team."""
        return float(self.rows[0]["score"])

    def to_dict(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]

    def __str__(self) -> str:
        lines = []
        for row in self.rows:
            score = f"mean score {row['score']:+.3f} ± {1.96 * row['score_standard_error']:.3f}"
            if "win_rate" in row:
                low, high = row["win_rate_interval"]
                lines.append(
                    f"{row['players'][0]} against {row['players'][1]}: {row['win_rate']:.1%} "
                    f"({100 * low:.1f} to {100 * high:.1f}), {row['wins']} won, {row['draws']} drawn, "
                    f"{row['losses']} lost, {score}"
                )
            else:
                lines.append(f"{row['players'][0]}: {score}")
        return "\n".join(lines)

    __repr__ = __str__


def evaluate(
    folder: RunFolder,
    players: Sequence[str],
    *,
    games: int,
    weights: Weights,
    greedy: bool,
    seed: int,
    tables: int,
) -> Evaluation:
    """Play the first player against each of the others, and keep the results in the run's metrics."""
    if games < 1:
        raise ConfigError(f"games must be at least 1, got {games}")
    experiment, league = load_state(folder)
    experiment, players = add_bots(experiment, players, taken=league.players)
    chosen = players or (
        *list(league.standings)[:1],
        *league.candidates.frozen()[:1],
        *experiment.evaluation.opponents,
    )
    teams = league.num_teams
    if len(chosen) < min(2, teams):
        raise ConfigError("name at least two players: the first meets each of the others")
    line_ups = (
        [(player,) for player in chosen]
        if teams == 1
        else [(chosen[0], *(other,) * (teams - 1)) for other in chosen[1:]]
    )
    with services_at_hand(experiment, folder):
        seated = load_players(experiment, folder, league, chosen, weights=weights, greedy=greedy)
        results = Tournament(
            experiment.grouped_game,
            FixedPlayers(seated),
            line_ups,
            episodes=games,
            num_tables=tables,
            seed=seed,
        ).run()
    used = {player: weights_of(league, folder.models, player, weights) for player in seated}
    rows = tuple(
        evaluation_row("eval", line_up, [used[player] for player in line_up], results[index], greedy=greedy)
        for index, line_up in enumerate(line_ups)
    )
    keep_rows(folder, rows)
    return Evaluation(rows)


def weights_of(league: League, pool: ModelPool, player: str, learning: str) -> str | None:
    """Which of its model's two sets of weights a player uses, learning ones `learning`; None for a bot."""
    entry = league.players.get(player)
    if is_model_name(player):
        return resolve_player(league, pool, player)[1]
    if entry is None or entry.scripted:
        return None
    return learning if entry.learning else entry.weights


def exploit(
    folder: RunFolder,
    player: str | None,
    *,
    method: Literal["exact", "train"] | None,
    weights: Weights,
    budget: float | None,
    seeds: int,
    games: int,
    runtime: str | None,
    quiet: bool,
    overrides: Mapping[str, Any],
) -> ExploitRecord:
    """Measure how much a player can be beaten by, and keep the result in the run's metrics."""
    experiment, league = load_state(folder)
    name = experiment.game.spec.name
    if experiment.game.spec.num_teams == 1:
        raise ConfigError(f"{name} has one team: there is nobody to exploit")
    asked = player or next(iter(league.standings))
    experiment, (asked,) = add_bots(experiment, [asked], taken=league.players)
    with services_at_hand(experiment, folder):
        target = find_player(experiment, folder, league, asked, weights)
        record = ExploitRecord(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            game=name,
            target=target.name,
            players=players_of(target),
            shares_from=target.shares_from,
            method="exact",
        )
        if method != "train":
            try:
                return _keep(folder, msgspec.structs.replace(record, exact=_exact(experiment, target)))
            except NotExactError as error:
                if method == "exact":
                    raise ConfigError(f"no exact answer: {error}; method='train' gives a bound") from None
    trained_with = _trained_with(experiment, overrides, runtime, budget)
    require_ray_for(trained_with.runtime)
    require_room(trained_with, None)
    require_devices(trained_with)
    attempt = Attempt(folder, trained_with, target, seeds=seeds, episodes=games)
    trained = attempt.run(
        [f"ludus.Run({str(folder.path)!r}).exploit({asked!r})"],
        _training,
        lambda training: ProgressLines(training, quiet=quiet),
        lambda line: None if quiet else print(line),
    )
    if trained is None:
        raise KeyboardInterrupt
    return _keep(folder, msgspec.structs.replace(record, method="best response", trained=trained))


def _exact(experiment: Experiment, target: Target) -> Any:
    members = target.members
    return measure_exactly(
        exact_game(experiment),
        [(member.name, member.seated) for member in members],
        [member.share for member in members],
    )


def _trained_with(
    experiment: Experiment, overrides: Mapping[str, Any], runtime: str | None, budget: float | None
) -> Experiment:
    """The run's experiment with the settings for an exploiter's training in place."""
    for path in overrides:
        if (part := path.split(".")[0]) in FIXED:
            raise ConfigError(f"{path}: an exploiter has the {part} that its target asks for")
    changed = {**overrides, "budget": default_budget(experiment) if budget is None else budget}
    if runtime is not None:
        changed["runtime"] = runtime
    chosen = apply_overrides(experiment, changed)
    if chosen.runtime == "serial" and chosen.actor.inference == "worker":
        chosen = replace(chosen, actor=replace(chosen.actor, inference="inline"))
    return chosen


@contextmanager
def _training(experiment: Experiment, folder: RunFolder) -> Iterator[Training]:
    with (
        folder.lock(),
        training_of(experiment, folder, num_actors=experiment.actors, address=None) as training,
    ):
        yield training


def _keep(folder: RunFolder, record: ExploitRecord) -> ExploitRecord:
    with MetricsFile(folder.metrics / "exploits.jsonl") as file:
        file.append(msgspec.to_builtins(record))
    return record
