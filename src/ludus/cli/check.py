"""`ludus check`: does a game keep the promises that training relies on?"""

from __future__ import annotations

import click

from ludus.cli.main import FAILED
from ludus.cli.replay_games import find_game
from ludus.games.check import check_game


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
@click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="An option of GAME.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def command(game: str, episodes: int, tables: int, settings: tuple[str, ...], seed: int) -> int:
    """Play GAME (a name from `ludus games`, or FILE.py:CLASS) and check every promise of its interface.

    A failure names the promise, the table, the step and the value. Exit code 1 if any fails.
    """
    report = check_game(find_game(game, settings), episodes=episodes, tables=tables, seed=seed)
    click.echo(str(report))
    return 0 if report.ok else FAILED
