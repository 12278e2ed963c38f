"""`ludus status` and `ludus logs`: state, speed and workers of a run, and what its workers printed."""

from __future__ import annotations

import heapq
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ludus.cli.options import AT_LEAST_0, json_option
from ludus.config import ConfigError
from ludus.data.checks import unknown
from ludus.lookup import open_run
from ludus.observe.documents import MetricsTable
from ludus.observe.league_fold import RunFold
from ludus.observe.lost_matches import LossCount, LostMatches
from ludus.observe.metrics import TRAIN
from ludus.observe.overview import concerns_of_metrics, concerns_of_ratings
from ludus.observe.run_state import ENDED, gpus, look_at_run, silence, state_without_status, status_document
from ludus.observe.terminal import add_numbers, can_redraw, new_console, new_table
from ludus.store.files import StoreError, open_file
from ludus.store.run_control import RunStatus
from ludus.store.run_folder import RunFolder, RunFolderError

FOLLOW_S = 2.0


@click.command("status")
@click.argument("run", required=False, type=click.Path())
@click.option("--follow", is_flag=True, help="Refresh every few seconds until the run has ended.")
@json_option("Print JSON; with --follow one line at a time.")
def status_command(run: str | None, follow: bool, as_json: bool) -> None:
    """Show the state, speed, workers and bottleneck of RUN (default: the newest under runs/).

    The controller writes its status every few seconds; cores and memory are measured by this command, for
    processes on this machine.
    """
    folder, console, losses = open_run(run), new_console(), LossCount()
    metrics = MetricsTable(folder.metrics / TRAIN)
    is_drawn = follow and not as_json and can_redraw(sys.stdout)
    live = Live(console=console, auto_refresh=False) if is_drawn else None
    with live or nullcontext():
        while True:
            if as_json:
                document = status_document(folder, losses)
                click.echo(json.dumps(document))
                state = document["state"]
            else:
                status = look_at_run(folder)
                state = "" if status is None else status.state
                metrics.follow()
                picture = _picture(folder, status, losses.follow_run(folder), metrics)
                if live is not None:
                    live.update(picture, refresh=True)
                else:
                    console.print(picture, *([""] if follow else []))
            if not follow or state in ENDED:
                return
            time.sleep(FOLLOW_S)


def _picture(folder: RunFolder, status: RunStatus | None, lost: LostMatches, metrics: MetricsTable) -> RenderableType:
    if status is None:
        return Text(f"{folder.path}: {state_without_status(folder)}")
    name = status.experiment if status.trial is None else f"{status.experiment}, trial {status.trial}"
    silent = silence(status, time.time())
    state = status.state + (f" (no news for {span(silent)})" if silent else "")
    head = Text.assemble((str(folder.path), "bold"), f"  {name}  ", (state, "bold"))
    rows: list[RenderableType] = [head, Text(_progress(status))]
    if status.state == "dead":
        rows.append(Text(f"the process that trained it is gone; resume it: ludus train --run {folder.path} --resume"))
    if lines := lost.lines():
        rows += [Text(), *(Text(line) for line in lines)]
    learners = [name.removesuffix("/entropy") for name in metrics.names if name.endswith("/entropy")]
    concerns = [*concerns_of_metrics(metrics, learners, str(folder.path), status.budget)]
    with suppress(StoreError, ConfigError, LookupError), closing(RunFold(folder)) as fold:  # run.json may hold anything
        if fold.is_quick:
            fold.follow()
            concerns += concerns_of_ratings(fold.newest_elo, fold.snapshots, metrics)
    for concern in concerns:
        rows += [Text(), Text(f"warning: {concern.what}: {concern.why}"), Text(f"try:     {concern.advice}")]
    if status.workers:
        rows += [Text(), _workers(status, folder)]
        rows += [
            Text(
                f"GPU {gpu.name}: {gpu.utilisation:.0%} busy, {gpu.memory / 2**30:.1f} of "
                f"{gpu.total_memory / 2**30:.1f} GiB"
            )
            for gpu in gpus()
        ]
    if status.bottleneck is not None:
        found = status.bottleneck
        rows += [
            Text(),
            Text.assemble("bottleneck: ", (found.what, "bold"), f" ({found.why})"),
            Text(f"try:        {found.advice}"),
        ]
    return Group(*rows)


def _progress(status: RunStatus) -> str:
    lag = ", ".join(f"{player} {value:.2g}" for player, value in status.lag.items())
    share = min(1.0, status.decisions / status.budget)  # the last update may pass the budget
    shown = (
        f"{status.decisions:,} of {status.budget:,} decisions ({share:.1%})  "
        f"{status.matches:,} matches  {status.episodes:,} episodes"
    )
    if status.state in ENDED:
        return shown
    left = status.started + 3600 * status.time_limit_h - time.time()
    return (
        f"{shown}\n{status.decisions_per_s:,.0f} decisions/s"
        + (f"  lag {lag} versions of live weights" if lag else "")
        + f"  {status.restarts} restarts  up {span(time.time() - status.started)}"
        f"  time limit in {span(max(0.0, left))}"
    )


