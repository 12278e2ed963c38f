"""`ludus set`: changes settings of a run while it trains."""

from __future__ import annotations

import click

from ludus.cli.asking import ask_and_tell, json_option, wait_option
from ludus.cli.experiments import parse_settings
from ludus.data.edits import ChangeSettings


@click.command("set")
@click.argument("run", type=click.Path())
@click.argument("settings", nargs=-1, required=True, metavar="PATH=VALUE...")
@click.option("--player", metavar="NAME", help="Only for this learning player (learner.* and algorithm.*).")
@wait_option
@json_option
def command(
    run: str, settings: tuple[str, ...], player: str | None, patience_s: float, as_json: bool
) -> None:
    """Change settings of RUN, whether it trains or not: all of them at once, or none.

    Only those that are marked live: `ludus recipes RECIPE` shows them. They are kept in the run's ledger, and
    in force from now on, also after a resume.

    \b
    ludus set runs/mine learner.learning_rate=1e-4 algorithm.entropy=0.02
    ludus set runs/mine learner.learning_rate=1e-4 --player main_exploiter
    ludus set runs/mine league.roles.main.matchmaking.branches.0.0=0.2 \\
                        league.roles.main.matchmaking.branches.1.0=0.8
    ludus set runs/mine 'league.roles.+sparring={matchmaking: {type: Live, role: main}}'
    """
    edit = ChangeSettings(settings=dict(parse_settings(settings)), player=player)
    ask_and_tell(run, edit, patience_s, as_json=as_json)
