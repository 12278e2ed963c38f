"""`ludus check`: does a game keep the promises that training relies on?"""

from __future__ import annotations

import click

from ludus.cli.main import FAILED
from ludus.cli.outside_bots import add_game_bots
from ludus.cli.replay_games import find_game
from ludus.cli.user_code import loading
from ludus.config import ConfigError
from ludus.games.check import check_game, most_tables
from ludus.games.game import GameSource, NeedsMore
from ludus.games.isolation.source import Isolation, isolate
from ludus.games.with_bots import named_address


@click.command("check")
@click.argument("game", metavar="GAME")
@click.option(
    "--episodes", type=click.IntRange(min=1), default=64, show_default=True, help="Random episodes to play."
)
@click.option(
    "--tables",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Tables played at the same time.",
)
@click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE",
              help="An option of GAME; options.+NAME=VALUE for one that it passes on.")  # fmt: skip
@click.option("--bot", "bots", multiple=True, metavar="[NAME=]ADDRESS",
              help="A bot from outside that is checked too: FILE.py:CLASS or program:COMMAND.")  # fmt: skip
@click.option("--isolated", is_flag=True, help="Play it in processes of its own.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def command(
    game: str,
    episodes: int,
    tables: int,
    settings: tuple[str, ...],
    bots: tuple[str, ...],
    isolated: bool,
    seed: int,
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
                f"{bot!r} is no address of a bot: write FILE.py:CLASS or program:COMMAND",
                param_hint="'--bot'",
            )
    report = check_game(source, episodes=episodes, tables=tables, seed=seed)
    click.echo(str(report))
    return 0 if report.ok else FAILED


def _require_all_it_needs(address: str, game: GameSource, tables: int) -> None:
    if not isinstance(game, NeedsMore):
        return
    most = most_tables(game, tables)
    missing = game.missing(most)
    if missing:
        more = f" (--tables {tables} needs up to {most})" if most > tables else ""
        raise ConfigError("\n  ".join([f"{address} cannot be played here{more}:", *missing]))
