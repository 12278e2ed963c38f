"""`ludus train`: train a league, or resume a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console

from ludus.cli.main import INTERRUPTED, OUT_OF_TIME
from ludus.cli.options import COUNT, address_option, code_trust_option, json_option, set_option
from ludus.cli.train_view import UNREAD, TrainView, style_of
from ludus.config import ConfigError
from ludus.evaluation.play.house import is_playable
from ludus.experiment import Experiment
from ludus.league.summary import elo_of, summarise
from ludus.lookup import open_run, parse_settings
from ludus.observe.documents import MetricsTable
from ludus.observe.lost_matches import LossCount
from ludus.observe.metrics import TRAIN
from ludus.observe.overview import concerns_of_metrics, concerns_of_ratings
from ludus.observe.strength import strength_page
from ludus.observe.terminal import league_table, new_console
from ludus.runtime import rounds
from ludus.runtime.assemble import exact_report, num_learners
from ludus.runtime.coordinator import Training
from ludus.runtime.device import device_plan
from ludus.runtime.processes import default_actors
from ludus.services.endpoints import ServiceError
from ludus.store.files import StoreError
from ludus.store.run_folder import RunFolder, RunFolderError
from ludus.system.machine import program, usable_cores
from ludus.training import DEFAULT, Plan, require_same_experiment
from ludus.workers.worker import Diverged, TrainingFailed

EXIT_CODES = {rounds.INTERRUPTED: INTERRUPTED, rounds.TIME_LIMIT: OUT_OF_TIME}
"""Exit code by the reason that ended the run; 0 for any other reason."""


@click.command("train")
@click.argument("experiment", required=False, metavar="[RECIPE|GAME|FILE.py:NAME|FILE.yaml]")
@click.option("--run", type=click.Path(), help="Run folder; default: a new one under runs/.")
@click.option("--resume", is_flag=True, help="Resume --run (default: the newest run).")
@click.option(
    "--resume-or-start",
    is_flag=True,
    help="Resume --run if it exists, else start it: for batch jobs. Refuses a run with other settings.",
)
@click.option(
    "--accept-loss", is_flag=True, help="Resume although the ledger or the checkpoint is lost: go on with what is left."
)
@click.option(
    "--runtime",
    type=click.Choice(["auto", "serial", "local", "ray", "device"]),
    help="Where the workers run; default: device on a GPU that the experiment fits, else local.",
)
@address_option
@set_option()
@click.option("--actors", type=COUNT, help="Actor processes; the run keeps the number.")
@click.option("--trial", metavar="NAME", help="Name of this trial of the experiment: runs/RECIPE-NAME-001.")
@click.option(
    "--inference", type=click.Choice(["inline", "worker"]), help="Policies run in actors, or in a policy worker."
)
@click.option("--quiet", is_flag=True, help="Show nothing until the end.")
@json_option("Print JSON lines instead of a table.")
@code_trust_option
def train_command(
    experiment: str | None,
    run: str | None,
    resume: bool,
    resume_or_start: bool,
    accept_loss: bool,
    runtime: str | None,
    address: str | None,
    actors: int | None,
    trial: str | None,
    inference: str | None,
    settings: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> int:
    """Train a league: by a recipe (`ludus recipes` lists them; the default is connect_four), by the address of a
    game (`ludus games`), whose facts then decide the defaults, or by an experiment of your own.

    \b
    ludus train openspiel:hex
    ludus train kuhn --set budget=2e6 --set learner.learning_rate=3e-4
    ludus train my_file.py:experiment --run runs/mine
    ludus train --run runs/mine --resume
    """
    named = {"runtime": runtime, "actor.inference": inference, "actors": actors, "trial": trial}
    places = {path: str(one) for path, one in named.items() if one is not None}
    given = {**parse_settings(settings), **places}
    if resume_or_start:
        if run is None:
            raise ConfigError("--resume-or-start needs --run, the folder to look for")
        resume = (Path(run) / "run.json").exists()
        if resume:
            require_same_experiment(open_run(run), experiment or DEFAULT, given)
            experiment, given = None, places  # the run keeps settings that were changed since
    plan = Plan.make(
        experiment, run=run, resume=resume, accept_loss=accept_loss, settings=given, actors=actors, address=address
    )
    console = new_console()
    style = style_of(as_json=as_json, quiet=quiet)
    shown = style in ("live", "lines")
    again = f"{program()} train --resume"
    try:
        with plan.open(sys.argv) as (folder, described):
            again = f"{program()} train --run {folder.path} --resume"
            if shown:
                _show_start(plan, folder, described, console)
            with plan.start(folder, described) as training:
                for notice in training.notices:
                    click.echo(notice, err=True)
                budget_told = shown and training.experiment.budget < training.experiment.learner.batch_size
                if budget_told:
                    console.print(_below_an_update(training.experiment), soft_wrap=True)
                with TrainView(training, style, console) as view:
                    reason = training.run(view)
                if reason == UNREAD:
                    click.echo(f"{reason}: saved; {again} goes on", err=True)
                    return INTERRUPTED
                _show_end(training, reason, console, as_json, budget_told=budget_told)
    except KeyboardInterrupt:
        click.echo(f"stopped at once, without saving; {again} goes on from the latest checkpoint", err=True)
        raise
    except MemoryError as error:
        raise ConfigError(str(error)) from error
    except Diverged:  # it says itself how to go on
        raise
    except (TrainingFailed, StoreError, ServiceError, OSError):
        click.echo(f"the run ends with an error; once that is fixed, {again} goes on", err=True)
        raise
    return EXIT_CODES.get(reason, 0)


def _show_start(plan: Plan, folder: RunFolder, chosen: Experiment, console: Console) -> None:
    """Describe the run before its workers start, which may take seconds."""
    num_actors = plan.actors or default_actors(chosen)
    console.print(f"run folder: {folder.path}", soft_wrap=True)
    for line in plan.told:
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"{plan.initial.describe()}{_workers(chosen, num_actors)}")
    needs = {name: one.resources and f", each with {one.resources}" for name, one in chosen.services.items()}
    named = [f"{name} ({one.count}{needs[name] or ''})" for name, one in chosen.services.items()]
    if named:
        console.print(f"services:   {', '.join(named)}")
    for output in chosen.metrics:
        console.print(f"metrics:    {output.where(folder)}", soft_wrap=True)
    for name, role in chosen.league.roles.items():
        algorithm = chosen.of_role(name).algorithm
        if role.start is None and any(reference.fixed for reference in algorithm.references.values()):
            whose = "" if role.algorithm is None else f"league.roles.{name}."
            console.print(
                f"teacher:    players of role {name} start from fresh weights, which teach nothing: "
                f"--set league.roles.{name}.start=RUN#PLAYER, or --set {whose}algorithm.teacher=null"
            )


def _workers(experiment: Experiment, num_actors: int) -> str:
    if experiment.runtime == "serial":
        alone = "; one learner for all players" if experiment.learner.placement == "per_player" else ""
        return f"workers:    all in this process{alone} (--runtime local: processes that overlap)"
    if experiment.runtime == "device":
        return f"workers:    {device_plan(experiment)}"
    if experiment.runtime == "ray":
        return "workers:    on the nodes of a Ray cluster (--address HOST:PORT; without: a private one here)"
    policy_worker = ", a policy worker" if experiment.actor.inference == "worker" else ""
    buffer_worker = ", a buffer worker" if experiment.learner.buffer_worker else ""
    learner = f"a learner of {experiment.learner.ranks} ranks" if experiment.learner.ranks > 1 else "a learner"
    if experiment.learner.placement == "per_player":
        learner = f"{num_learners(experiment)} learners, one for each player,"
    workers = f"{num_actors} actor{'s' * (num_actors > 1)}{policy_worker}{buffer_worker} and {learner}"
    return f"workers:    {workers} on {usable_cores():g} usable cores (--actors N)"


def _below_an_update(experiment: Experiment, taken: int | None = None) -> str:
    """The reason that the run trains on more decisions than its budget."""
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
    opponents, roles = training.experiment.evaluation.opponents, training.experiment.game.spec.role_names
    summary = summarise(league)
    console.print(league_table(league, summary, opponents, roles=roles))
    if exact is not None:
        console.print("NashConv, exact (what best responses gain, summed over the seats; 0: unbeatable)")
        for what, value in exact.items():
            console.print(f"  {value:.4f}  {what}")
    metrics = MetricsTable(training.folder.metrics / TRAIN)
    metrics.follow()
    console.print(*strength_page(league, summary, metrics).verdict, markup=False, highlight=False, soft_wrap=True)
    snapshots = {player: league.candidates.history_of(player) for player in league.standings}
    concerns = [
        *concerns_of_metrics(metrics, [*snapshots], str(training.folder.path), training.experiment.budget),
        *concerns_of_ratings(elo_of(summary), snapshots, metrics),
    ]
    for line in (*lost.lines(), *(f"warning: {one.what}: {one.why}; {one.advice}" for one in concerns)):
        console.print(line, markup=False, soft_wrap=True)
    path = training.folder.path
    more = "" if reason != rounds.FINISHED else f" --set budget={2 * training.experiment.budget}"
    decisions, updates = (int(training.numbers()[name]) for name in ("decisions", "updates"))
    if not budget_told and updates and decisions // updates > training.experiment.budget:
        console.print(_below_an_update(training.experiment, decisions // updates), soft_wrap=True)
    ludus = program()
    lines = [
        f"{reason} after {decisions:,} decisions: {path}",
        f"go on:    {ludus} train --run {path} --resume{more}",
        f"look:     {ludus} league {path}",
        f"watch:    {ludus} watch {path}",
        *([f"play:     {ludus} play {path}"] if is_playable(training.experiment.game) else []),
        f"measure:  {ludus} eval {path}",
        f"report:   {ludus} report {path}",
    ]
    console.print(*lines, sep="\n", soft_wrap=True)  # so that a command can be copied whole
