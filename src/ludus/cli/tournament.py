"""`ludus tournament`: matches between any players of any runs, and bots."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ludus.cli.options import (
    COUNT,
    Weights,
    code_trust_option,
    greedy_option,
    json_option,
    seed_option,
    tables_option,
    weights_option,
)
from ludus.evaluation.cross_play import MOST_IN_MATRIX, CrossPlay
from ludus.evaluation.entrants import load_field
from ludus.models.policy import use_threads
from ludus.observe.report import write_tables_page
from ludus.observe.terminal import new_console


@click.command("tournament")
@click.argument("players", nargs=-1, required=True, metavar="PLAYER...")
@click.option("--episodes", "-n", type=COUNT, default=200, help="Fewest per pair, and of each further match.")
@click.option(
    "--precision",
    type=click.FloatRange(0.001, 0.5),
    help="Then let the least certain pairs play on, until every win rate is known to within so much, as 0.05.",
)
@click.option("--most", type=COUNT, help="Games in all, about; then it ends.")
@click.option("--into", type=click.Path(dir_okay=False, path_type=Path), help="File of results; it goes on with it.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write the tables as a page.")
@click.option("--game", metavar="ADDRESS", help="What bots play, if no run is named.")
@weights_option
@greedy_option
@tables_option
@seed_option
@click.option("--quiet", is_flag=True, help="Show nothing until the end.")
@json_option("Everything as one JSON object.")
@code_trust_option
def tournament_command(
    players: tuple[str, ...],
    episodes: int,
    precision: float | None,
    most: int | None,
    into: Path | None,
    html: Path | None,
    game: str | None,
    weights: Weights,
    greedy: bool,
    tables: int,
    seed: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Let players of any runs, and bots, play against each other, seats in rotation: win rates of all pairs, Elo and
    the Nash average, with 95 % intervals. All runs must play the same game. They are only read.

    A PLAYER is a run folder (its best snapshot), RUN#PLAYER (main, main.3, main@best, main:0:12), an
    exported agent (FILE.onnx), bot:NAME (of the game) or a bot of your own (FILE.py:CLASS, "program:COMMAND"); NAME= in
    front gives it another name.

    \b
    ludus tournament runs/a runs/b#main.3 bot:alpha_beta_4 --precision 0.05
    ludus tournament old=runs/a#main@best new=runs/b#main@best --html page.html
    """
    use_threads(1)
    with load_field(players, weights=weights, greedy=greedy, game=game) as field:
        cross_play = CrossPlay(
            field,
            episodes=episodes,
            tables=tables,
            seed=seed,
            greedy=greedy,
            into=into,
            tell=lambda line: None if quiet or as_json else click.echo(line, err=True),
        )
        found = cross_play.run(precision=precision, most=most)
    if html is not None:
        write_tables_page(html, f"Tournament of {found.game}", found.tables())
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return
    console = new_console()
    for table in found.tables(MOST_IN_MATRIX):
        console.print(table)
        console.print()
