"""`ludus train`: trains a league, or goes on with one."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec
from rich.console import Console

from ludus.cli.main import INTERRUPTED, OUT_OF_TIME
from ludus.cli.terminal import league_table, new_console
from ludus.cli.train_view import UNREAD, TrainView, style_of
from ludus.config import ConfigError, apply_overrides, diff, encode
from ludus.data.records import ChangeSettings
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.league.summary import summarise
from ludus.lookup import find_experiment, fix_bots, open_run, parse_settings
from ludus.observe.lost_matches import LossCount
from ludus.replays.cloned_run import is_cloned
from ludus.runtime import serial
from ludus.runtime.assemble import (
    Training,
    exact_report,
    load_experiment,
    new_league,
    require_devices,
    require_interface,
    require_metrics,
    require_value_parameters,
)
from ludus.runtime.services import fix_services
from ludus.runtime.settings import checked_settings, effective, is_live, require_trainable
from ludus.runtime.start import (
    InitialModels,
    edit_stopped,
    find_initial_models,
    models_named,
    require_cluster_for,
    require_room,
    training_of,
)
from ludus.runtime.training import default_actors
from ludus.services.endpoints import ServiceError
from ludus.services.resources import UserService
from ludus.store.files import StoreError
from ludus.store.run_folder import RunFolder, RunFolderError
from ludus.system.machine import usable_cores
from ludus.workers.worker import TrainingFailed

DEFAULT_RECIPE = "connect_four"
EXIT_CODES = {serial.INTERRUPTED: INTERRUPTED, serial.TIME_LIMIT: OUT_OF_TIME}
"""By why a run has ended; 0 for any other reason."""


@click.command("train")
@click.argument("experiment", required=False, metavar="[RECIPE|FILE.py:NAME|FILE.yaml]")
@click.option("--run", type=click.Path(), help="Run folder; default: a new one under runs/.")
@click.option("--resume", is_flag=True, help="Go on with --run (default: the newest run).")
@click.option("--resume-or-start", is_flag=True, help="Go on with --run if it is there, else begin it: for jobs.")
@click.option("--runtime", type=click.Choice(["serial", "local", "ray"]), help="Where the workers run.")
@click.option("--address", help="A Ray cluster, HOST:PORT or auto; without one, --runtime ray starts a private one.")
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change a setting; may be repeated.")
@click.option("--actors", type=click.IntRange(min=1), help="Actor processes; the run keeps the number.")
@click.option("--trial", metavar="NAME", help="Which try at the experiment it is: runs/RECIPE-NAME-001.")
@click.option(
    "--inference",
    type=click.Choice(["inline", "worker"]),
    help="Who runs the policies: each actor, or one policy worker for all (local runtime).",
)
@click.option("--quiet", is_flag=True, help="Show nothing until the end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a table.")
def command(
    experiment: str | None,
    run: str | None,
    resume: bool,
    resume_or_start: bool,
    runtime: str | None,
    address: str | None,
    actors: int | None,
    trial: str | None,
    inference: str | None,
    settings: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> int:
    """Train a league. The default recipe is connect_four; `ludus recipes` lists the others.

    \b
    ludus train kuhn --set budget=2e6 --set learner.learning_rate=3e-4
    ludus train my_file.py:experiment --run runs/mine
    ludus train --run runs/mine --resume
    """
    if resume_or_start:
        if run is None:
            raise ConfigError("--resume-or-start needs --run, the folder to look for")
        resume = (Path(run) / "run.json").exists()
        if resume:  # the run has its experiment, and settings that may have been changed since
            experiment, settings = None, ()
    if runtime is not None:
        settings = (*settings, f"runtime={runtime}")
    if inference is not None:
        settings = (*settings, f"actor.inference={inference}")
    if actors is not None:
        settings = (*settings, f"actors={actors}")
    if trial is not None:
        settings = (*settings, f"trial={trial}")
    initial, folder, live, kept = _find(experiment, run, settings, resume=resume)
    chosen = initial.experiment
    _require_sense(chosen, actors, address)
    num_actors = actors or kept or default_actors(chosen)
    console = new_console()
    style = style_of(as_json=as_json, quiet=quiet)
    if folder is None:
        chosen, folder = _create(initial, run)
    again = f"ludus train --run {folder.path} --resume"
    with folder.lock(), ExitStack() as running:
        if live:
            _change_live(folder, live)
        if resume:
            chosen = initial.put_into(folder.models)
        if resume and encode(chosen) != encode(load_experiment(folder)):
            folder = folder.with_experiment(encode(chosen))  # before worker processes read it
        if style in ("live", "lines"):
            console.print(f"run folder: {folder.path}", soft_wrap=True)
            console.print(f"{initial.describe()}{_workers(chosen, num_actors)}")
            if chosen.services:
                named = ", ".join(_service(name, one) for name, one in chosen.services.items())
                console.print(f"services:   {named}")
            for output in chosen.metrics:
                console.print(f"metrics:    {output.where(folder)}", soft_wrap=True)
            for role in _taught_by_nobody(chosen):
                console.print(
                    f"teacher:    players of role {role} start from fresh weights, which teach nothing: "
                    f"--set league.roles.{role}.start=RUN#PLAYER, or --set algorithm.teacher=null"
                )
        try:
            training = running.enter_context(training_of(chosen, folder, num_actors=actors or kept, address=address))
            shown = style in ("live", "lines")
            if too_small := shown and training.experiment.budget < training.experiment.learner.batch_size:
                console.print(_below_an_update(training.experiment), soft_wrap=True)
            with TrainView(training, style, console) as view:
                reason = training.run(view)
            if reason == UNREAD:
                click.echo(f"{reason}: saved; {again} goes on", err=True)
                return INTERRUPTED
            _show_end(training, reason, console, as_json, budget_told=too_small)
        except KeyboardInterrupt:
            click.echo(f"stopped at once, without saving; {again} goes on from the latest checkpoint", err=True)
            raise
        except MemoryError as error:
            raise ConfigError(str(error)) from error
        except (TrainingFailed, StoreError, ServiceError, OSError):
            click.echo(f"the run ends with an error; once that is mended, {again} goes on", err=True)
            raise
    return EXIT_CODES.get(reason, 0)


def _find(
    address: str | None, run: str | None, settings: tuple[str, ...], *, resume: bool
) -> tuple[InitialModels, RunFolder | None, Mapping[str, str], int | None]:
    """The experiment, checked, with the models it begins with, its folder if it has one, the settings to be
    changed in its ledger, and how many actors it has so far. Nothing is written yet."""
    if not resume:
        experiment = fix_services(fix_bots(find_experiment(address or DEFAULT_RECIPE, settings)))
        require_devices(experiment)
        require_interface(experiment)
        require_metrics(experiment)
        require_value_parameters(experiment)
        if run is not None and (Path(run) / "run.json").exists():
            raise ConfigError(f"{run} already holds a run; go on with it by --resume, or name another folder")
        if run is not None:
            RunFolder.require_free(run)
        pool = None if run is None else RunFolder.models_in(run)
        return find_initial_models(experiment, pool), None, {}, experiment.actors
    if address is not None:
        raise ConfigError(f"--resume takes the experiment from the run folder; leave out {address!r}")
    folder = open_run(run)
    if is_cloned(folder):
        raise ConfigError(
            f"{folder.path} is a cloned player, not a league: go on with `ludus clone --run {folder.path} "
            "--resume`, or let a new league begin with it (league.roles.main.start)"
        )
    before = load_experiment(folder)
    given = parse_settings(settings)
    league = _replayed(folder, before)
    now = None if league is None else effective(before, league)
    live = {path: text for path, text in given.items() if now is not None and is_live(now, path)}
    if now is not None:
        checked_settings(now, live)
    changed = apply_overrides(before, {path: text for path, text in given.items() if path not in live})
    experiment = fix_services(fix_bots(changed))
    _require_same_players(before, experiment)
    require_devices(experiment)
    require_interface(experiment)
    require_metrics(experiment)
    require_value_parameters(experiment)
    named_before = [model for _, model, _ in models_named(before)]
    initial = find_initial_models(experiment, folder.models, known=named_before)
    if now is not None and experiment != before:
        _require_replay(folder, initial.planned)
    return initial, folder, live, (now or experiment).actors


def _replayed(folder: RunFolder, written: Experiment) -> League | None:
    """The league of a run; None for one that has never started."""
    if not folder.ledger_path.exists():
        return None
    league = new_league(written)
    with folder.ledger(read_only=True) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
    return league if league.num_events else None


def _require_replay(folder: RunFolder, experiment: Experiment) -> None:
    """What was changed in the run so far must still mean something."""
    try:
        league = _replayed(folder, experiment)
        if league is not None:
            effective(experiment, league)
            require_trainable(experiment, league)
    except (ValueError, LookupError) as error:
        raise ConfigError(f"this does not go with what the run has changed since it began: {error}") from error


def _change_live(folder: RunFolder, settings: Mapping[str, str]) -> None:
    """As an event: what happened before it is still judged by the settings of its time."""
    answer = edit_stopped(folder, ChangeSettings(settings=dict(settings)))
    if answer.refused is not None:
        raise ConfigError(answer.refused)


def _require_sense(experiment: Experiment, actors: int | None, address: str | None) -> None:
    """The serial runtime is one process: refuse what only processes can do."""
    require_cluster_for(address, experiment.runtime)
    require_room(experiment, address)
    if experiment.runtime == "serial":
        if actors is not None:
            raise ConfigError("--actors is for --runtime local: the serial runtime is one process")
        if experiment.actor.inference == "worker":
            raise ConfigError("actor.inference=worker is for --runtime local: the serial runtime is one process")
        if experiment.learner.ranks > 1:
            raise ConfigError(
                f"learner.ranks={experiment.learner.ranks} is for --runtime local: the serial runtime is one process"
            )


def _create(initial: InitialModels, run: str | None) -> tuple[Experiment, RunFolder]:
    """A new run, with the models that it begins with in its pool before it exists."""
    path = Path(run) if run is not None else RunFolder.name_new(_full_name(initial.experiment))
    experiment = initial.put_into(RunFolder.models_in(path))
    folder = RunFolder.create(path, encode(experiment), seed=experiment.seed, command=sys.argv)
    return experiment, folder


def _full_name(experiment: Experiment) -> str:
    return experiment.name if experiment.trial is None else f"{experiment.name}-{experiment.trial}"


def _service(name: str, described: UserService) -> str:
    needs = "" if described.resources is None else f", each with {described.resources}"
    return f"{name} ({described.count}{needs})"


def _taught_by_nobody(experiment: Experiment) -> list[str]:
    """Roles whose players would be held near the weights that they start from, which are fresh ones."""
    if not any(reference.fixed for reference in experiment.algorithm.references.values()):
        return []
    return [name for name, role in experiment.league.roles.items() if role.start is None]


def _workers(experiment: Experiment, num_actors: int) -> str:
    if experiment.runtime == "serial":
        return "workers:    all in this process (--runtime local: processes that overlap)"
    if experiment.runtime == "ray":
        return "workers:    on the nodes of a Ray cluster (--address HOST:PORT; without: a private one here)"
    policy_worker = ", a policy worker" if experiment.actor.inference == "worker" else ""
    buffer_worker = ", a buffer worker" if experiment.learner.buffer_worker else ""
    ranks = f" of {experiment.learner.ranks} ranks" if experiment.learner.ranks > 1 else ""
    workers = f"{num_actors} actor{'s' * (num_actors > 1)}{policy_worker}{buffer_worker} and a learner{ranks}"
    return f"workers:    {workers} on {usable_cores():g} usable cores (--actors N)"


def _require_same_players(before: Experiment, after: Experiment) -> None:
    """What a run has learned fits only its own game, networks and players."""
    for path, old, new in diff(before, after):
        match path.split("."):
            case (
                ["game" | "policies" | "model", *_] | ["league", "roles", _] | ["league", "roles", _, "count" | "start"]
            ):
                raise ConfigError(f"{path} is {old} in this run and stays so; for {new} start another run")


def _below_an_update(experiment: Experiment, taken: int | None = None) -> str:
    """Why more is trained than was asked for."""
    update = f"takes a batch of {experiment.learner.batch_size:,}" if taken is None else f"took {taken:,}"
    return f"budget:     {experiment.budget:,} decisions, but a single update {update} (learner.batch_size)"


def _show_end(training: Training, reason: str, console: Console, as_json: bool, *, budget_told: bool) -> None:
    try:
        exact = exact_report(training.experiment, training.folder, training.league)
    except RunFolderError:  # stopped before there was a checkpoint
        exact = None
    with training.folder.ledger(read_only=True) as ledger:
        lost = LossCount().follow(ledger)
    if as_json:
        end = {"end": reason, "run": str(training.folder.path), "nash_conv": exact}
        click.echo(json.dumps(end | {"lost_matches": msgspec.to_builtins(lost)}))
        return
    league = training.league
    console.print(league_table(league, summarise(league), training.experiment.evaluation.opponents))
    if exact is not None:
        console.print("NashConv, exact (what best responses gain, summed over the seats; 0: unbeatable)")
        for what, value in exact.items():
            console.print(f"  {value:.4f}  {what}")
    for line in lost.lines():
        console.print(line, markup=False, soft_wrap=True)
    path = training.folder.path
    more = "" if reason != serial.FINISHED else " --set budget=..."
    decisions, updates = (int(training.numbers()[name]) for name in ("decisions", "updates"))
    if not budget_told and updates and decisions // updates > training.experiment.budget:
        console.print(_below_an_update(training.experiment, decisions // updates), soft_wrap=True)
    lines = [
        f"{reason} after {decisions:,} decisions: {path}",
        f"go on:    ludus train --run {path} --resume{more}",
        f"look:     ludus league {path}",
        f"watch:    ludus watch {path}",
        f"measure:  ludus eval {path}",
        f"report:   ludus report {path}",
    ]
    console.print(*lines, sep="\n", soft_wrap=True)  # so that a command can be copied whole
