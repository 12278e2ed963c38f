"""`ludus eval`: matches between any players of a run: learning ones, snapshots and bots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import click
from rich.table import Table

from ludus.assemble import load_experiment, load_players, new_league
from ludus.cli.console import add_numbers, new_console, new_table
from ludus.cli.experiments import open_run
from ludus.cli.outside_bots import add_bots
from ludus.cli.rendering import Rendering, rendering_options
from ludus.league.league import League
from ludus.live.settings import effective
from ludus.local.run_services import services_at_hand
from ludus.store.model_pool import ModelPool
from ludus.workers.evaluation_book import evaluation_row, keep_rows
from ludus.workers.named_players import is_model_name, resolve_player
from ludus.workers.shelf import FixedPlayers
from ludus.workers.threads import use_threads
from ludus.workers.tournament import Tournament


@click.command("eval")
@click.argument("run", required=False, type=click.Path())
@click.argument("players", nargs=-1)
@click.option(
    "--episodes",
    "-n",
    type=click.IntRange(min=0),
    default=400,
    show_default=True,
    help="At least so many per pair; 0 with --render: only pictures.",
)
@click.option("--weights", type=click.Choice(["live", "average"]), default="average", show_default=True,
              help="Which weights a learning player uses.")  # fmt: skip
@click.option("--greedy", is_flag=True, help="Always the most probable action.")
@click.option(
    "--tables",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Tables played at the same time.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per pair.")
@rendering_options
def command(
    run: str | None,
    players: tuple[str, ...],
    episodes: int,
    weights: Literal["live", "average"],
    greedy: bool,
    tables: int,
    seed: int,
    as_json: bool,
    **rendering: Any,
) -> None:
    """Play the first of PLAYERS against each of the others, seats in rotation.

    A player is named by its id (main, main.3, random), by a tag (main@best, main@latest) or by a model
    (main:0:12). A bot from outside is given by its address (bots.py:Greedy, "program:node bot.js"), with a
    name in front if you like (mine=bots.py:Greedy).

    Without players: the first learning player against its first snapshot and the evaluation bots. Results are
    kept in the run's metrics, apart from the league.

    With --render, further episodes are played after that, with pictures.
    """
    pictures = Rendering(**rendering)
    if not episodes and pictures.render is None:
        raise click.BadParameter("0 episodes, and no --render: nothing to do", param_hint="'--episodes'")
    folder = open_run(run)
    experiment = load_experiment(folder)
    league = new_league(experiment)
    with folder.ledger(read_only=True) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
    experiment, players = add_bots(effective(experiment, league), players, taken=league.players)
    pictures.require_possible(experiment.grouped_game)
    chosen = players or (
        *list(league.standings)[:1],
        *league.candidates.frozen()[:1],
        *experiment.evaluation.opponents,
    )
    if len(chosen) < min(2, league.num_teams):
        raise click.UsageError("name at least two players: the first meets each of the others")
    use_threads(1)
    click.get_current_context().with_resource(services_at_hand(experiment, folder))
    seated = load_players(experiment, folder, league, chosen, weights=weights, greedy=greedy)
    teams = league.num_teams
    line_ups: Sequence[tuple[str, ...]] = (
        [(player,) for player in chosen]
        if teams == 1
        else [(chosen[0], *(other,) * (teams - 1)) for other in chosen[1:]]
    )
    game, at_hand = experiment.grouped_game, FixedPlayers(seated)
    if episodes:
        results = Tournament(game, at_hand, line_ups, episodes=episodes, num_tables=tables, seed=seed).run()
        used = {player: weights_of(league, folder.models, player, weights) for player in seated}
        rows = [
            evaluation_row(
                "eval", line_up, [used[player] for player in line_up], results[index], greedy=greedy
            )
            for index, line_up in enumerate(line_ups)
        ]
        keep_rows(folder, rows)
        _print(rows, teams, weights, as_json)
    pictures.play(game, at_hand, line_ups, seed=seed)


def _print(rows: Sequence[dict[str, Any]], teams: int, weights: str, as_json: bool) -> None:
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    else:
        table = _table(rows, teams)
        table.caption = f"Learning players with their {weights} weights, frozen ones as they are pinned."
        new_console().print(table)


def weights_of(league: League, pool: ModelPool, player: str, learning: str) -> str | None:
    """Which of its model's two sets of weights a player uses, learning ones `learning`; None for a bot."""
    entry = league.players.get(player)
    if is_model_name(player):
        return resolve_player(league, pool, player)[1]
    if entry is None or entry.scripted:
        return None
    return learning if entry.learning else entry.weights


def _table(rows: Sequence[dict[str, Any]], teams: int) -> Table:
    table = new_table("player", "against") if teams > 1 else new_table("player")
    if teams > 1:
        add_numbers(table, "win rate (95 %)", "won/drawn/lost")
    add_numbers(table, "mean score")
    for row in rows:
        cells = [row["players"][0]]
        if teams > 1:
            low, high = row["win_rate_interval"]
            cells += [row["players"][1], f"{row['win_rate']:.1%} ({100 * low:.1f}-{100 * high:.1f})"]
            cells.append("/".join(str(row[name]) for name in ("wins", "draws", "losses")))
        cells.append(f"{row['score']:+.3f} ±{1.96 * row['score_standard_error']:.3f}")
        table.add_row(*cells)
    return table
