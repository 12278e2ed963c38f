"""`ludus clone`: trains a player on a dataset of replays, before or instead of a league."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ludus.cli.main import INTERRUPTED
from ludus.cli.options import ABOVE_0, COUNT, OUTCOME, code_trust_option, json_option, set_option
from ludus.cli.train_view import UNREAD, ProgressView, Style, progress_line, style_of
from ludus.config import ConfigError
from ludus.data.replay import Outcome
from ludus.models.policy import use_threads
from ludus.observe.progress import time_left
from ludus.observe.terminal import add_numbers, flow, new_console, new_table
from ludus.replays.cloned_run import ClonedRun
from ludus.replays.cloning_plan import EPOCHS, OWN, CloningFacts, CloningPlan, CloningRequest, plan_new, plan_resumed
from ludus.runtime import rounds
from ludus.runtime.rounds import FINISHED
from ludus.store.files import StoreError
from ludus.store.model_pool import BEST
from ludus.store.run_folder import RunFolder
from ludus.workers.worker import TrainingFailed

ACCURACY = "accuracy."


class CloneView(ProgressView):
    """The view of `ludus clone`."""

    def __init__(self, cloned: ClonedRun, style: Style, console: Console, minutes: float | None) -> None:
        super().__init__(style, console)
        self._cloned = cloned
        self._minutes = minutes
        self._started = self._drawn
        self._before = cloned.numbers()

    def _numbers(self, now: float) -> dict[str, float]:
        numbers = self._cloned.numbers()
        passed = max(now - self._started, 1e-9)
        rates = {f"{name}_per_s": (numbers[name] - self._before[name]) / passed for name in ("decisions", "windows")}
        left = max(0.0, self._cloned.cloner.budget - numbers["decisions"])
        left_s = left / rates["decisions_per_s"] if rates["decisions_per_s"] else None
        if self._minutes is not None:
            left_s = min(left_s or float("inf"), max(0.0, 60 * self._minutes - passed))
        remaining = {} if left_s is None else {"left_s": left_s}
        return {"progress": self._cloned.cloner.progress, **rates, **remaining, **numbers}

    def _line(self, now: float) -> str:
        numbers, player = self._numbers(now), self._cloned.player
        loss = numbers.get(f"{player}/loss")
        shown_loss = f"loss {loss:.3f}  " if loss is not None else ""
        right = ", ".join(f"{head} {share:.1%}" for head, share in accuracies(player, numbers))
        return (
            f"{numbers['progress']:6.1%}  step {numbers['updates']:>7,.0f}  {shown_loss}right: {right}  "
            f"{numbers['windows_per_s']:,.0f} windows/s  {time_left(numbers)}  {self._validated(numbers)}"
        ).rstrip()

    def _validated(self, numbers: Mapping[str, float]) -> str:
        loss = numbers.get(f"{self._cloned.player}/validation.loss")
        return f"validation {loss:.3f}, best {self._cloned.best:.3f}" if loss is not None else ""

    def _picture(self, now: float) -> Group:
        numbers, player = self._numbers(now), self._cloned.player
        loss = numbers.get(f"{player}/loss", float("nan"))
        figures = [
            f"step {numbers['updates']:,.0f}",
            f"epoch {numbers['epochs']:.1f}",
            f"loss {loss:.3f}",
            f"{numbers['decisions_per_s']:,.0f} decisions/s",
            f"{numbers['windows_per_s']:,.0f} windows/s",
            *filter(None, [self._validated(numbers)]),
        ]
        path = (str(self._cloned.folder.path), "dim")
        head = Text.assemble(("cloning ", "bold"), f"{player}   ", path, no_wrap=True, overflow="ellipsis")
        lines = [Text(line) for line in flow(figures, self._console.width)]
        return Group(head, progress_line(numbers), *lines, Text(), accuracy_table(player, numbers))


def accuracies(player: str, numbers: Mapping[str, float], of: str = "") -> Iterator[tuple[str, float]]:
    """(head, share of its choices that are right); `of`: "validation." for those not trained on."""
    prefix = f"{player}/{of}{ACCURACY}"
    for name, value in numbers.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), value


def accuracy_table(player: str, numbers: Mapping[str, float]) -> Table:
    table = new_table("head")
    add_numbers(table, "right in training", "right in validation", "log-probability in validation")
    trained, validated = dict(accuracies(player, numbers)), dict(accuracies(player, numbers, "validation."))
    for head in trained | validated:
        log_prob = numbers.get(f"{player}/validation.log_prob.{head}")
        shares = (f"{of[head]:.1%}" if head in of else "" for of in (trained, validated))
        table.add_row(head, *shares, f"{log_prob:.3f}" if log_prob is not None else "")
    return table


def show_end(cloned: ClonedRun, reason: str, facts: CloningFacts, console: Console) -> None:
    numbers, path, player = cloned.numbers(), cloned.folder.path, cloned.player
    console.print(accuracy_table(player, numbers))
    console.print(
        f"{reason} after {numbers['decisions']:,} decisions, {numbers['epochs']:.1f} times the data: {path}",
        soft_wrap=True,
    )
    if cloned.cloner.impossible:
        console.print(
            f"{cloned.cloner.impossible:,} times a recorded action was illegal, or outside of the network's "
            "vocabulary, and was not learned"
        )
    again = f"ludus clone --run {path} --resume"
    console.print(f"go on:    {again}" + (" --epochs ..." if reason == FINISHED else ""), soft_wrap=True)
    if not any(BEST in names for names in cloned.folder.models.tags().values()):
        return
    network = "".join(f" --set {shlex.quote(setting)}" for setting in facts.network)
    start = f"--set league.roles.{player}.start={path}#{player}@{BEST}"
    console.print(
        f"measure:  ludus eval {path} {player}@{BEST} BOT ...\na league: ludus train {facts.recipe}{network} {start}",
        soft_wrap=True,
    )


@click.command("clone")
@click.argument("dataset", required=False, type=click.Path())
@click.argument("recipe", required=False, metavar="[RECIPE|FILE.py:NAME|FILE.yaml]")
@click.option("--player", default="main", help="What the player is called.")
@click.option("--run", type=click.Path(), help="Run folder; default: a new one under runs/.")
@click.option("--resume", is_flag=True, help="Go on with --run (default: the newest run).")
@click.option("--epochs", type=ABOVE_0, help=f"Times through the data, in all; default: {EPOCHS:g}.")
@click.option("--steps", type=COUNT, help="About so many gradient steps, instead of --epochs.")
@click.option("--minutes", type=ABOVE_0, help="Stop after so long, at most.")
@click.option("--validation", metavar="SHARE", help="Of the games, kept apart to measure on; default: 0.1.")
@click.option("--window", metavar="N", help="Decisions that are read together; default: 64.")
@click.option("--filter-outcome", "outcome", type=OUTCOME, help="Learn only from seats that ended so.")
@click.option("--cut-vocabularies", is_flag=True, help="Let the network know only what is in the data.")
@click.option("--threads", type=COUNT, default=1, help="Cores for the arithmetic; results differ in the last digits.")
@set_option("Change a setting of the recipe, or cloning.PATH; may be repeated.")
@click.option("--quiet", is_flag=True, help="Show nothing until the end.")
@json_option("Print JSON lines.")
@code_trust_option
def clone_command(
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
    wish = CloningRequest(settings=(*settings, *given), epochs=epochs, steps=steps)
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
    folder = plan.folder or plan.write_to(None if run is None else Path(run))
    use_threads(threads)
    return _clone(plan, folder, style_of(as_json=as_json, quiet=quiet), minutes)


def _clone(plan: CloningPlan, folder: RunFolder, style: Style, minutes: float | None) -> int:
    """Train, show the progress and the end, and return the exit code."""
    console = new_console()
    again = f"ludus clone --run {folder.path} --resume"
    with folder.lock():
        folder = plan.update(folder)
        if style in ("live", "lines"):
            console.print(f"run folder: {folder.path}\n{plan.description}", soft_wrap=True)
            for output in plan.experiment.metrics:
                console.print(f"metrics:    {output.where(folder)}", soft_wrap=True)
        cloned: ClonedRun | None = None
        try:
            cloned = ClonedRun(plan, folder)
            with CloneView(cloned, style, console, minutes=minutes) as view:
                reason = cloned.run(view, minutes=minutes, middleware=plan.experiment.middleware)
            if reason == UNREAD:
                click.echo(f"{reason}: saved; {again} goes on", err=True)
                return INTERRUPTED
            if style == "json":
                click.echo(msgspec.json.encode({"end": reason, "run": str(folder.path), **cloned.numbers()}).decode())
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
    return INTERRUPTED if reason == rounds.INTERRUPTED else 0
