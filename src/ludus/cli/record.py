"""`ludus record`: plays bots, or players of a run, and writes a replay of every episode."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
import numpy as np

from ludus.cli.terminal import ProgressBar
from ludus.config import ConfigError
from ludus.data.replay import SUFFIX, Replay, ReplayError, decode_replay, encode_replay
from ludus.evaluation.tournament import Recorder, Wanted
from ludus.games.game import GameSource
from ludus.games.recording import innermost, map_name
from ludus.games.seat_rows import GameError
from ludus.games.seeding import mix
from ludus.league.players import unknown
from ludus.lookup import add_bots, add_game_bots
from ludus.models.policy import use_threads
from ludus.replays.dataset_writer import locked
from ludus.replays.playback import PlaybackError
from ludus.replays.replay_episodes import require_replayable
from ludus.replays.replay_games import find_game, game_address, size
from ludus.runtime.assemble import load_experiment, load_players, new_league
from ludus.runtime.services import services_at_hand
from ludus.runtime.settings import effective
from ludus.store.files import atomic_write, clean_temporaries, make_folder, safe_name
from ludus.store.run_folder import RunFolder
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer

CHECKED = 4
"""Episodes that are played again to see that the game can be replayed at all."""


@click.command("record")
@click.argument("game", metavar="GAME|RUN")
@click.argument("players", nargs=-1, required=True, metavar="PLAYER...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the replays.")
@click.option("--episodes", "-n", type=click.IntRange(min=1), default=100, show_default=True,
              help="Per pair; those that are in the folder already count.")  # fmt: skip
@click.option("--all-pairs", is_flag=True, help="Everybody against everybody, not only the first.")
@click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="An option of GAME.")
@click.option("--weights", type=click.Choice(["live", "average"]), default="average", show_default=True,
              help="Which weights a learning player of a run uses.")  # fmt: skip
@click.option("--greedy", is_flag=True, help="Always the most probable action.")
@click.option("--tables", type=click.IntRange(min=1), default=64, show_default=True,
              help="Tables played at the same time.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--quiet", is_flag=True, help="Show nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a progress bar.")
def command(
    game: str,
    players: tuple[str, ...],
    out: Path,
    episodes: int,
    all_pairs: bool,
    settings: tuple[str, ...],
    weights: Literal["live", "average"],
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
    ludus record skirmish rush boom spears horses bows --all-pairs -n 200 --out replays
    ludus record runs/mine main@best rush -n 1000 --out replays
    """
    use_threads(1)
    source, seated, players = _find(game, players, settings, weights, greedy)
    line_ups = _line_ups(source, players, all_pairs)
    make_folder(out)
    with locked(out):
        clean_temporaries(out)
        address, options = game_address(innermost(source))
        in_folder = sum(1 for _ in out.glob(f"*{SUFFIX}"))
        files = [_Files(out, innermost(source), address, options, line_up) for line_up in line_ups]
        todo = [
            (Wanted(players=line_up, episodes=episodes - own.count), own)
            for line_up, own in zip(line_ups, files, strict=True)
            if own.count < episodes
        ]
        total = len(line_ups) * episodes
        already = total - sum(one.episodes for one, _ in todo)
        kept = 0
        with ProgressBar("episodes", total, "quiet" if quiet else "json" if as_json else "shown") as progress:

            def keep(place: int, replay: Replay) -> None:
                nonlocal kept
                if kept < CHECKED:
                    _require_replayable(innermost(source), replay)
                todo[place][1].write(encode_replay(replay))
                kept += 1
                progress(already + kept)

            progress(already)
            if todo:
                recorder = Recorder(
                    source,
                    FixedPlayers(seated),
                    [one for one, _ in todo],
                    address=address,
                    options=options,
                    keep=keep,
                    num_tables=tables,
                    seed=int(mix(np.array([seed], np.uint64), in_folder)[0]),  # other episodes than before
                )
                try:
                    recorder.record()
                except KeyboardInterrupt:
                    click.echo(f"stopped after {kept:,} replays; the same command goes on", err=True)
                    raise
    if not quiet:
        _say(out, files, already, kept, as_json)


