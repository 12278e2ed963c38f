"""`ludus check`: does a game keep the promises that training relies on?"""

from __future__ import annotations

import click

from ludus.cli.main import FAILED
from ludus.games.catalog import resolve
from ludus.games.check import check_game


@click.command("check")
@click.argument("game", metavar="GAME")
@click.option("--episodes", default=64, show_default=True, help="Random episodes to play.")
@click.option("--tables", default=4, show_default=True, help="Tables played at the same time.")
@click.option("--seed", default=0, show_default=True)
def command(game: str, episodes: int, tables: int, seed: int) -> int:
    """Play GAME (a name from `ludus games`, or FILE.py:CLASS) and check every promise of its interface.

    A failure names the promise, the table, the step and the value. Exit code 1 if any fails.
    """
    try:
        source = resolve(game)
    except (ValueError, ImportError, OSError, TypeError) as error:
        raise click.ClickException(str(error)) from error
    report = check_game(source, episodes=episodes, tables=tables, seed=seed)
    click.echo(str(report))
    return 0 if report.ok else FAILED
