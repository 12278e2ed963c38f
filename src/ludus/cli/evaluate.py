"""`ludus eval`: matches between any players of a run: learning ones, snapshots and bots."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

import click
from rich import box
from rich.console import Console
from rich.table import Table

from ludus.assemble import load_experiment, load_players, new_league
from ludus.cli.experiments import open_run
from ludus.data.records import Result
from ludus.league.payoff import wilson_interval
from ludus.store.metrics_file import MetricsFile
from ludus.workers.shelf import FixedPlayers
from ludus.workers.threads import use_threads
from ludus.workers.tournament import Tournament


@click.command("eval")
@click.argument("run", required=False, type=click.Path(file_okay=False))
@click.argument("players", nargs=-1)
@click.option("--episodes", "-n", default=400, show_default=True, help="At least so many per pair.")
@click.option("--weights", type=click.Choice(["live", "average"]), default="average", show_default=True,
              help="Which weights a learning player uses.")  # fmt: skip
@click.option("--greedy", is_flag=True, help="Always the most probable action.")
@click.option("--tables", default=64, show_default=True, help="Tables played at the same time.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per pair.")
def command(
    run: str | None,
    players: tuple[str, ...],
    episodes: int,
    weights: Literal["live", "average"],
    greedy: bool,
    tables: int,
    seed: int,
    as_json: bool,
) -> None:
    """Play the first of PLAYERS against each of the others, seats in rotation.

    Without players: the first learning player against its first snapshot and the evaluation bots. Results
    are kept in the run's metrics, apart from the league.
    """
    folder = open_run(run)
    experiment = load_experiment(folder)
    league = new_league(experiment)
    with folder.ledger(read_only=True) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
    chosen = players or (
        *list(league.standings)[:1],
        *league.candidates.frozen()[:1],
        *experiment.evaluation.opponents,
    )
    if len(chosen) < min(2, league.num_teams):
        raise click.UsageError("name at least two players: the first meets each of the others")
    use_threads(1)
    seated = load_players(experiment, folder, league, chosen, weights=weights, greedy=greedy)
    teams = league.num_teams
    line_ups: Sequence[tuple[str, ...]] = (
        [(player,) for player in chosen]
        if teams == 1
        else [(chosen[0], *(other,) * (teams - 1)) for other in chosen[1:]]
    )
    tournament = Tournament(
        experiment.game, FixedPlayers(seated), line_ups, episodes=episodes, num_tables=tables, seed=seed
    )
    results = tournament.run()
    rows = [describe(line_up, results[index], greedy) for index, line_up in enumerate(line_ups)]
    with MetricsFile(folder.metrics / "evaluations.jsonl") as kept:
        for row in rows:
            kept.append(row)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    else:
        Console().print(_table(rows, teams))


def describe(line_up: tuple[str, ...], result: Result, greedy: bool) -> dict[str, Any]:
    """One line-up's result as plain values: win rate (or score) of the first side with a 95 % interval."""
    mean = result.score_sum[0] / result.episodes
    spread = max(result.score_square_sum[0] / result.episodes - mean**2, 0.0)
    row: dict[str, Any] = {
        "players": list(line_up),
        "models": list(result.last_models),
        "greedy": greedy,
        "episodes": result.episodes,
        "score": mean,
        "score_standard_error": math.sqrt(spread / result.episodes),
        "steps_per_episode": result.steps / result.episodes,
    }
    if result.pairs:
        pair = result.pairs[0]
        points = pair.wins + pair.draws / 2
        row |= {
            "wins": pair.wins,
            "draws": pair.draws,
            "losses": pair.losses,
            "win_rate": points / result.episodes,
            "win_rate_interval": list(wilson_interval(points, result.episodes)),
        }
    return row


def _table(rows: Sequence[dict[str, Any]], teams: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("player", no_wrap=True)
    if teams > 1:
        table.add_column("against", no_wrap=True)
        table.add_column("win rate (95 %)", justify="right", no_wrap=True)
        table.add_column("won/drawn/lost", justify="right", no_wrap=True)
    table.add_column("mean score", justify="right", no_wrap=True)
    for row in rows:
        cells = [row["players"][0]]
        if teams > 1:
            low, high = row["win_rate_interval"]
            cells += [row["players"][1], f"{row['win_rate']:.1%} ({100 * low:.1f}-{100 * high:.1f})"]
            cells.append("/".join(str(row[name]) for name in ("wins", "draws", "losses")))
        cells.append(f"{row['score']:+.3f} ±{1.96 * row['score_standard_error']:.3f}")
        table.add_row(*cells)
    return table
