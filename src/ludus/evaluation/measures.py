"""Measurements of a run's players: matches between any of them, and how much one can be beaten by. They import the
code that the run names."""

from __future__ import annotations

import errno
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from ludus.config import ConfigError, apply_overrides
from ludus.evaluation.best_response import (
    EXPLOITER,
    MOST_BUDGET,
    Attempt,
    ExploiterStart,
    ExploitRecord,
    Starting,
    TrainedMeasure,
    Watching,
    players_of,
)
from ludus.evaluation.entrants import RunPlayers, is_run_address, require_same_tables, split_address
from ludus.evaluation.exploitability import (
    ExactMeasure,
    NotExactError,
    Target,
    describe_target,
    exact_game,
    find_mixture,
    find_player,
    measure_exactly,
)
from ludus.evaluation.tournament import Tournament
from ludus.experiment import Experiment
from ludus.games.game import GameSource
from ludus.league.league import League
from ludus.league.matchmaking import SelfPlay
from ludus.league.players import with_weights
from ludus.league.promotion import Never
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.lookup import add_bots
from ludus.models.policy import find_gpu
from ludus.runtime.assemble import load_experiment, load_league, load_players, load_state, require_devices
from ludus.runtime.coordinator import Training
from ludus.runtime.imported_models import ModelRequest, fetch_source, fit_weights, require_fit
from ludus.runtime.placement import is_given, scaled_settings
from ludus.runtime.services import services_at_hand
from ludus.runtime.settings import effective
from ludus.runtime.start import require_cluster_for, require_ray_for, require_room, training_of
from ludus.services.resources import NotEnough
from ludus.store.downloads import DownloadError
from ludus.store.files import StoreError, make_folder, new_stage, remove_stages
from ludus.store.run_folder import MetricsFile, RunFolder
from ludus.workers.evaluator import evaluation_row, keep_rows
from ludus.workers.exploitability import EXPLOIT_FOLDER, EXPLOITS
from ludus.workers.player_cache import FixedPlayers, played_weights

Weights = Literal["average", "live"]
Tell = Callable[[str], None]
FIXED = ("game", "bots", "policies", "model", "frozen_models", "league", "evaluation", "middleware", "name")
"""Settings that an exploiter shares with its target, or that make no sense for it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of the first player against each of the others; a draw is half a win."""

    rows: tuple[dict[str, Any], ...]
    """As plain values, one per opponent: what `ludus eval --json` prints."""
    kept: bool = True
    """Whether they are in the run's metrics; False for a run that is read-only."""

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
            names = [with_weights(*named) for named in zip(row["players"], row["weights"], strict=True)]
            score = f"mean score {row['score']:+.3f} ± {1.96 * row['score_standard_error']:.3f}"
            if "win_rate" in row:
                low, high = row["win_rate_interval"]
                beside = f" (beside {', '.join(names[2:])})" if names[2:] else ""
                lines.append(
                    f"{names[0]} against {names[1]}{beside}: {row['win_rate']:.1%} "
                    f"({100 * low:.1f} to {100 * high:.1f}), {row['wins']} won, {row['draws']} drawn, "
                    f"{row['losses']} lost, {score}"
                )
                lines += [
                    f"  as {one['role']}: {one['score']:+.3f}, {one['lead']:+.3f} ± {1.96 * one['lead_error']:.3f} "
                    "above what the others got in that role"
                    for one in row.get("roles", ())
                    if one["score"] is not None
                ]
            else:
                lines.append(f"{names[0]}: {score}")
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True, kw_only=True)
class SeatedMatches:
    """Players of a run that are loaded to meet: the first of them each of the others."""

    folder: RunFolder
    league: League
    game: GameSource
    players: FixedPlayers
    line_ups: Sequence[tuple[str, ...]]
    used: Mapping[str, str | None]
    """Player -> the weights that it plays with; None for a bot."""
    greedy: bool

    def play(self, *, games: int, seed: int, tables: int) -> Evaluation:
        """At least `games` per line-up; the results are kept in the run's metrics."""
        results = Tournament(self.game, self.players, self.line_ups, episodes=games, num_tables=tables, seed=seed).run()
        rows = tuple(
            evaluation_row(
                "eval",
                line_up,
                [self.used[player] for player in line_up],
                results[index],
                greedy=self.greedy,
                roles=self.game.spec.role_names,
            )
            for index, line_up in enumerate(self.line_ups)
        )
        try:
            keep_rows(self.folder, rows)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return Evaluation(rows, kept=False)
        return Evaluation(rows)