def _workers(status: RunStatus, folder: RunFolder) -> RenderableType:
    table = new_table("worker", "state", "node", "pid")
    add_numbers(table, "up", "restarts", "cores", "memory")
    table.add_column("time")
    with_addresses = any(one.address for one in status.workers)
    if with_addresses:
        table.add_column("address")
    for one in status.workers:
        shares = "  ".join(f"{kind} {share:.0%}" for kind, share in one.shares.items())
        table.add_row(
            one.name,
            one.state,
            one.node,
            "" if one.pid is None else str(one.pid),
            span(time.time() - one.started) if one.pid is not None else "",
            str(one.restarts),
            "" if one.cores is None else f"{one.cores:.2f}",
            "" if one.memory is None else f"{one.memory / 2**20:,.0f} MiB",
            shares,
            # a socket in the run folder is named relative to it
            *([one.address.replace(f"unix:{folder.path.resolve()}/", "unix:")] if with_addresses else []),
        )
    return table


def span(seconds: float) -> str:
    """As in 5 s, 3m 05s, 2h 10m, 3d 04h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600:02d}h"


LOOK_S = 0.3
SUFFIX = ".log"


@click.command("logs")
@click.argument("run", type=click.Path())
@click.argument("worker", required=False)
@click.option("--follow", is_flag=True, help="Keep printing new lines until the run ends.")
@click.option("--lines", type=AT_LEAST_0, default=40, help="Past lines to print.")
def logs_command(run: str, worker: str | None, follow: bool, lines: int) -> None:
    """Print the latest log lines of the workers of RUN, or of one (actor-0, learner, policy-worker), by time.
    Each line begins with its time (UTC), the run and the worker.

    \b
    ludus logs runs/mine
    ludus logs runs/mine learner --lines 200
    ludus logs runs/mine --follow
    """
    folder = open_run(run)
    files = _files(folder, worker)
    if not files and not follow:
        click.echo(f"no worker of {folder.path} has been started in a process of its own yet", err=True)
    tails = {path: Tail(path) for path in files}
    for line in deque(_by_time(_latest(path, lines) for path in files), maxlen=lines):
        click.echo(line)
    while follow:
        going_on = folder.holder() is not None
        for path in _files(folder, worker, may_come=True):
            tails.setdefault(path, Tail(path, from_start=True))
        for line in _by_time(tail.new_lines() for tail in tails.values()):
            click.echo(line)
        if not going_on:
            return
        time.sleep(LOOK_S)


def _files(folder: RunFolder, worker: str | None, *, may_come: bool = False) -> list[Path]:
    found = {path.name.removesuffix(SUFFIX): path for path in sorted(folder.logs.glob(f"*{SUFFIX}"))}
    if worker is None:
        return list(found.values())
    if worker in found:
        return [found[worker]]
    if may_come:
        return []
    raise RunFolderError(unknown("worker", worker, found))


def _by_time(logs: Iterable[Iterator[str]]) -> Iterator[str]:
    """Lines of several workers in one order; what one has printed at once stays together."""
    return heapq.merge(*logs, key=lambda line: line.partition(" ")[0])


def _latest(path: Path, count: int) -> Iterator[str]:
    """The last lines of a worker, those of files that are full included."""
    numbered = sorted(
        (older for older in path.parent.glob(f"{path.name}.*") if older.suffix[1:].isdecimal()),
        key=lambda older: -int(older.suffix[1:]),
    )
    lines: deque[str] = deque(maxlen=count)
    for file in (*numbered, path):
        try:
            with TextIOWrapper(open_file(file), errors="replace") as content:
                lines.extend(line.rstrip("\n") for line in content)
        except FileNotFoundError:
            continue  # it has just been renamed
    yield from lines


class Tail:
    """Follows a log file, also when it is full and a new one begins."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._inode, self._offset = 0, 0
        if not from_start:
            found = path.stat()
            self._inode, self._offset = found.st_ino, found.st_size

    def new_lines(self) -> Iterator[str]:
        """Whole lines since the last call."""
        for path in (Path(f"{self._path}.1"), self._path):
            try:
                with open_file(path) as file:
                    inode = os.fstat(file.fileno()).st_ino
                    if inode != self._inode and path != self._path:
                        continue  # it was full before
                    if inode != self._inode:
                        self._inode, self._offset = inode, 0
                    file.seek(self._offset)
                    content = file.read()
            except FileNotFoundError:
                continue  # between two files
            whole = content[: content.rfind(b"\n") + 1]
            self._offset += len(whole)
            yield from whole.decode(errors="replace").splitlines()
