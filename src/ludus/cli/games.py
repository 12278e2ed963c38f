"""`ludus games`: which games can be named here, and what is missing for the others."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.markup import escape

from ludus.cli.console import new_console, new_table
from ludus.games.catalog import list_games


@click.command("games")
@click.option("--json", "as_json", is_flag=True)
def command(as_json: bool) -> None:
    """List the games, how to name them, and the command that adds what is not installed."""
    entries = list_games()
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in entries]))
        return
    table = new_table("address", "game", "here")
    for entry in entries:
        table.add_row(
            entry.address, entry.description, "yes" if entry.installed else escape(entry.install or "")
        )
    console = new_console()
    console.print(table)
    console.print("\nA game of your own: FILE.py:CLASS. See `ludus check`.")
