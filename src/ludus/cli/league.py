"""`ludus league`: players, ratings with error bars, payoff and equilibrium of a run, live or finished."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ludus.cli.control import edit_command
from ludus.cli.options import json_option, set_option
from ludus.data.records import AddPlayer, FreezePlayer, RemovePlayer, ResetPlayer
from ludus.league.league import League
from ludus.lookup import open_run, parse_settings
from ludus.observe.league_fold import RunFold, lost_players
from ludus.observe.terminal import (
    add_numbers,
    league_table,
    lost_table,
    measure_lines,
    new_console,
    new_table,
    payoff_table,
    short,
)

FOLLOW_S = 2.0


def population_table(league: League) -> Table | None:
    """A row per member, with its latest takeover; None where no role has a population."""
    populations = {name: role.population for name, role in league.rules.roles.items() if role.population is not None}
    paths = list(dict.fromkeys(space.path for one in populations.values() for space in one.search))
    members = [player for player, one in league.standings.items() if one.player.role in populations]
    if not members:
        return None
    table = new_table("member")
    add_numbers(table, *paths, "takeovers")
    table.add_column("latest", overflow="fold")
    table.title = "Population: what its members train with"
    for player in members:
        own = [league.settings_of(player).get(path) for path in paths]
        values = ["" if one is None else f"{one:.3g}" if isinstance(one, float) else str(one) for one in own]
        taken = [descent for descent in league.lineage[player] if descent.donor is not None]
        latest = f"from {taken[-1].donor} at {short(taken[-1].decisions)} decisions" if taken else ""
        table.add_row(player, *values, str(league.standings[player].takeovers), latest)
    return table


def _show(fold: RunFold, console: Console) -> None:
    league, summary = fold.league, fold.summary(measured=True)
    console.print(league_table(league, summary, fold.opponents, roles=fold.roles))
    if lost := lost_players(league):
        console.print()
        console.print(lost_table(lost))
    if league.num_teams > 1:
        console.print()
        console.print(payoff_table(summary, console.width))
    if (population := population_table(league)) is not None:
        console.print()
        console.print(population)
    console.print()
    for line in measure_lines(summary):
        console.print(line)
    counts = fold.counts
    console.print(
        f"{counts.issued:,} matches issued: {counts.finished:,} finished ({counts.evaluations:,} of them "
        f"evaluations), {counts.void:,} void, {counts.open:,} open"
    )
    for line in fold.lost.lines():
        console.print(line, markup=False, soft_wrap=True)


from_option = click.option("--from", "--model", "source", metavar="WHAT", help="Weights to begin with: of a player "
                           "as it is now, PLAYER@best, or PLAYER:INCARNATION:STEP.")  # fmt: skip


class LeagueCommand(click.Command):
    """`league RUN` shows the league; with one of these words after RUN it changes it."""

    @property
    def after_run(self) -> Mapping[str, click.Command]:
        """The words that may follow RUN."""
        return EDITS

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if len(args) > 1 and args[1] in EDITS:
            run, word, *rest = args
            return EDITS[word].make_context(f"{info_name} {run} {word}", rest, parent, obj=run, **extra)
        if args and args[0] in EDITS and not Path(args[0]).exists():
            start = " ".join(filter(None, (parent.command_path if parent else "", info_name)))
            raise click.UsageError(f"which run? write {start} RUN {' '.join(args)}", parent)
        return super().make_context(info_name, args, parent, **extra)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Changes (ludus league RUN WORD --help)"):
            formatter.write_dl([(word, edit.get_short_help_str(limit=200)) for word, edit in EDITS.items()])


@click.command("add")
@click.argument("player")
@click.option("--role", required=True, help="A learning role of the league, frozen or scripted.")
@from_option
@set_option("A setting of its own (learner.* or algorithm.*); may be repeated.")
@edit_command
def add(player: str, role: str, source: str | None, settings: tuple[str, ...]) -> AddPlayer:
    """Add PLAYER: one that learns, a frozen one, or a bot of the game.

    \b
    ludus league runs/mine add second --role main --set learner.learning_rate=1e-4
    ludus league runs/mine add champion --role frozen --from main@best
    ludus league runs/mine add random --role scripted
    """
    return AddPlayer(player=player, role=role, source=source, settings=dict(parse_settings(settings)))


@click.command("remove")
@click.argument("player")
@click.option("--reason", default="by hand")
@edit_command
def remove(player: str, reason: str) -> RemovePlayer:
    """Take PLAYER out of the league. What it has played still counts, and its id is never used again."""
    return RemovePlayer(player=player, reason=reason)


@click.command("freeze")
@click.argument("player")
@edit_command
def freeze(player: str) -> FreezePlayer:
    """Add a snapshot of learning PLAYER as it is now."""
    return FreezePlayer(player=player)


@click.command("reset")
@click.argument("player")
@from_option
@edit_command
def reset(player: str, source: str | None) -> ResetPlayer:
    """Let learning PLAYER start again, from what its role says or from other weights."""
    return ResetPlayer(player=player, source=source)


EDITS: dict[str, click.Command] = {"add": add, "remove": remove, "freeze": freeze, "reset": reset}


@click.command("league", cls=LeagueCommand)
@click.argument("run", required=False, type=click.Path())
@json_option("Everything as one JSON object.")
@click.option("--follow", is_flag=True, help="Show it again whenever something has happened.")
def league_command(run: str | None, as_json: bool, follow: bool) -> None:
    """Show the league of RUN (default: the newest run). Reads only; the run may be training."""
    console = new_console()
    with closing(RunFold(open_run(run))) as fold:
        fold.follow()
        while True:
            fold.require_players()
            if as_json:
                click.echo(json.dumps(fold.document()))
            else:
                _show(fold, console)
            if not follow:
                return
            while not fold.follow():
                time.sleep(FOLLOW_S)
