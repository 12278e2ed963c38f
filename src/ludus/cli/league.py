"""`ludus league`: players, ratings with error bars, payoff and equilibrium of a run, live or finished."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from ludus.assemble import load_experiment, new_league
from ludus.cli.console import new_console
from ludus.cli.experiments import open_run
from ludus.cli.tables import league_table, payoff_table
from ludus.data.records import MatchVoid
from ludus.league.league import League
from ludus.league.ratings import OpenSkillTable
from ludus.league.summary import LeagueSummary, summarise
from ludus.store.ledger import Ledger
from ludus.store.metrics_file import read_metrics
from ludus.store.run_folder import RunFolder

FOLLOW_S = 2.0


@click.command("league")
@click.argument("run", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
@click.option("--follow", is_flag=True, help="Show it again whenever something has happened.")
def command(run: str | None, as_json: bool, follow: bool) -> None:
    """Show the league of RUN (default: the newest run). Reads only; the run may be training."""
    folder = open_run(run)
    experiment = load_experiment(folder)
    league = new_league(experiment)
    skills = OpenSkillTable() if as_json else None
    voids: Counter[str] = Counter()
    console = new_console()
    with folder.ledger(read_only=True) as ledger:
        seen = _fold(league, skills, voids, ledger, 0)
        while True:
            health = read_health(folder, voids) if as_json else {}
            _show(league, skills, health, experiment.evaluation.opponents, console)
            if not follow:
                return
            while (now := _fold(league, skills, voids, ledger, seen)) == seen:
                time.sleep(FOLLOW_S)
            seen = now


def _fold(
    league: League, skills: OpenSkillTable | None, voids: Counter[str], ledger: Ledger, after: int
) -> int:
    for seq, event in ledger.replay(after):
        league.apply(event)
        if skills is not None:
            skills.apply(event)
        if isinstance(event, MatchVoid):
            voids[event.reason.partition(":")[0]] += 1
        after = seq
    return after


def _show(
    league: League,
    skills: OpenSkillTable | None,
    health: Mapping[str, Any],
    opponents: tuple[str, ...],
    console: Console,
) -> None:
    if not league.players:
        raise click.ClickException("the run has no players yet: it has not started")
    summary = summarise(league)
    if skills is not None:
        click.echo(json.dumps({**as_plain(league, summary, skills), **health}))
        return
    console.print(league_table(league, summary, opponents))
    if league.num_teams > 1:
        console.print()
        console.print(payoff_table(summary, console.width))
    book = league.matches
    console.print(
        f"\n{book.issued:,} matches issued: {book.finished:,} finished, {book.void:,} void, "
        f"{len(book.open_matches):,} open"
    )


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
                "elo": rating.elo,
                "elo_interval": list(interval) if interval else None,
                "openskill": skills.skill(player.id),
                "games": rating.games,
                "equilibrium": summary.equilibrium.get(player.id, 0.0),
                "score": summary.scores.get(player.id),
                "opponents": dict(league.opponent_law(player.id)) if player.learning else None,
            }
        )
    book = league.matches
    return {
        "players": players,
        "anchor": summary.anchor,
        "win_rates": summary.win_rates.tolist(),
        "games": summary.games.tolist(),
        "matches": {
            "issued": book.issued,
            "finished": book.finished,
            "void": book.void,
            "open": len(book.open_matches),
        },
        "events": league.num_events,
        "digest": league.state_digest(),
    }
