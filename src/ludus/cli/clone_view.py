"""What `ludus clone` shows while it trains: a picture in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ludus.cli.console import add_numbers, new_table
from ludus.cli.fitting import flow
from ludus.cli.live_view import REDRAW_S, UNREAD, Style, progress_line, time_left
from ludus.runtime.program import StopTraining
from ludus.runtime.serial import FINISHED
from ludus.store.model_pool import BEST
from ludus.workers.cloned_run import ClonedRun, CloningFacts

ACCURACY = "accuracy."


class CloneView:
    """Call it after every update; it draws when it is time."""

    def __init__(self, cloned: ClonedRun, style: Style, console: Console, minutes: float | None) -> None:
        self._cloned = cloned
        self._style = style
        self._console = console
        self._minutes = minutes
        self._live = Live(console=console, auto_refresh=False, transient=True) if style == "live" else None
        self._started = self._drawn = time.monotonic()
        self._before = cloned.numbers()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def __call__(self, cloned: ClonedRun) -> None:
        now = time.monotonic()
        if self._style != "quiet" and now - self._drawn >= REDRAW_S[self._style]:
            self._drawn = now
            try:
                self._draw(self._numbers(now))
            except (BrokenPipeError, SystemExit):  # rich ends the program where click raises the error
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
                raise StopTraining(UNREAD) from None

    def _draw(self, numbers: Mapping[str, float]) -> None:
        if self._live is not None:
            self._live.update(self._picture(numbers), refresh=True)
        elif self._style == "lines":
            self._console.print(self._line(numbers), highlight=False, soft_wrap=True)
        elif self._style == "json":
            click.echo(json.dumps(numbers))

    def _numbers(self, now: float) -> dict[str, float]:
        numbers = self._cloned.numbers()
        passed = max(now - self._started, 1e-9)
        rates = {
            f"{name}_per_s": (numbers[name] - self._before[name]) / passed
            for name in ("decisions", "windows")
        }
        left = max(0.0, self._cloned.cloner.budget - numbers["decisions"])
        left_s = left / rates["decisions_per_s"] if rates["decisions_per_s"] else None
        if self._minutes is not None:
            left_s = min(left_s or float("inf"), max(0.0, 60 * self._minutes - passed))
        return {
            "progress": self._cloned.cloner.progress,
            **rates,
            **({"left_s": left_s} if left_s is not None else {}),
            **numbers,
        }

    def _line(self, numbers: Mapping[str, float]) -> str:
        player = self._cloned.player
        loss = numbers.get(f"{player}/loss")
        return (
            f"{numbers['progress']:6.1%}  step {numbers['updates']:>7,.0f}  "
            + (f"loss {loss:.3f}  " if loss is not None else "")
            + "right: "
            + ", ".join(f"{head} {share:.1%}" for head, share in accuracies(player, numbers))
            + f"  {numbers['windows_per_s']:,.0f} windows/s  {time_left(numbers)}  {self._validated(numbers)}"
        ).rstrip()

    def _validated(self, numbers: Mapping[str, float]) -> str:
        loss = numbers.get(f"{self._cloned.player}/validation.loss")
        return f"validation {loss:.3f}, best {self._cloned.best:.3f}" if loss is not None else ""

    def _picture(self, numbers: Mapping[str, float]) -> Group:
        player = self._cloned.player
        loss = numbers.get(f"{player}/loss", float("nan"))
        figures = [
            f"step {numbers['updates']:,.0f}",
            f"epoch {numbers['epochs']:.1f}",
            f"loss {loss:.3f}",
            f"{numbers['decisions_per_s']:,.0f} decisions/s",
            f"{numbers['windows_per_s']:,.0f} windows/s",
            *filter(None, [self._validated(numbers)]),
        ]
        head = Text.assemble(
            ("cloning ", "bold"),
            player,
            "   ",
            (str(self._cloned.folder.path), "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )
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
        table.add_row(
            head,
            f"{trained[head]:.1%}" if head in trained else "",
            f"{validated[head]:.1%}" if head in validated else "",
            f"{log_prob:.3f}" if log_prob is not None else "",
        )
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
        f"measure:  ludus eval {path} {player}@{BEST} BOT ...\n"
        f"a league: ludus train {facts.recipe}{network} {start}",
        soft_wrap=True,
    )
