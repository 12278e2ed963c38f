"""What `ludus train` shows while it trains: a live table in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ludus.assemble import Training
from ludus.cli.tables import league_table, short
from ludus.league.summary import summarise
from ludus.runtime.program import StopTraining

Style = Literal["live", "lines", "json", "quiet"]

UNREAD = "nobody reads the output any more"
"""Why a run ends whose output goes to a program that has ended, as in `ludus train --json | head`."""
REDRAW_S = {"live": 1.0, "lines": 10.0, "json": 1.0}
LEAGUE_S = 5.0
"""The fit of the ratings is worth a few milliseconds now and then, not at every redraw."""
LEFT_OUT = ("lag", "max_lag", "stale", "skipped", "refused", "dropped")
"""Statistics of decisions and updates that did not count."""
LAG_SHARE = "lag_share."
"""How many decisions were how old: for curves, not for a glance."""
NOT_FINITE = (("refused", "decisions"), ("skipped", "updates"))


class TrainView:
    """Call it after every round; it draws when it is time."""

    def __init__(self, training: Training, style: Style, console: Console) -> None:
        self._training = training
        self._style = style
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if style == "live" else None
        self._started = self._drawn = self._rated = time.monotonic()
        self._decisions_before = training.numbers()["decisions"]
        self._league: Table | None = None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
            self._draw(time.monotonic())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def __call__(self, training: Training) -> None:
        now = time.monotonic()
        if self._style != "quiet" and now - self._drawn >= REDRAW_S[self._style]:
            self._drawn = now
            try:
                self._draw(now)
            except (BrokenPipeError, SystemExit):  # rich ends the program where click raises the error
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
                raise StopTraining(UNREAD) from None

    def _draw(self, now: float) -> None:
        if self._live is not None:
            self._live.update(self._picture(now), refresh=True)
        elif self._style == "lines":
            self._console.print(self._line(now), highlight=False, soft_wrap=True)
        elif self._style == "json":
            click.echo(json.dumps(self._numbers(now)))

    def _numbers(self, now: float) -> dict[str, float]:
        numbers = self._training.numbers()
        budget = self._training.experiment.budget
        rate = (numbers["decisions"] - self._decisions_before) / max(now - self._started, 1e-9)
        left = max(budget - numbers["decisions"], 0)
        return {
            "progress": min(numbers["decisions"] / budget, 1.0),
            "decisions_per_s": rate,
            **({"left_s": left / rate} if rate else {}),
            **numbers,
        }

    def _line(self, now: float) -> str:
        numbers = self._numbers(now)
        entropy = next((value for name, value in numbers.items() if name.endswith("/entropy")), None)
        return (
            f"{numbers['progress']:6.1%}  {numbers['decisions']:>12,.0f} decisions  "
            f"{numbers['decisions_per_s']:>8,.0f}/s  {numbers['matches']:>6,.0f} matches  "
            + (f"entropy {entropy:.3f}  " if entropy is not None else "")
            + time_left(numbers)
            + _troubles(numbers)
        )

    def _picture(self, now: float) -> Group:
        numbers = self._numbers(now)
        experiment = self._training.experiment
        if self._league is None or now - self._rated >= LEAGUE_S:
            self._rated = now
            league = self._training.league
            self._league = league_table(league, summarise(league), experiment.evaluation.opponents)
        head = Text.assemble(
            (experiment.name, "bold"),
            f" on {experiment.game.spec.name}   ",
            (str(self._training.folder.path), "dim"),
        )
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        bar.add_row(
            ProgressBar(total=1.0, completed=numbers["progress"]),
            f"{numbers['progress']:.1%}",
            time_left(numbers),
        )
        figures = Text(
            f"{short(numbers['decisions'])} of {short(experiment.budget)} decisions  "
            f"{short(numbers['decisions_per_s'])}/s  {numbers['updates']:,.0f} updates  "
            f"{numbers['matches']:,.0f} matches  {short(numbers['episodes'])} episodes{_troubles(numbers)}"
        )
        return Group(head, bar, figures, *_losses(numbers), Text(), self._league)


def _losses(numbers: dict[str, float]) -> list[Text]:
    """A line per player; counts that say that something was left out come only if it was."""
    lines: dict[str, list[str]] = {}
    for name, value in numbers.items():
        player, slash, what = name.rpartition("/")
        if slash and (value or what not in LEFT_OUT) and not what.startswith(LAG_SHARE):
            lines.setdefault(player, []).append(
                f"{what}={short(value) if value >= 1_000 else f'{value:.3g}'}"
            )
    return [Text(f"{player}  {'  '.join(shown)}", style="dim") for player, shown in lines.items()]


def _troubles(numbers: dict[str, float]) -> str:
    """A run that learns nothing because of a NaN must not look like one that is slow."""
    shown = ""
    for what, things in NOT_FINITE:
        count = sum(value for name, value in numbers.items() if name.endswith(f"/{what}"))
        shown += f"  {count:,.0f} {things} not finite!" if count else ""
    return shown


def time_left(numbers: Mapping[str, float]) -> str:
    if "left_s" not in numbers:
        return "? left"
    minutes, rest = divmod(int(numbers["left_s"]), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m left" if hours else f"{minutes}m {rest:02d}s left"
