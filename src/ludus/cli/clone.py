"""`ludus clone`: trains a player on a dataset of replays, before or instead of a league."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import click
import numpy as np

from ludus.assemble import CHECKPOINT, build_policies, load_experiment, new_league
from ludus.cli.clone_view import CloneView, show_end
from ludus.cli.cloning_plan import EPOCHS, OWN, CloningPlan, Wish, plan_new, plan_resumed
from ludus.cli.console import new_console
from ludus.cli.live_view import UNREAD, style_of
from ludus.cli.main import INTERRUPTED
from ludus.config import ConfigError, encode
from ludus.data.episodes import Outcome
from ludus.observe.metrics import RunMetrics
from ludus.runtime import serial
from ludus.runtime.supervision import TrainingFailed
from ludus.store.files import StoreError
from ludus.store.run_folder import RunFolder
from ludus.workers.cloned_run import ClonedRun
from ludus.workers.cloning import Cloner
from ludus.workers.threads import use_threads
from ludus.workers.trained_player import TrainedPlayer


@click.command("clone")
@click.argument("dataset", required=False, type=click.Path())
@click.argument("recipe", required=False, metavar="[RECIPE|FILE.py:NAME|FILE.yaml]")
@click.option("--player", default="main", show_default=True, help="What the player is called.")
@click.option("--run", type=click.Path(), help="Run folder; default: a new one under runs/.")
@click.option("--resume", is_flag=True, help="Go on with --run (default: the newest run).")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True),
              help=f"Times through the data, in all; default: {EPOCHS:g}.")  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(min=1), help="About so many gradient steps, instead of --epochs."
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after so long, at most.")
@click.option("--validation", metavar="SHARE", help="Of the games, kept apart to measure on; default: 0.1.")
@click.option("--window", metavar="N", help="Decisions that are read together; default: 64.")
@click.option("--filter-outcome", "outcome", type=click.Choice(["win", "draw", "loss"]),
              help="Learn only from seats that ended so.")  # fmt: skip
@click.option("--cut-vocabularies", is_flag=True, help="Let the network know only what is in the data.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True,
              help="Cores for the arithmetic; results vary with it in the last digits.")  # fmt: skip
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a setting of the recipe, or cloning.PATH; may be repeated.",
)
@click.option("--quiet", is_flag=True, help="Show nothing until the end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def command(
    dataset: str | None,
    recipe: str | None,
    player: str,
    run: str | None,
    resume: bool,
    epochs: float | None,
    steps: int | None,
    minutes: float | None,
    validation: str | None,
    window: str | None,
    outcome: Outcome | None,
    cut_vocabularies: bool,
    threads: int,
    settings: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> int:
    """Train the network of a recipe to do what was done in DATASET, which `ludus convert` made.

    The result is a run with one player, whose models any command can name.

    \b
    ludus clone data/rush skirmish --run runs/clone
    ludus eval runs/clone main@best rush
    ludus train skirmish --set league.roles.main.start=runs/clone#main@best
    ludus clone --run runs/clone --resume --epochs 20
    """
    if epochs is not None and steps is not None:
        raise ConfigError("--epochs and --steps say the same thing: give one of them")
    shorthands = {"validation": validation, "window": window}
    given = (f"{OWN}.{name}={text}" for name, text in shorthands.items() if text is not None)
    wish = Wish(settings=(*settings, *given), epochs=epochs, steps=steps)
    if resume:
        fixed = {recipe: recipe, "--filter-outcome": outcome, "--cut-vocabularies": cut_vocabularies}
        for what, value in fixed.items():
            if value:
                raise ConfigError(f"--resume takes all of that from the run folder; leave out {what}")
        plan = plan_resumed(run, dataset, wish)
    elif dataset is None or recipe is None:
        raise click.UsageError("name a dataset and a recipe: ludus clone DATASET RECIPE")
    else:
        if run is not None:
            RunFolder.require_free(run)
        plan = plan_new(dataset, recipe, player, wish, outcome=outcome, cut=cut_vocabularies)
    console = new_console()
    style = style_of(as_json=as_json, quiet=quiet)
    folder = plan.folder or _create(plan, run)
    again = f"ludus clone --run {folder.path} --resume"
    with folder.lock():
        if resume and encode(plan.experiment) != encode(load_experiment(folder)):
            folder = folder.with_experiment(encode(plan.experiment))
        plan.facts.write(folder)
        if style in ("live", "lines"):
            console.print(f"run folder: {folder.path}\n{plan.description}", soft_wrap=True)
            for output in plan.experiment.metrics:
                console.print(f"metrics:    {output.where(folder)}", soft_wrap=True)
        cloned: ClonedRun | None = None
        try:
            use_threads(threads)
            cloned = _start(plan, folder)
            with CloneView(cloned, style, console, minutes=minutes) as view:
                reason = cloned.run(view, minutes=minutes, middleware=plan.experiment.middleware)
            if reason == UNREAD:
                click.echo(f"{reason}: saved; {again} goes on", err=True)
                return INTERRUPTED
            if as_json:
                click.echo(json.dumps({"end": reason, "run": str(folder.path), **cloned.numbers()}))
            else:
                show_end(cloned, reason, plan.facts, console)
        except KeyboardInterrupt:
            click.echo(f"stopped at once; {again} goes on from the latest checkpoint", err=True)
            raise
        except (TrainingFailed, StoreError, OSError):
            click.echo(f"this ends with an error; once that is mended, {again} goes on", err=True)
            raise
        finally:
            if cloned is not None:
                cloned.close()
    return INTERRUPTED if reason == serial.INTERRUPTED else 0


def _create(plan: CloningPlan, run: str | None) -> RunFolder:
    experiment = plan.experiment
    path = Path(run) if run is not None else RunFolder.name_new(f"{experiment.name}-clone")
    return RunFolder.create(path, encode(experiment), seed=experiment.seed, command=sys.argv)


def _start(plan: CloningPlan, folder: RunFolder) -> ClonedRun:
    experiment, settings = plan.experiment, plan.settings
    league = new_league(experiment)
    with folder.ledger() as ledger:
        for _, event in ledger.replay():
            league.apply(event)
    seed = int(np.random.SeedSequence([experiment.seed, 0]).generate_state(1)[0])
    trained = TrainedPlayer(
        plan.facts.player,
        build_policies(experiment, seed),
        settings.loss,
        settings.learner(experiment.learner),
        seed=seed,
    )
    cloner = Cloner(
        trained,
        lambda: build_policies(experiment, seed),
        plan.training,
        plan.validation,
        budget=settings.budget,
    )
    return ClonedRun(
        cloner,
        folder,
        league,
        folder.checkpoints(CHECKPOINT),
        partial(RunMetrics, folder, experiment.metrics),
        validate_every=settings.validate_every,
        most_refused=experiment.supervision.most_refused,
    )
