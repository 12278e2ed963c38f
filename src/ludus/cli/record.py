"""`ludus record`: plays bots, or players of a run, and writes a replay of every episode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from ludus.cli.options import (
    COUNT,
    Weights,
    code_trust_option,
    greedy_option,
    json_option,
    seed_option,
    set_option,
    tables_option,
    weights_option,
)
from ludus.config import ConfigError
from ludus.data.checks import unknown
from ludus.data.replay import Replay
from ludus.evaluation.tournament import Recorder, Wanted
from ludus.games.game import GameSource
from ludus.games.seeding import mix
from ludus.lookup import add_bots, add_game_bots
from ludus.models.policy import use_threads
from ludus.observe.terminal import ProgressBar, size
from ludus.replays.replay_games import ReplayFolder, find_game, line_ups
from ludus.runtime.assemble import load_players, load_state
from ludus.runtime.services import services_at_hand
from ludus.store.run_folder import RunFolder
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer


@click.command("record")
@click.argument("game", metavar="GAME|RUN")
@click.argument("players", nargs=-1, required=True, metavar="PLAYER...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the replays.")
@click.option("--episodes", "-n", type=COUNT, default=100, help="Per pair; those that are in the folder already count.")
@click.option("--all-pairs", is_flag=True, help="Everybody against everybody, not only the first.")
@set_option("An option of GAME.", of="OPTION")
@weights_option
@greedy_option
@tables_option
@seed_option
@click.option("--quiet", is_flag=True, help="Show nothing.")
@json_option("Print JSON lines instead of a progress bar.")
@code_trust_option
def record_command(
    game: str,
    players: tuple[str, ...],
    out: Path,
    episodes: int,
    all_pairs: bool,
    settings: tuple[str, ...],
    weights: Weights,
    greedy: bool,
    tables: int,
    seed: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Play the first PLAYER against each of the others, seats in rotation, and write a replay per episode.

    GAME is a name from `ludus games` or FILE.py:CLASS, and its players are bots; the players of a RUN are
    named as in `ludus eval`. Bots from outside are [NAME=]FILE.py:CLASS or [NAME=]program:COMMAND. Given
    again, the command goes on where it was stopped.

    \b
    ludus record skirmish rush boom spears --all-pairs -n 200 --out replays
    ludus record runs/mine main@best rush -n 1000 --out replays
    """
    use_threads(1)
    source, seated, players = _find(game, players, settings, weights, greedy)
    wanted = line_ups(source.spec.num_teams, players, all_pairs)
    with ReplayFolder.open(out, source) as folder:
        in_folder = folder.num_replays
        files = [folder.files(line_up) for line_up in wanted]
        todo = [own for own in files if own.count < episodes]
        total = len(files) * episodes
        already = total - sum(episodes - own.count for own in todo)
        kept = 0
        with ProgressBar("episodes", total, "quiet" if quiet else "json" if as_json else "shown") as progress:

            def keep(place: int, replay: Replay) -> None:
                nonlocal kept
                todo[place].write(replay)
                kept += 1
                progress(already + kept)

            progress(already)
            if todo:
                recorder = Recorder(
                    source,
                    FixedPlayers(seated),
                    [Wanted(players=tuple(own.line_up), episodes=episodes - own.count) for own in todo],
                    address=folder.address,
                    options=folder.options,
                    keep=keep,
                    num_tables=tables,
                    seed=int(mix(np.array([seed], np.uint64), in_folder)[0]),  # other episodes than before
                )
                try:
                    recorder.record()
                except KeyboardInterrupt:
                    click.echo(f"stopped after {kept:,} replays; the same command goes on", err=True)
                    raise
    if as_json and not quiet:
        pairs = [{"players": list(own.line_up), "replays": own.count} for own in files]
        click.echo(json.dumps({"end": "finished", "out": str(out), "bytes": folder.num_bytes, "pairs": pairs}))
    elif not quiet:
        before = f" ({already:,} were there before)" if already else ""
        click.echo(f"{kept:,} replays written to {folder.path}{before}; {size(folder.num_bytes)} in all")
        click.echo(f"next:  ludus convert {folder.path} --out DATASET")


def _find(
    game: str, players: Sequence[str], settings: tuple[str, ...], weights: Weights, greedy: bool
) -> tuple[GameSource, dict[str, SeatedPlayer], tuple[str, ...]]:
    """The game, as it is played, who plays it, and the players' names."""
    if Path(game).is_dir():
        if settings:
            raise ConfigError(f"--set is for a GAME; {game} is a run, and its game is what it was trained on")
        folder = RunFolder.open(game)
        experiment, league = load_state(folder)
        experiment, names = add_bots(experiment, players, taken=league.players)
        click.get_current_context().with_resource(services_at_hand(experiment, folder))
        seated = load_players(experiment, folder, league, names, weights=weights, greedy=greedy)
        return experiment.grouped_game, seated, names
    source, names = add_game_bots(find_game(game, settings), players)
    bots = source.bots()
    for player in names:
        if player not in bots:
            raise ConfigError(unknown(f"bot of {source.spec.name},", player, bots))
    return source, {player: SeatedPlayer(bot=bots[player]) for player in names}, names
