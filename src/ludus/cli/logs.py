"""`ludus logs`: what the workers of a run have printed."""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from ludus.cli.experiments import open_run
from ludus.league.players import unknown
from ludus.store.run_folder import RunFolder, RunFolderError

LOOK_S = 0.3
SUFFIX = ".log"


@click.command("logs")
@click.argument("run", type=click.Path())
@click.argument("worker", required=False)
@click.option("--follow", is_flag=True, help="Go on with what is printed from now on, until the run ends.")
@click.option("--lines", type=click.IntRange(min=0), default=40, show_default=True, help="Of the past.")
def command(run: str, worker: str | None, follow: bool, lines: int) -> None:
    """What the workers of RUN have printed, or one of them (actor-0, learner, policy-worker): the latest
    lines, by time. Each begins with its time (UTC), the run and the worker.

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
            with file.open(errors="replace") as content:
                lines.extend(line.rstrip("\n") for line in content)
        except FileNotFoundError:
            continue  # it has just been renamed
    yield from lines


class Tail:
    """What is added to a log file, also when it is full and a new one begins."""

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
                with path.open("rb") as file:
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