def _find(
    game: str,
    players: Sequence[str],
    settings: tuple[str, ...],
    weights: Literal["live", "average"],
    greedy: bool,
) -> tuple[GameSource, dict[str, SeatedPlayer], tuple[str, ...]]:
    """The game, as it is played, who plays it, and the players' names."""
    if Path(game).is_dir():
        if settings:
            raise ConfigError(f"--set is for a GAME; {game} is a run, and its game is what it was trained on")
        folder = RunFolder.open(game)
        experiment = load_experiment(folder)
        league = new_league(experiment)
        with folder.ledger(read_only=True) as ledger:
            for _, event in ledger.replay():
                league.apply(event)
        experiment, names = add_bots(effective(experiment, league), players, taken=league.players)
        click.get_current_context().with_resource(services_at_hand(experiment, folder))
        seated = load_players(experiment, folder, league, names, weights=weights, greedy=greedy)
        return experiment.grouped_game, seated, names
    source, names = add_game_bots(find_game(game, settings), players)
    bots = source.bots()
    for player in names:
        if player not in bots:
            raise ConfigError(unknown(f"bot of {source.spec.name},", player, bots))
    return source, {player: SeatedPlayer(bot=bots[player]) for player in names}, names


def _line_ups(source: GameSource, players: Sequence[str], all_pairs: bool) -> list[tuple[str, ...]]:
    teams = source.spec.num_teams
    if teams == 1:
        return [(player,) for player in dict.fromkeys(players)]
    if len(players) < 2:
        raise click.UsageError("name at least two players: the first meets each of the others")
    pairs = (
        itertools.combinations(dict.fromkeys(players), 2)
        if all_pairs
        else dict.fromkeys((players[0], other) for other in players[1:])
    )
    return [(one, *(other,) * (teams - 1)) for one, other in pairs]


class _Files:
    """The replays of one line-up in a folder: numbered, so that those that are missing can be told."""

    def __init__(
        self,
        folder: Path,
        source: GameSource,
        address: str,
        options: Mapping[str, Any],
        line_up: Sequence[str],
    ) -> None:
        place = address.rpartition("/")[2].replace(":", "-")
        map_ = map_name(source)
        words = [place, *([] if map_ in (place, source.spec.name) else [map_]), *dict.fromkeys(line_up)]
        self.line_up = line_up
        self._folder = folder
        self._prefix = "-".join(safe_name(word, "a player") for word in words)
        pattern = re.compile(re.escape(self._prefix) + r"-(\d+)" + re.escape(SUFFIX))
        paths = {int(found[1]): path for path in folder.iterdir() if (found := pattern.fullmatch(path.name))}
        self.count = len(paths)
        self._next = max(paths, default=0) + 1
        if paths:
            _require_same_options(paths[self._next - 1], options)

    def write(self, content: bytes) -> None:
        atomic_write(self._folder / f"{self._prefix}-{self._next:06d}{SUFFIX}", content)
        self._next += 1
        self.count += 1


def _require_same_options(path: Path, options: Mapping[str, Any]) -> None:
    """Games with other options must not count as some of those that are wanted."""
    try:
        before = decode_replay(path.read_bytes()).options
    except ReplayError:
        return  # `convert` skips and names it
    now = msgspec.msgpack.decode(msgspec.msgpack.encode(dict(options)))  # as a replay holds them
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"{path} was recorded with {name}={before.get(name)}, not {now.get(name)}; choose another folder"
            )


def _require_replayable(source: GameSource, replay: Replay) -> None:
    try:
        require_replayable(source, replay)
    except PlaybackError as error:
        raise GameError(
            f"{source.spec.name} cannot be recorded: with the same seed and the same actions {error}; "
            "what happens at a table must depend on these only (`ludus check` says more)"
        ) from error


def _say(out: Path, files: Sequence[_Files], already: int, kept: int, as_json: bool) -> None:
    num_bytes = sum(path.stat().st_size for path in out.glob(f"*{SUFFIX}"))
    if as_json:
        pairs = [{"players": list(own.line_up), "replays": own.count} for own in files]
        click.echo(json.dumps({"end": "finished", "out": str(out), "bytes": num_bytes, "pairs": pairs}))
        return
    before = f" ({already:,} were there before)" if already else ""
    click.echo(f"{kept:,} replays written to {out}{before}; {size(num_bytes)} in all")
    click.echo(f"next:  ludus convert {out} --out DATASET")
