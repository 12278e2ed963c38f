"""`ludus league`: players, ratings with error bars, payoff and equilibrium of a run, live or finished."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from ludus.cli.control import ask_and_tell, json_option, wait_option
from ludus.cli.terminal import (
    add_numbers,
    league_table,
    measure_lines,
    new_console,
    new_table,
    payoff_table,
    short,
)
from ludus.data.records import AddPlayer, FreezePlayer, MatchVoid, RemovePlayer, ResetPlayer
from ludus.league.league import League
from ludus.league.players import Descent
from ludus.league.ratings import OpenSkillTable
from ludus.league.summary import LeagueSummary, summarise
from ludus.lookup import open_run, parse_settings
from ludus.observe.league_fold import read_league
from ludus.observe.lost_matches import LossCount
from ludus.store.ledger import Ledger
from ludus.store.run_folder import RunFolder, read_metrics


def read_health(folder: RunFolder, voids: Counter[str]) -> dict[str, Any]:
    """What went wrong so far, by cause, and what the learners measured last: lag, and decisions that were
    stale, dropped or refused."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in ("faults", "train"):
        path = folder.metrics / f"{name}.jsonl"
        rows[name] = read_metrics(path)[0] if path.exists() else []
    faults = rows["faults"]
    return {
        "faults": dict(Counter(row["class"] for row in faults)),
        "restarts": dict(Counter(row["class"] for row in faults if "started again" in row["then"])),
        "voids": dict(voids),
        "latest": rows["train"][-1] if rows["train"] else {},
    }


def as_plain(league: League, summary: LeagueSummary, skills: OpenSkillTable) -> dict[str, Any]:
    """The league as JSON: one entry per player, the payoff as matrices in the same order."""
    players = []
    for player, rating in zip(summary.players, summary.ratings, strict=True):
        interval = rating.interval()
        standing = league.standings.get(player.id)
        players.append(
            {
                "id": player.id,
                "role": player.role,
                "parent": player.parent,
                "model": player.model,
                "weights": player.weights,
                "reason": player.reason,
                "decisions": standing.decisions if standing else player.parent_decisions,
                "active": player.id in league.active,
                "elo": rating.elo,
                "elo_interval": list(interval) if interval else None,
                "openskill": skills.skill(player.id),
                "games": rating.games,
                "equilibrium": summary.equilibrium.get(player.id, 0.0),
                "score": summary.scores.get(player.id),
                "opponents": dict(league.opponent_law(player.id)) if player.learning else None,
                "settings": league.settings_of(player.id) if player.learning else None,
                "lineage": msgspec.to_builtins(league.lineage.descents.get(player.id)),
            }
        )
    book = league.matches
    return {
        "players": players,
        "anchor": summary.anchor,
        "tags": {
            player: {
                tag: {"player": snapshot, "model": league.players[snapshot].model} for tag, snapshot in tags.items()
            }
            for player, tags in summary.tags.items()
        },
        "measures": msgspec.to_builtins(summary.measures),
        "win_rates": summary.win_rates.tolist(),
        "games": summary.games.tolist(),
        "matches": {
            "issued": book.issued,
            "finished": book.finished,
            "evaluations": book.evaluations,
            "void": book.void,
            "open": len(book.open_matches),
        },
        "settings": league.settings,
        "events": league.num_events,
        "digest": league.state_digest(),
    }


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


class _Fold:
    """Everything that the views read off the ledger."""

    def __init__(self, league: League, *, with_skills: bool) -> None:
        self.league = league
        self.skills = OpenSkillTable(seats=min(league.seats_per_team)) if with_skills else None
        self.voids: Counter[str] = Counter()
        """Matches that ended without a result, by cause."""
        self._seen = 0

    def follow(self, ledger: Ledger) -> bool:
        """Fold what is new; whether anything was."""
        before = self._seen
        for self._seen, event in ledger.replay(before):
            self.league.apply(event)
            if self.skills is not None:
                self.skills.apply(event)
            if isinstance(event, MatchVoid):
                self.voids[event.reason.partition(":")[0]] += 1
        return self._seen > before


def show_league(folder: RunFolder, *, as_json: bool, follow: bool) -> None:
    saved = read_league(folder)
    fold = _Fold(saved.league, with_skills=as_json)
    losses = LossCount()
    console = new_console()
    with folder.ledger(read_only=True) as ledger:
        fold.follow(ledger)
        while True:
            if not saved.league.players:
                raise click.ClickException("the run has no players yet: it has not started")
            if fold.skills is not None:
                summary = summarise(saved.league, measured=True, with_alpha_rank=True)
                plain = as_plain(saved.league, summary, fold.skills) | read_health(folder, fold.voids)
                plain["lost_matches"] = msgspec.to_builtins(losses.follow(ledger))
                click.echo(json.dumps(plain))
            else:
                _show(saved.league, saved.opponents, console)
                for line in losses.follow(ledger).lines():
                    console.print(line, markup=False, soft_wrap=True)
            if not follow:
                return
            while not fold.follow(ledger):
                time.sleep(FOLLOW_S)


def _show(league: League, opponents: tuple[str, ...], console: Console) -> None:
    summary = summarise(league, measured=True)
    console.print(league_table(league, summary, opponents))
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
    run: str,
    player: str,
    role: str,
    source: str | None,
    settings: tuple[str, ...],
    patience_s: float,
    as_json: bool,
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
