"""Where commands print, and how their tables look."""

from __future__ import annotations

import os
import sys

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH_OF_FILES = 160
"""Where no terminal says how wide it is, nothing is cut short."""


def new_console() -> Console:
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else WIDTH_OF_FILES, highlight=False)


def new_table(*headings: str) -> Table:
    """With the first column whole, and all others folded before anything is cut off."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.title_justify = table.caption_justify = "left"
    for index, heading in enumerate(headings):
        table.add_column(heading, no_wrap=index == 0, overflow="fold")
    return table


def add_numbers(table: Table, *headings: str) -> None:
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
