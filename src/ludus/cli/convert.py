"""`ludus convert`: plays replays again and makes a dataset of what their seats saw and did."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from ludus.cli.main import FAILED
from ludus.cli.terminal import ProgressBar
from ludus.config import ConfigError, decode
from ludus.data.replay import (
    REPLAYS,
    STRATEGIES,
    SUFFIX,
    EpisodeFilter,
    EpisodeSource,
    NoOp,
    Outcome,
    Replay,
    decode_replay,
    first_choice,
)
from ludus.data.specs import Choice, SeatKind
from ludus.games.game import GameSource
from ludus.games.recording import innermost
from ludus.league.players import unknown
from ludus.replays.dataset_writer import ConversionProgress, DatasetWriter, convert, write_dataset
from ludus.replays.replay_episodes import HasOwnReplays, ReplayEpisodes
from ludus.replays.replay_games import find_game, game_address, make_recorded_game, size
from ludus.store.run_folder import RunFolder

SHOWN = 10
"""Skipped replays, and reasons for leaving out actions, that are listed; the others are counted."""


@click.command("convert")
@click.argument("replays", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPLAYS...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the dataset.")
@click.option("--game", metavar="GAME|RUN", help="The game, if it is one of your own: FILE.py:CLASS.")
@click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="An option of GAME.")
@click.option("--kind", metavar="NAME", help="Which kind of seat, if the game has several.")
@click.option("--map", "map_name", metavar="NAME", help="Only this map or mode.")
@click.option("--matchup", metavar="A,B", help="Only games between these players, on whichever seats.")
@click.option("--player", "players", multiple=True, metavar="NAME", help="Only seats of this player.")
@click.option("--outcome", type=click.Choice(["win", "draw", "loss"]), help="Only seats that ended so.")
@click.option("--min-length", type=click.IntRange(min=0), default=0, help="Decisions of the seat.")
@click.option("--max-length", type=click.IntRange(min=1), help="Decisions of the seat.")
@click.option("--game-version", metavar="TEXT", help="Only games recorded with this version.")
@click.option("--keep-no-ops", is_flag=True, help="Keep every decision to do nothing.")
@click.option("--no-op", type=click.IntRange(min=0), metavar="VALUE", help="What doing nothing is: a value "
              "of the first head that is a choice.  [default: 0 where there are several heads]")  # fmt: skip
@click.option("--tables", type=click.IntRange(min=1), default=32, show_default=True,
              help="Replays played at the same time.")  # fmt: skip
@click.option("--retry-skipped", is_flag=True, help="Try those again that were skipped by an earlier call.")
@click.option("--quiet", is_flag=True, help="Show nothing but what went wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a progress bar.")
def command(
    replays: tuple[Path, ...],
    out: Path,
    game: str | None,
    settings: tuple[str, ...],
    kind: str | None,
    map_name: str | None,
    matchup: str | None,
    players: tuple[str, ...],
    outcome: Outcome | None,
    min_length: int,
    max_length: int | None,
    game_version: str | None,
    keep_no_ops: bool,
    no_op: int | None,
    tables: int,
    retry_skipped: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Play REPLAYS (files, or folders of them) again and write a dataset for `ludus clone`.

    A decision to do nothing is left out unless it is a seat's first, its last, or its number is divisible by
    eight. Replays that are damaged or no longer play as recorded are skipped and named. Given again, the
    command goes on where it was stopped.

    \b
    ludus convert replays --out datasets/all
    ludus convert replays --out datasets/rush-wins --player rush --outcome win
    """
    if keep_no_ops and no_op is not None:
        raise click.UsageError("--keep-no-ops and --no-op exclude each other")
    wanted = EpisodeFilter(
        map=map_name,
        matchup=tuple(matchup.split(",")) if matchup else (),
        player=players,
        outcome=outcome,
        min_length=min_length,
        max_length=max_length,
        game_version=game_version,
    )
    trusted = None if game is None else _trusted(game, settings)
    own = trusted if isinstance(trusted, HasOwnReplays) else None
    files = _files(replays, own.replay_suffix if own else SUFFIX)
    address, source = ("", trusted) if isinstance(trusted, HasOwnReplays) else _game_of(files, trusted, map_name)
    number = _kind_number(source, kind)
    nothing = None if keep_no_ops else _no_op(source.spec.kinds[number], no_op)
    episodes: EpisodeSource = (
        own.replay_episodes(files, nothing)
        if own
        else ReplayEpisodes(
            files,
            lambda replay: make_recorded_game(replay, trusted),
            game=address,
            source=source,
            kind=number,
            no_op=nothing,
            num_tables=tables,
        )
    )
    with (
        write_dataset(
            out,
            game=episodes.game,
            kind=episodes.kind,
            strategy=episodes.strategy,
            settings={**_plain(wanted), "no_op": None if nothing is None else asdict(nothing)},
        ) as writer,
        ProgressBar("replays", len(files), "quiet" if quiet else "json" if as_json else "shown") as progress,
    ):
        if retry_skipped:
            writer.retry_skipped()
        try:
            convert(episodes, writer, wanted, lambda now: _show(progress, now))
        except KeyboardInterrupt:
            click.echo("stopped; the same command goes on", err=True)
            raise
    return _say(out, writer, nothing, len(files), quiet=quiet, as_json=as_json)


def _files(places: Sequence[Path], suffix: str) -> Mapping[str, Path]:
    """Name -> file, in order of name; a name is the file's with that of its folder."""
    found: dict[str, Path] = {}
    for place in places:
        if place.is_dir():
            inside = {f"{place.resolve().name}/{path.relative_to(place).as_posix()}": path
                      for path in place.rglob(f"*{suffix}")}  # fmt: skip
            if not inside:
                raise ConfigError(f"{place} holds no replays (files that end in {suffix})")
        elif place.is_file():
            inside = {f"{place.resolve().parent.name}/{place.name}": place}
        else:
            raise ConfigError(f"there is no file or folder {place}")
        for name, path in inside.items():
            if found.setdefault(name, path).resolve() != path.resolve():
                raise ConfigError(f"{found[name]} and {path} would both be called {name}; rename a folder")
    return dict(sorted(found.items()))


