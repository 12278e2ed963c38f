"""`ludus league`: players, ratings with error bars, payoff and equilibrium of a run, live or finished."""

from __future__ import annotations

import click

from ludus.cli.experiments import open_run
from ludus.cli.league_edits import LeagueCommand
from ludus.cli.league_view import show_league


@click.command("league", cls=LeagueCommand)
@click.argument("run", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
@click.option("--follow", is_flag=True, help="Show it again whenever something has happened.")
def command(run: str | None, as_json: bool, follow: bool) -> None:
    """Show the league of RUN (default: the newest run). Reads only; the run may be training."""
    show_league(open_run(run), as_json=as_json, follow=follow)
