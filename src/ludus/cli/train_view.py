"""The progress that `ludus train` shows: a live table in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Self

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ludus.league.summary import LeagueSummary, summarise
from ludus.observe.progress import EVERY_S, FIRST_S, TrainingProgress, time_left, troubles
from ludus.observe.terminal import can_redraw, flow, league_table, short
from ludus.runtime.coordinator import Training
from ludus.workers.worker import StopTraining

Style = Literal["live", "lines", "json", "quiet"]

UNREAD = "nobody reads the output any more"
"""The reason that ends a run whose output pipe was closed, as in `ludus train --json | head`."""
REDRAW_S = {"live": 1.0, "lines": EVERY_S, "json": 1.0}
LEAGUE_S = 5.0  # the fit of the ratings is worth a few milliseconds now and then, not at every redraw
LOW = 10  # with fewer lines than this for the league, a caption is too much
FIRST = ("entropy", "episode_reward", "value_loss", "policy_loss", "kl", "explained_variance", "learning_rate")
"""The statistics of a player that come first, where there is no room for all."""
LEFT_OUT = ("lag", "max_lag", "stale", "unused", "skipped", "refused", "dropped")
"""Statistics of decisions and updates that did not count."""
LAG_SHARE = "lag_share."  # shares of decisions by their age: for curves, not for the live table


def style_of(*, as_json: bool, quiet: bool) -> Style:
    """The form of progress on standard output."""
    return "json" if as_json else "quiet" if quiet else "live" if can_redraw(sys.stdout) else "lines"


class ProgressView(ABC):
    """Shows the progress of a run. Call it after every round; it redraws at the pace of its style."""

    def __init__(self, style: Style, console: Console) -> None:
        self._style = style
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if style == "live" else None
        self._drawn = time.monotonic()

    @abstractmethod
    def _numbers(self, now: float) -> dict[str, float]: ...
    @abstractmethod
    def _line(self, now: float) -> str: ...
    @abstractmethod
    def _picture(self, now: float) -> Group: ...

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
            self._draw(time.monotonic())
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def __call__(self, run: object) -> None:
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
            # As in the metrics: a statistic that is no number is null, for which JSON has a word.
            click.echo(msgspec.json.encode(self._numbers(now)).decode())


class TrainView(ProgressView):
    """The view of `ludus train`."""

    def __init__(self, training: Training, style: Style, console: Console) -> None:
        super().__init__(style, console)
        self._training = training
        self._rated = time.monotonic()
        self._drawn = self._rated + FIRST_S - REDRAW_S.get(style, 0.0)
        self._progress = TrainingProgress(training)
        self._summary: LeagueSummary | None = None

    def _numbers(self, now: float) -> dict[str, float]:
        return self._progress.numbers(now)

    def _line(self, now: float) -> str:
        return self._progress.line(now)

    def _picture(self, now: float) -> Group:
        """As much as the terminal has room for: what tells most comes first."""
        numbers = self._numbers(now)
        experiment, league = self._training.experiment, self._training.league
        width, height = self._console.size
        if self._summary is None or now - self._rated >= LEAGUE_S:
            self._rated = now
            self._summary = summarise(league)
        head = Text.assemble(
            (experiment.name, "bold"),
            f" on {experiment.game.spec.name}   ",
            (str(self._training.folder.path), "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )
        figures = [
            f"{short(numbers['decisions'])} of {short(experiment.budget)} decisions",
            f"{short(numbers['decisions_per_s'])}/s",
            f"{numbers['updates']:,.0f} updates",
            f"{numbers['matches']:,.0f} matches",
            f"{short(numbers['episodes'])} episodes",
        ]
        above = [
            *(Text(line) for line in flow(figures, width)),
            *(Text(line, style="bold red") for line in flow(troubles(numbers), width)),
            *_losses(numbers, width, most=height // 4),
            Text(),
        ]
        table = self._league_within(height - len(above) - len(("head", "bar")))
        return Group(head, progress_line(numbers), *above, table)

    def _league_within(self, lines: int) -> Table:
        """The table of the league, with as many players as fit into so many lines."""
        assert self._summary is not None
        league, experiment = self._training.league, self._training.experiment
        drawn = partial(
            league_table, league, self._summary, experiment.evaluation.opponents, roles=experiment.game.spec.role_names
        )
        table = drawn(most=max(1, lines))
        if lines < LOW:
            table.caption = None
        around = len(self._console.render_lines(table)) - table.row_count
        if around + table.row_count > lines:
            caption = table.caption is not None
            table = drawn(most=max(1, lines - around))
            table.caption = table.caption if caption else None
        return table


def progress_line(numbers: Mapping[str, float]) -> Table:
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_column(no_wrap=True)
    bar.add_row(ProgressBar(total=1.0, completed=numbers["progress"]), f"{numbers['progress']:.1%}", time_left(numbers))
    return bar


def _losses(numbers: Mapping[str, float], width: int, most: int) -> list[Text]:
    """A line per player with what fits into it; counts that say that something was left out come only if it
    was."""
    shown: dict[str, dict[str, str]] = {}
    for name, value in numbers.items():
        player, slash, what = name.rpartition("/")
        if slash and (value or what not in LEFT_OUT) and not what.startswith(LAG_SHARE):
            figure = short(value) if value >= 1_000 else f"{value:.3g}"
            shown.setdefault(player, {})[what] = f"{what}={figure}"
    lines = []
    for player, figures in shown.items():
        order = [*(what for what in FIRST if what in figures), *(what for what in figures if what not in FIRST)]
        lines.append(flow([player, *(figures[what] for what in order)], width)[0])
    if len(lines) > most > 0:
        lines = [*lines[: most - 1], f"and {len(lines) - most + 1} more learning players"]
    return [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines]