def _trusted(game: str, settings: tuple[str, ...]) -> GameSource:
    if not Path(game).is_dir():
        return find_game(game, settings)
    if settings:
        raise ConfigError(f"--set is for a GAME; {game} is a run, and its game is what it was trained on")
    source: GameSource = decode(json.loads(RunFolder.open(game).facts.experiment)["game"])
    return innermost(source)


def _game_of(files: Mapping[str, Path], trusted: GameSource | None, map_name: str | None) -> tuple[str, GameSource]:
    """The game of the first replay that can be read and has the right game and map: all others must fit its
    seats."""
    problem, maps = "", set[str]()
    wanted = None if trusted is None else game_address(trusted)[0]
    for name, path in files.items():
        try:
            replay: Replay = decode_replay(path.read_bytes())
            if wanted not in (None, replay.game):
                raise ValueError(f"it is of {replay.game}, not of {wanted}")
            maps.add(replay.map)
            if map_name is None or replay.map == map_name:
                return replay.game, make_recorded_game(replay, trusted)
        except OSError as error:
            problem = problem or f"{name}: cannot be read: {error.strerror}"
        except ValueError as error:
            problem = problem or f"{name}: {error}"
    if map_name is not None and maps and map_name not in maps:
        problem = unknown("map", map_name, maps)
    raise ConfigError(f"none of the {len(files)} replays can be used: {problem}")


def _kind_number(source: GameSource, kind: str | None) -> int:
    names = [one.name for one in source.spec.kinds]
    if kind is None:
        if len(names) > 1:
            raise ConfigError(f"{source.spec.name} has several kinds of seat: say --kind {' or '.join(names)}")
        return 0
    if kind not in names:
        raise ConfigError(unknown("kind of seat", kind, names))
    return names.index(kind)


def _no_op(kind: SeatKind, value: int | None) -> NoOp | None:
    """In a game with a single head, a board game say, every option usually does something."""
    head = first_choice(kind)
    if head is None or (value is None and len(kind.action.heads) < 2):
        if value is not None:
            raise ConfigError("--no-op: no head of this game is a choice")
        return None
    options = kind.action.heads[head]
    assert isinstance(options, Choice)
    if value is not None and value >= options.num:
        raise ConfigError(f"--no-op: head {head!r} has the values 0 to {options.num - 1}, got {value}")
    return NoOp(head=head, value=value or 0)


def _plain(wanted: EpisodeFilter) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(wanted).items()}


def _show(progress: ProgressBar, now: ConversionProgress) -> None:
    progress(
        now.replays,
        f"{now.decisions:,} decisions  {size(now.num_bytes)} of about {size(now.estimated_bytes)}",
        episodes=now.episodes,
        decisions=now.decisions,
        bytes=now.num_bytes,
        estimated_bytes=now.estimated_bytes,
    )


def _say(out: Path, writer: DatasetWriter, no_op: NoOp | None, num_files: int, *, quiet: bool, as_json: bool) -> int:
    dropped, skipped = writer.dropped(), writer.skipped()
    code = 0 if writer.num_episodes else FAILED
    for name, reason in [] if as_json else list(skipped.items())[:SHOWN]:
        click.echo(f"skipped {name}: {reason}", err=True)
    if len(skipped) > SHOWN and not as_json:
        click.echo(f"... and {len(skipped) - SHOWN} more were skipped: see {out / REPLAYS}", err=True)
    if not writer.num_episodes:
        click.echo(f"error: nothing is left of {num_files} replays: see what was skipped and left out", err=True)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "end": "finished",
                    "out": str(out),
                    "episodes": writer.num_episodes,
                    "decisions": writer.num_decisions,
                    "bytes": writer.num_bytes,
                    "dropped": dict(dropped),
                    "left_out": dict(writer.left_out()),
                    "skipped": skipped,
                }
            )
        )
    elif not quiet:
        _report(out, writer, no_op)
    return code


def _report(out: Path, writer: DatasetWriter, no_op: NoOp | None) -> None:
    skipped, dropped = len(writer.skipped()), writer.dropped()
    used = len({line.name for line in writer.lines}) - skipped
    click.echo(
        f"{out}: {writer.num_episodes:,} episodes (seats) of {used:,} replays, "
        f"{writer.num_decisions:,} decisions, {size(writer.num_bytes)}"
    )
    total = writer.num_decisions_made
    if no_op is not None and total:
        gone = total - writer.num_decisions
        click.echo(f"no-ops ({no_op.head} = {no_op.value}) left out: {gone:,} of {total:,} decisions")
    for reason, seats in sorted(dropped.items()):
        click.echo(f"left out by {reason.replace('_', ' ')}: {seats:,} seats")
    reasons = writer.left_out().most_common()
    for reason, actions in reasons[:SHOWN]:
        click.echo(f"left out: {actions:,} actions ({reason})")
    if len(reasons) > SHOWN:
        rest = sum(actions for _, actions in reasons[SHOWN:])
        click.echo(f"left out: {rest:,} actions for {len(reasons) - SHOWN} more reasons: see {out / REPLAYS}")
    if skipped:
        click.echo(f"skipped: {skipped:,} replays")
    if (out / STRATEGIES).exists():
        click.echo(f"strategies (z): {out / STRATEGIES}")
    if writer.num_episodes:
        click.echo(f"next:  ludus clone {out} RECIPE")
