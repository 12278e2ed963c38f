"""Progress of work whose size is known: a bar in a terminal, a line now and then elsewhere, or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from types import TracebackType
from typing import Literal, Self

import click
from rich import progress
from rich.console import Console
from rich.table import Column

from ludus.cli.console import can_redraw

Style = Literal["shown", "json", "quiet"]

EVERY_S = {"bar": 0.1, "lines": 5.0, "json": 1.0}


class Progress:
    """Call it with how much is done; it draws when it is time. What is printed goes to standard error."""

    def __init__(self, things: str, total: int, style: Style) -> None:
        self._things, self._total = things, total
        shown = "bar" if can_redraw(sys.stderr) else "lines"
        self._form = "" if style == "quiet" else "json" if style == "json" else shown
        self._started = self._drawn = time.monotonic()
        self._first: int | None = None
        self._bar: progress.Progress | None = None

    def __enter__(self) -> Self:
        if self._form == "bar":
            self._bar = progress.Progress(
                progress.BarColumn(bar_width=None),
                progress.MofNCompleteColumn(),
                progress.TextColumn(self._things),
                progress.TimeRemainingColumn(compact=True),
                progress.TextColumn("{task.fields[more]}", style="dim", table_column=Column(no_wrap=True)),
                console=Console(stderr=True, highlight=False),
                transient=True,
                expand=True,
            )
            self._bar.add_task("", total=self._total, more="")
            self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)

    def __call__(self, done: int, more: str = "", **numbers: float) -> None:
        """`more` is shown beside the bar; `numbers` come with JSON lines."""
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if not self._form or (now - self._drawn < EVERY_S[self._form] and done < self._total):
            return
        self._drawn = now
        if self._bar is not None:
            self._bar.update(progress.TaskID(0), completed=done, more=more)
            return
        rate = (done - self._first) / max(now - self._started, 1e-9)
        if self._form == "json":
            click.echo(json.dumps({self._things: done, "total": self._total, "per_s": rate, **numbers}))
        else:
            left = f"{(self._total - done) / rate:,.0f} s left" if rate else "? left"
            shown = f"{done / max(self._total, 1):6.1%}  {done:,} of {self._total:,} {self._things}  {left}"
            click.echo(f"{shown}  {more}".rstrip(), err=True)
