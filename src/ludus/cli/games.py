"""`ludus games`: which games can be named here, what is missing for the others, and the way to add it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

import ludus.recipes
from ludus.cli.main import FAILED
from ludus.cli.options import COUNT, FOLDER, json_option, seed_option, set_option
from ludus.config import ConfigError, paths
from ludus.data.checks import did_you_mean
from ludus.games.catalog import ADAPTERS, GameEntry, list_games
from ludus.games.check import check_game, most_tables
from ludus.games.checked_play import ends_if_stuck
from ludus.games.environments import ENVIRONMENTS, InstallError, environments_folder, install
from ludus.games.game import GameSource, NeedsMore
from ludus.games.isolation.isolated import Isolated, Isolation, isolate
from ludus.games.outside_bots import named_address
from ludus.lookup import add_game_bots, find_experiment, loading, recipe_names
from ludus.observe.terminal import new_console, new_table
from ludus.replays.replay_games import find_game


@click.command("games")
@json_option()
@click.option("--install", "name", metavar="NAME", help="Give this game an environment of its own.")
@click.option("--where", type=FOLDER, help="For environments; default: $LUDUS_GAMES, or one among your data.")
def games_command(as_json: bool, name: str | None, where: Path | None) -> int:
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
    table = new_table("address", "game, and what it needs here")
    for entry in entries:
        critics = " Critics see the whole state with `critic_state=true`." if entry.critic_state else ""
        missing = _missing(entry)
        table.add_row(entry.address, escape(entry.description + critics + (f"\nHere: {missing}" if missing else "")))
    console = new_console()
    console.print(table)
    console.print("\nYour own: FILE.py:CLASS. `ludus check ADDRESS` checks a game, `ludus train ADDRESS` trains it.")
    return 0


def _missing(entry: GameEntry) -> str:
    """What has to be done before the game can be played here; empty if nothing."""
    if entry.install is not None:
        return entry.install
    if entry.needs is not None:
        return f"needs {entry.needs}"
    return "" if entry.python is None else "ready, in an environment of its own"


def _install(name: str, where: Path | None) -> int:
    if name not in ENVIRONMENTS:
        adapter = ADAPTERS.get(name.partition(":")[0])
        reason = f"no environment for {name!r}{did_you_mean(name, ENVIRONMENTS)}"
        if adapter is not None:
            reason = f"{name!r} needs no environment of its own: {adapter.install}"
        raise click.BadParameter(reason, param_hint="'--install'")
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


@click.command("check")
@click.argument("game", metavar="GAME")
@click.option("--episodes", type=COUNT, default=64, help="Random episodes to play.")
@click.option("--tables", type=COUNT, default=4, help="Tables played at the same time.")
@set_option("An option of GAME; options.+NAME=VALUE for one that it passes on.", of="OPTION")
@click.option(
    "--bot", "bots", multiple=True, metavar="[NAME=]ADDRESS", help="Check FILE.py:CLASS or program:COMMAND too."
)
@click.option("--isolated", is_flag=True, help="Play it in processes of its own.")
@seed_option
def check_command(
    game: str, episodes: int, tables: int, settings: tuple[str, ...], bots: tuple[str, ...], isolated: bool, seed: int
) -> int:
    """Play GAME (a name from `ludus games`, or FILE.py:CLASS) and check every promise of its interface.

    A failure names the promise, the table, the step and the value. Exit code 1 if any fails.
    """
    found = find_game(game, settings)
    _require_all_it_needs(game, found, tables)
    if isolated:
        with loading(game):
            found = isolate(found, Isolation(processes=min(tables, 2)))
    source = add_game_bots(found, bots)[0]
    for bot in bots:
        if named_address(bot) is None:
            raise click.BadParameter(
                f"{bot!r} is no address of a bot: write FILE.py:CLASS or program:COMMAND", param_hint="'--bot'"
            )
    ends_if_stuck.set(True)  # for this command alone: `main` runs it in a context of its own
    report = check_game(source, episodes=episodes, tables=tables, seed=seed)
    click.echo(str(report))
    return 0 if report.ok else FAILED


def _require_all_it_needs(address: str, game: GameSource, tables: int) -> None:
    if not isinstance(game, NeedsMore):
        return
    most = most_tables(game, tables)
    if missing := game.missing(most):
        more = f" (--tables {tables} needs up to {most})" if most > tables else ""
        raise ConfigError("\n  ".join([f"{address} cannot be played here{more}:", *missing]))


@click.command("recipes")
@click.argument("recipe", required=False)
@json_option()
def recipes_command(recipe: str | None, as_json: bool) -> None:
    """List the recipes, or every setting of RECIPE (also FILE.py:NAME) as PATH=VALUE with its meaning.

    Those marked (live) may be changed while a run trains: `ludus set RUN PATH=VALUE`.
    """
    rows: list[dict[str, Any]]
    if recipe is None:
        rows = [{"recipe": name, "what it does": describe(name)} for name in recipe_names()]
    else:
        rows = [
            {"path": at, "value": shown(value), "meaning": doc or type_name, "live": live}
            for at, type_name, value, doc, live in paths(find_experiment(recipe, ()))
        ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    console = new_console()
    if recipe is None:
        table = new_table("recipe", "what it does")
        for row in rows:
            table.add_row(*map(escape, row.values()))
        console.print(table)
        console.print("\nEvery setting of one: ludus recipes RECIPE. Train it: ludus train RECIPE.")
        return
    for row in rows:
        mark = "(live) " if row["live"] else ""
        setting, meaning = f"{row['path']}={row['value']}", f"# {mark}{' '.join(row['meaning'].split())}"
        if not console.is_terminal or len(setting) + 2 + len(meaning) <= console.width:
            console.print(Text.assemble(setting, (f"  {meaning}", "dim")), soft_wrap=True)
        else:  # below it, so that every setting begins a line and none is broken
            console.print(Text(setting), soft_wrap=True)
            console.print(Padding(Text(meaning, "dim"), (0, 0, 0, 4)))


def shown(value: Any) -> str:
    """As `--set` would take it. Of what has settings of its own, only the name: they come next."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(map(str, value))
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    return type(value).__name__ if is_dataclass(value) else str(value)


def describe(recipe: str) -> str:
    """First sentence of the recipe's docstring, read without importing it."""
    file = Path(next(iter(ludus.recipes.__path__))) / f"{recipe}.py"
    whole = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.]) ", whole)[0]
