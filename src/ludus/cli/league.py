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

from ludus.cli.control import ask_and_tell, json_option, wait_option
from ludus.data.records import AddPlayer, FreezePlayer, RemovePlayer, ResetPlayer
from ludus.league.league import League
from ludus.league.players import Descent
from ludus.lookup import open_run, parse_settings
from ludus.observe.league_reader import LeagueReader
from ludus.observe.terminal import add_numbers, league_table, measure_lines, new_console, new_table, payoff_table, short
from ludus.store.run_folder import RunFolder


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
        settings = league.settings_of(player)
        values = [_shown(settings.get(path)) for path in paths]
        table.add_row(player, *values, str(league.standings[player].takeovers), _latest(league, player))
    return table


def _latest(league: League, player: str) -> str:
    taken = [descent for descent in league.lineage.descents[player] if descent.donor is not None]
    return _told(taken[-1]) if taken else ""


def _told(descent: Descent) -> str:
    return f"from {descent.donor} at {short(descent.decisions)} decisions"


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


FOLLOW_S = 2.0


def show_league(folder: RunFolder, *, as_json: bool, follow: bool) -> None:
    console = new_console()
    with closing(LeagueReader(folder)) as reader:
        while True:
            reader.require_players()
            if as_json:
                click.echo(json.dumps(reader.document()))
            else:
                _show(reader, console)
            if not follow:
                return
            while not reader.follow():
                time.sleep(FOLLOW_S)


def _show(reader: LeagueReader, console: Console) -> None:
    league, summary = reader.league, reader.summary
    console.print(league_table(league, summary, reader.opponents))
    if league.num_teams > 1:
        console.print()
        console.print(payoff_table(summary, console.width))
    if (population := population_table(league)) is not None:
        console.print()
        console.print(population)
    console.print()
    for line in measure_lines(summary):
        console.print(line)
    book = league.matches
    console.print(
        f"{book.issued:,} matches issued: {book.finished:,} finished ({book.evaluations:,} of them "
        f"evaluations), {book.void:,} void, {len(book.open_matches):,} open"
    )
    for line in reader.lost.lines():
        console.print(line, markup=False, soft_wrap=True)


from_option = click.option(
    "--from",
    "--model",
    "source",
    metavar="WHAT",
    help="Weights to begin with: of a player as it is now, PLAYER@best, or PLAYER:INCARNATION:STEP.",
)


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
            formatter.write_dl([(word, edit.get_short_help_str()) for word, edit in EDITS.items()])


@click.command("add")
@click.argument("player")
@click.option("--role", required=True, help="A learning role of the league, frozen or scripted.")
@from_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="A setting of its own (learner.* or algorithm.*); may be repeated.",
)
@wait_option
@json_option
@click.pass_obj
def add(
    run: str, player: str, role: str, source: str | None, settings: tuple[str, ...], patience_s: float, as_json: bool
) -> None:
    """Add PLAYER: one that learns, a frozen one, or a bot of the game.

    \b
    ludus league runs/mine add second --role main --from main --set learner.learning_rate=1e-4
    ludus league runs/mine add champion --role frozen --from main@best
    ludus league runs/mine add random --role scripted
    """
    edit = AddPlayer(player=player, role=role, source=source, settings=dict(parse_settings(settings)))
    ask_and_tell(run, edit, patience_s, as_json=as_json)


@click.command("remove")
@click.argument("player")
@click.option("--reason", default="by hand", show_default=True)
@wait_option
@json_option
@click.pass_obj
def remove(run: str, player: str, reason: str, patience_s: float, as_json: bool) -> None:
    """Take PLAYER out of the league. What it has played still counts, and its id is never used again."""
    ask_and_tell(run, RemovePlayer(player=player, reason=reason), patience_s, as_json=as_json)


@click.command("freeze")
@click.argument("player")
@wait_option
@json_option
@click.pass_obj
def freeze(run: str, player: str, patience_s: float, as_json: bool) -> None:
    """Add a snapshot of learning PLAYER as it is now."""
    ask_and_tell(run, FreezePlayer(player=player), patience_s, as_json=as_json)


@click.command("reset")
@click.argument("player")
@from_option
@wait_option
@json_option
@click.pass_obj
def reset(run: str, player: str, source: str | None, patience_s: float, as_json: bool) -> None:
    """Let learning PLAYER start again, from what its role says or from other weights."""
    ask_and_tell(run, ResetPlayer(player=player, source=source), patience_s, as_json=as_json)


EDITS: dict[str, click.Command] = {"add": add, "remove": remove, "freeze": freeze, "reset": reset}


@click.command("league", cls=LeagueCommand)
@click.argument("run", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
@click.option("--follow", is_flag=True, help="Show it again whenever something has happened.")
def command(run: str | None, as_json: bool, follow: bool) -> None:
    """Show the league of RUN (default: the newest run). Reads only; the run may be training."""
    show_league(open_run(run), as_json=as_json, follow=follow)