@contextmanager
def seated_matches(
    folder: RunFolder, players: Sequence[str], *, weights: Weights, greedy: bool
) -> Iterator[SeatedMatches]:
    """Load players of a run, with the services that they may call; the services end with the block. Without players:
    the first learning player, its first snapshot and the evaluation bots. "A,B" are two opponents at one table, and
    "RUN#PLAYER" is a player of another run."""
    experiment, league = load_state(folder)
    teams = league.num_teams
    groups = [tuple(asked.split(",")) if teams > 2 else (asked,) for asked in players]
    asked = [player for group in groups for player in group]
    experiment, named = add_bots(
        experiment, [player for player in asked if not is_run_address(player)], taken=league.players
    )
    here = iter(named)
    names = iter([player if is_run_address(player) else next(here) for player in asked])
    opponents = [tuple(itertools.islice(names, len(group))) for group in groups] or [
        (player,)
        for player in (*list(league.standings)[:1], *league.candidates.frozen()[:1], *experiment.evaluation.opponents)
    ]
    if len(opponents) < min(2, teams):
        raise ConfigError("name at least two players: the first meets each of the others")
    if teams > 1:
        first, *opponents = opponents
        opponents = [first + _fill(group, teams - 1, experiment.game.spec.name) for group in opponents]
    chosen = tuple(dict.fromkeys(player for group in opponents for player in group))
    own = [player for player in chosen if not is_run_address(player)]
    with ExitStack() as services:
        services.enter_context(services_at_hand(experiment, folder))
        seated = load_players(experiment, folder, league, own, weights=weights, greedy=greedy)
        used = {player: played_weights(league, folder.models, player, weights) for player in own}
        for address in (player for player in chosen if player not in own):
            path, player = split_address(address)
            other = RunPlayers(RunFolder.open(path))
            require_same_tables(RunPlayers(folder), other)
            services.enter_context(services_at_hand(other.experiment, other.folder))
            seated[address], used[address] = other.load(player or other.usual, weights=weights, greedy=greedy)
        yield SeatedMatches(
            folder=folder,
            league=league,
            game=experiment.measured_game,
            players=FixedPlayers(seated),
            line_ups=opponents,
            used=used,
            greedy=greedy,
        )


def _fill(players: tuple[str, ...], teams: int, game: str) -> tuple[str, ...]:
    """The players of the other teams: one of them on all, or one on each."""
    if len(players) not in (1, teams):
        raise ConfigError(
            f"{','.join(players)!r} names {len(players)} opponents; in {game} one player meets {teams} teams: "
            f"name one opponent for all of them, or {teams} with commas between"
        )
    return players if len(players) == teams else players * teams


