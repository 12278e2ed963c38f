"""Where commands print, and how their tables look."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from ludus.cli.fitting import FittingTable

WIDTH_OF_FILES = 160
"""Where no terminal says how wide it is, nothing is cut short."""


def new_console() -> Console:
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a sign that the encoding lacks is no reason to fail
    plain = not can_redraw(sys.stdout) and "FORCE_COLOR" not in os.environ
    return Console(
        width=None if known else WIDTH_OF_FILES, color_system=None if plain else "auto", highlight=False
    )


def can_redraw(stream: TextIO) -> bool:
    """Whether somebody looks on whose terminal can draw over what it shows: not in a file, a pipe, a dumb
    terminal or the log of a CI job, which may give its programs a terminal and keep all that they draw."""
    dumb = os.environ.get("TERM", "dumb").lower() in ("dumb", "unknown")
    return stream.isatty() and not dumb and not os.environ.get("CI")


def new_table(*headings: str) -> FittingTable:
    """With the first column whole; of the others, what does not fit in is folded or left out."""
    table = FittingTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.title_justify = table.caption_justify = "left"
    for index, heading in enumerate(headings):
        table.add_column(heading, no_wrap=index == 0, overflow="fold")
    return table


def add_numbers(table: Table, *headings: str) -> None:
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
