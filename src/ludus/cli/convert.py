"""`ludus convert`: plays replays again and makes a dataset of what their seats saw and did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ludus.cli.main import FAILED
from ludus.cli.options import AT_LEAST_0, COUNT, OUTCOME, code_trust_option, json_option, set_option
from ludus.config import ConfigError, decode
from ludus.data.replay import REPLAYS, STRATEGIES, EpisodeFilter, NoOp
from ludus.games.game import GameSource
from ludus.games.recording import innermost
from ludus.observe.terminal import ProgressBar, size
from ludus.replays.conversion import ConversionProgress, convert, plan_conversion
from ludus.replays.dataset_writer import DatasetWriter
from ludus.replays.replay_games import find_game
from ludus.store.run_folder import RunFolder

SHOWN = 10  # skipped replays, and reasons for leaving out actions, that are listed; the others are counted


@click.command("convert")
@click.argument("replays", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPLAYS...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the dataset.")
@click.option("--game", metavar="GAME|RUN", help="The game, if it is one of your own: FILE.py:CLASS.")
@set_option("An option of GAME.", of="OPTION")
@click.option("--kind", metavar="NAME", help="Which kind of seat, if the game has several.")
@click.option("--map", metavar="NAME", help="Only this map or mode.")
@click.option("--matchup", metavar="A,B", help="Only games between these players, on whichever seats.")
@click.option("--player", multiple=True, metavar="NAME", help="Only seats of this player.")
@click.option("--outcome", type=OUTCOME, help="Only seats that ended so.")
@click.option("--min-length", type=AT_LEAST_0, default=0, help="Decisions of the seat.")
@click.option("--max-length", type=COUNT, help="Decisions of the seat.")
@click.option("--game-version", metavar="TEXT", help="Only games recorded with this version.")
@click.option("--keep-no-ops", is_flag=True, help="Keep every decision to do nothing.")
@click.option("--no-op", type=AT_LEAST_0, metavar="VALUE", help="What doing nothing is: a value "
              "of the first head that is a choice.  [default: 0 where there are several heads]")  # fmt: skip
@click.option("--tables", type=COUNT, default=32, help="Replays played at the same time.")
@click.option("--retry-skipped", is_flag=True, help="Try those again that were skipped by an earlier call.")
@click.option("--quiet", is_flag=True, help="Show nothing but what went wrong.")
@json_option("Print JSON lines instead of a progress bar.")
@code_trust_option
def convert_command(
    replays: tuple[Path, ...],
    out: Path,
    game: str | None,
    settings: tuple[str, ...],
    kind: str | None,
    matchup: str | None,
    keep_no_ops: bool,
    no_op: int | None,
    tables: int,
    retry_skipped: bool,
    quiet: bool,
    as_json: bool,
    **filters: Any,
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
    wanted = EpisodeFilter(matchup=tuple(matchup.split(",")) if matchup else (), **filters)
    conversion = plan_conversion(
        replays,
        wanted,
        trusted=None if game is None else _trusted(game, settings),
        kind=kind,
        no_op=no_op,
        keep_no_ops=keep_no_ops,
        num_tables=tables,
    )
    num_files = conversion.num_files
    with (
        conversion.dataset(out) as writer,
        ProgressBar("replays", num_files, "quiet" if quiet else "json" if as_json else "shown") as progress,
    ):
        if retry_skipped:
            writer.retry_skipped()
        try:
            convert(conversion.episodes, writer, wanted, lambda now: _show(progress, now))
        except KeyboardInterrupt:
            click.echo("stopped; the same command goes on", err=True)
            raise
    return _say(out, writer, conversion.no_op, num_files, quiet=quiet, as_json=as_json)


def _trusted(game: str, settings: tuple[str, ...]) -> GameSource:
    if not Path(game).is_dir():
        return find_game(game, settings)
    if settings:
        raise ConfigError(f"--set is for a GAME; {game} is a run, and its game is what it was trained on")
    folder = RunFolder.open(game)
    folder.require_own_code()
    source: GameSource = decode(json.loads(folder.facts.experiment)["game"])
    return innermost(source)


def _show(progress: ProgressBar, now: ConversionProgress) -> None:
    shown = f"{now.decisions:,} decisions  {size(now.num_bytes)} of about {size(now.estimated_bytes)}"
    sizes = {"bytes": now.num_bytes, "estimated_bytes": now.estimated_bytes}
    progress(now.replays, shown, episodes=now.episodes, decisions=now.decisions, **sizes)


def _say(out: Path, writer: DatasetWriter, no_op: NoOp | None, num_files: int, *, quiet: bool, as_json: bool) -> int:
    skipped = writer.skipped()
    for name, reason in [] if as_json else list(skipped.items())[:SHOWN]:
        click.echo(f"skipped {name}: {reason}", err=True)
    if len(skipped) > SHOWN and not as_json:
        click.echo(f"... and {len(skipped) - SHOWN} more were skipped: see {out / REPLAYS}", err=True)
    if not writer.num_episodes:
        click.echo(f"error: nothing is left of {num_files} replays: see what was skipped and left out", err=True)
    if as_json:
        document = {
            "end": "finished",
            "out": str(out),
            "episodes": writer.num_episodes,
            "decisions": writer.num_decisions,
            "bytes": writer.num_bytes,
            "dropped": dict(writer.dropped()),
            "left_out": dict(writer.left_out()),
            "skipped": skipped,
        }
        click.echo(json.dumps(document))
    elif not quiet:
        _report(out, writer, no_op)
    return 0 if writer.num_episodes else FAILED


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
