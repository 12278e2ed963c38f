"""`ludus games`: which games can be named here, what is missing for the others, and the way to add it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape

from ludus.cli.console import new_console, new_table
from ludus.cli.main import FAILED
from ludus.config.errors import nearest
from ludus.games.catalog import ADAPTERS, GameEntry, list_games
from ludus.games.check import check_game
from ludus.games.environments import (
    ENVIRONMENTS,
    InstallError,
    environments_folder,
    install,
)
from ludus.games.isolation.source import Isolated


@click.command("games")
@click.option("--json", "as_json", is_flag=True)
@click.option("--install", "name", metavar="NAME", help="Give this game an environment of its own.")
@click.option(
    "--where",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for environments; default: $LUDUS_GAMES, or one among your data.",
)
def command(as_json: bool, name: str | None, where: Path | None) -> int:
    """List the games, how to name them, and the command that adds what is not installed.

    A game whose library does not go together with others is played in an environment of its own:
    `ludus games --install microrts` makes it, checks that the game works there, and may be run again after
    an interruption. The game keeps its address.
    """
    if name is not None:
        return _install(name, where)
    if where is not None:
        raise click.UsageError("--where goes with --install")
    entries = list_games()
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in entries]))
        return 0
    table = new_table("address", "game", "here")
    for entry in entries:
        table.add_row(entry.address, entry.description, escape(_here(entry)))
    console = new_console()
    console.print(table)
    console.print("\nA game of your own: FILE.py:CLASS. See `ludus check`.")
    return 0


def _here(entry: GameEntry) -> str:
    if entry.install is not None:
        return entry.install
    if entry.needs is not None:
        return f"needs {entry.needs}"
    return "yes" if entry.python is None else "yes, in an environment of its own"


def _install(name: str, where: Path | None) -> int:
    if name not in ENVIRONMENTS:
        raise click.BadParameter(_no_environment(name), param_hint="'--install'")
    folder = None if where is None else where.expanduser().absolute()
    try:
        python = install(name, folder, click.echo)
    except InstallError as error:
        raise click.ClickException(str(error)) from None
    address = ENVIRONMENTS[name].check
    click.echo(f"check {address}")
    game = Isolated(address, python=str(python), start_seconds=120.0)
    report = check_game(game, episodes=2, tables=2, max_steps=200, bot_seconds=0.2)
    if not report.ok:
        click.echo(str(report))
        click.echo(f"If something was changed there, remove {python.parent.parent} and install it again.")
        return FAILED
    if folder is not None and folder != environments_folder().absolute():
        click.echo(f"It is found where LUDUS_GAMES={folder} is set.")
    click.echo(f"{address} can be played: ludus check {address}")
    return 0


def _no_environment(name: str) -> str:
    adapter = ADAPTERS.get(name.partition(":")[0])
    if adapter is not None:
        return f"{name!r} needs no environment of its own: {adapter.install}"
    close = nearest(name, ENVIRONMENTS)
    offer = f"did you mean {close!r}?" if close else f"there are {', '.join(ENVIRONMENTS)}"
    return f"no environment for {name!r}; {offer}"