class ExploitStopped(KeyboardInterrupt):
    """Somebody stopped an exploiter's training; `attempt` holds what was measured until then."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__("stopped before the exploiter was measured")
        self.attempt = attempt


def exploit(
    folder: RunFolder,
    player: str | None,
    *,
    watching: Watching,
    tell: Tell,
    mixture: bool = False,
    method: Literal["exact", "train"] | None = None,
    weights: Weights = "average",
    budget: float | str | None = None,
    seeds: int = 1,
    games: int = 4_000,
    start: str | None = None,
    runtime: str | None = None,
    address: str | None = None,
    keep: bool = True,
    overrides: Mapping[str, Any],
    command: list[str] | None = None,
) -> ExploitRecord:
    """Measure how much a player can be beaten by, and keep the result in the run's metrics.

    Args:
        player: None: the first learning player, or with `mixture` the equilibrium mixture of the frozen players.
        start: address of the model that exploiters start from; None: fresh weights.
        command: as the folders of the exploiters record it; None: that of this process.

    Raises:
        ExploitStopped: the training was stopped.
    """
    written = load_experiment(folder)
    spec = written.game.spec
    if spec.num_teams == 1:
        raise ConfigError(f"{spec.name} has one team: there is nobody to exploit")
    league = load_league(folder, written)
    experiment = effective(written, league)
    if player is not None:
        experiment, (player,) = add_bots(experiment, [player], taken=league.players)
    trained_with = _trained_with(experiment, overrides, runtime, budget)
    require_cluster_for(address, trained_with.runtime)
    with _services_if_room(experiment, folder, tell):
        target = _find_target(experiment, folder, league, player, mixture, weights)
        tell(f"{describe_target(target)}\nof {folder.path} on {spec.name}")
        record = ExploitRecord(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            game=spec.name,
            zero_sum=spec.zero_sum,
            target=target.name,
            players=players_of(target),
            shares_from=target.shares_from,
            method="exact",
        )
        if method != "train" and start is None:
            exact = _exactly(experiment, target, tell, required=method == "exact")
            if exact is not None:
                return _keep(folder, msgspec.structs.replace(record, exact=exact))
    require_ray_for(trained_with.runtime)
    require_room(trained_with, address)
    require_devices(trained_with)
    begun_with = None if start is None else _find_start(start, trained_with)
    tell(
        f"training {seeds} exploiter{'s' * (seeds > 1)} {f'from {start}' if start else 'with fresh weights'} on "
        f"{trained_with.budget:,} decisions{' each' * (seeds > 1)} (--budget N)"
    )
    with _place(folder, keep=keep) as root:
        attempt = Attempt(folder, trained_with, target, seeds=seeds, episodes=games, start=begun_with, root=root)
        trained = _train(attempt, command or sys.argv, partial(_training, address=address), watching, tell)
    trained = trained if keep else msgspec.structs.replace(trained, runs=())
    return _keep(folder, msgspec.structs.replace(record, method="best response", trained=trained))


def _exactly(experiment: Experiment, target: Target, tell: Tell, *, required: bool) -> ExactMeasure | None:
    """The exact answer. If there is none, says why and returns None, or raises ConfigError if it is `required`."""
    try:
        return measure_exactly(exact_game(experiment), target.members)
    except NotExactError as error:
        if required:
            raise ConfigError(
                f"no exact answer: {error}; a trained exploiter (--train, method='train') gives a lower bound"
            ) from None
        tell(f"no exact answer: {error}")
        return None


@contextmanager
def _place(folder: RunFolder, *, keep: bool) -> Iterator[Path]:
    """The folder for the runs of exploiters. Those that are not kept are gone after the block; after a kill, with the
    next block."""
    root = folder.path / EXPLOIT_FOLDER
    if keep:
        yield root
        return
    make_folder(root)
    remove_stages(root)
    with new_stage(root) as stage:
        yield stage


def _train(attempt: Attempt, command: list[str], starting: Starting, watching: Watching, tell: Tell) -> TrainedMeasure:
    """Train and measure exploiters. Raises `ExploitStopped`."""
    try:
        trained = attempt.run(command, starting, watching, tell)
    except KeyboardInterrupt:
        trained = None
    if trained is None:
        raise ExploitStopped(attempt)
    return trained


@contextmanager
def _services_if_room(experiment: Experiment, folder: RunFolder, tell: Tell) -> Iterator[None]:
    """The services of a run. Few exact answers need any, so a machine with too few resources goes on without."""
    with ExitStack() as stack:
        try:
            stack.enter_context(services_at_hand(experiment, folder))
        except NotEnough as error:
            tell(f"without services: {error}")
        yield


def _find_target(
    experiment: Experiment, folder: RunFolder, league: League, player: str | None, mixture: bool, weights: Weights
) -> Target:
    if mixture:
        return find_mixture(experiment, folder, league)
    if player is None:
        if not league.standings:
            raise ConfigError(f"{folder.path} has no learning player yet; name a player")
        player = next(iter(league.standings))
    return find_player(experiment, folder, league, player, weights)


def _trained_with(
    experiment: Experiment, overrides: Mapping[str, Any], runtime: str | None, budget: float | str | None
) -> Experiment:
    """The run's experiment with the settings for an exploiter's training in place."""
    for path in overrides:
        if (part := path.split(".")[0]) in FIXED:
            raise ConfigError(f"{path}: an exploiter has the {part} that its target asks for")
    named = {"budget": budget, "runtime": runtime}
    asked = {**overrides, **{path: value for path, value in named.items() if value is not None}}
    usual = {"budget": min(experiment.budget, MOST_BUDGET)}
    chosen = apply_overrides(experiment.without_strategies(), {**usual, **asked})
    if chosen.runtime == "device":
        sizes = _tables_of_one(experiment) if experiment.runtime == "device" else _settings_on_gpu(chosen, asked)
        chosen = apply_overrides(chosen, {path: size for path, size in sizes.items() if not is_given(path, asked)})
    if chosen.runtime == "serial" and chosen.actor.inference == "worker":
        chosen = replace(chosen, actor=replace(chosen.actor, inference="inline"))
    return chosen


def _tables_of_one(experiment: Experiment) -> dict[str, Any]:
    """On a device all learning players share the tables, and an iteration is as long as fills their batches: an
    exploiter has the tables of one of them."""
    players = sum(role.count for role in experiment.league.roles.values())
    matches = max(1, experiment.actor.matches // players)
    tables = max(2, experiment.actor.num_tables // players // matches) * matches
    return {"actor.num_tables": tables, "actor.matches": matches}


def _settings_on_gpu(experiment: Experiment, given: Collection[str]) -> dict[str, Any]:
    """Tables, batches and learning rate that a training of one player with this budget has on this GPU; nothing without
    one."""
    gpu = find_gpu(experiment.learner.device)
    if gpu is None:
        return {}
    alone = LeagueRules(roles={EXPLOITER: Role(matchmaking=SelfPlay(), promotion=Never())})
    one = replace(experiment, league=alone, evaluation=EvaluationConfig(opponents=(), past=0, ladder=0))
    found = scaled_settings(one, gpu, given={*given, "budget"}, budget=experiment.budget)
    return {path: size for path, size in found.items() if path.startswith(("actor.", "learner."))}


@contextmanager
def _training(experiment: Experiment, folder: RunFolder, address: str | None) -> Iterator[Training]:
    with folder.lock(), training_of(experiment, folder, num_actors=experiment.actors, address=address) as training:
        yield training


def _find_start(address: str, experiment: Experiment) -> ExploiterStart:
    """The model at an address, which must fit the run's networks."""
    try:
        source = fetch_source(ModelRequest(address=address))
        fit = fit_weights(source, experiment)
        require_fit(fit, source, experiment)
    except DownloadError:
        raise
    except StoreError as error:
        raise ConfigError(f"--start: {error}") from error
    source.discard()
    return ExploiterStart(address=address, weights=fit.live.arrays)


def _keep(folder: RunFolder, record: ExploitRecord) -> ExploitRecord:
    with MetricsFile(folder.metrics / EXPLOITS) as file:
        file.append(msgspec.to_builtins(record))
    return record
