"""What a game server costs: table-steps a second and round trips on loopback, beside the same game in this
process and a bare TCP connection.

python benchmarks/game_server.py                 about two minutes
python benchmarks/game_server.py --seconds 0.2   to see that it runs; writes no report
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
from _other_cores import BUSY, IDLE, busy
from _report import parser, write

from ludus.games.catalog import resolve
from ludus.games.game import GameBatch, allocate_actions
from ludus.games.remote import shortcut
from ludus.games.remote.source import from_address

QUOTED_SECONDS = 3.0
TABLES = 64
GAMES = ("kuhn", "connect_four")
STEPS_WANTED, ROUND_TRIP_WANTED_US = 100_000, 400


@dataclass(frozen=True, kw_only=True)
class Figures:
    steps: list[float]
    """Seconds of each step of all tables."""
    resets: list[float]
    """And of each reset of the tables that had ended."""
    client_us: float
    """Processor time of a step and its resets."""
    server_us: float
    tables: int

    def row(self, game: str, place: str) -> list[str]:
        steps, resets = sorted(self.steps), sorted(self.resets)
        per_step = len(resets) / len(steps)
        # A tenth part of the steps is this quick or quicker: what it takes when nothing else runs.
        step, best_step = (steps[len(steps) // part] * 1e6 for part in (2, 10))
        reset, best_reset = (resets[len(resets) // part] * 1e6 if resets else 0.0 for part in (2, 10))
        return [
            game,
            place,
            str(self.tables),
            f"{self.tables / step * 1e6:,.0f} ({self.tables / best_step * 1e6:,.0f})",
            f"{self.tables / (step + per_step * reset) * 1e6:,.0f} "
            f"({self.tables / (best_step + per_step * best_reset) * 1e6:,.0f})",
            f"{step:,.0f} ({best_step:,.0f})",
            f"{reset:,.0f} ({best_reset:,.0f})" if resets else "",
            f"{per_step:.2f}",
            f"{self.client_us:,.0f}",
            f"{self.server_us:,.0f}",
        ]


Turn = Callable[[], tuple[float, float | None]]
"""Takes a step; seconds of it, and of the resets after it."""


def first_legal(batch: GameBatch) -> Turn:
    """Plays a turn at all tables with as little thought as can be."""
    actions = allocate_actions(batch.spec, batch.num_tables)
    (tree,), (legal,) = actions, batch.view.legal
    ((head, chosen),) = tree.items()
    seeds = iter(range(10**9))
    batch.reset(np.arange(batch.num_tables), np.arange(batch.num_tables, dtype=np.uint64))

    def turn() -> tuple[float, float | None]:
        chosen[:] = legal[head].argmax(-1)
        start = time.perf_counter()
        batch.step(actions)
        stepped = time.perf_counter()
        fresh = np.flatnonzero(batch.view.over)
        if not len(fresh):
            return stepped - start, None
        new = np.array([next(seeds) for _ in fresh], np.uint64)
        begin = time.perf_counter()
        batch.reset(fresh, new)
        return stepped - start, time.perf_counter() - begin

    return turn


def measure(turn: Turn, tables: int, seconds: float, server: int | None) -> Figures:
    for _ in range(50):
        turn()
    steps: list[float] = []
    resets: list[float] = []
    before, own = processor_s(server), time.process_time()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        step, reset = turn()
        steps.append(step)
        if reset is not None:
            resets.append(reset)
    own, theirs = time.process_time() - own, processor_s(server) - before
    return Figures(
        steps=steps, resets=resets, client_us=own / len(steps) * 1e6, server_us=theirs / len(steps) * 1e6, tables=tables
    )


def processor_s(pid: int | None) -> float:
    """Of a process and all below it."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        total += sum(processor_s(int(child)) for child in task.read_text().split())
    return total


@contextmanager
def server(game: str, workers: int) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "ludus.cli.main", "serve", game, "--port", "0", "--workers", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().partition("remote://")[2].partition(",")[0], process.pid
    finally:
        process.terminate()
        process.communicate()


def _echo(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while told := connection.recv(2**16):
        connection.sendall(bytes(200 if len(told) < 100 else 12_000))


def bare_tcp(tables: int, seconds: float) -> Figures:
    """What any protocol must take: as many bytes there and back."""
    sent, answered = (8, 200) if tables == 1 else (256, 12_000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=_echo, args=(listener,))
        process.start()
        with socket.create_connection(listener.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def turn() -> tuple[float, None]:
                start = time.perf_counter()
                connection.sendall(bytes(sent))
                left = answered
                while left:
                    left -= len(connection.recv(left))
                return time.perf_counter() - start, None

            figures = measure(turn, tables, seconds, process.pid)
        process.join()
    return figures


def all_rows(seconds: float) -> list[list[str]]:
    rows = [bare_tcp(tables, seconds).row("bytes", "bare TCP") for tables in (1, TABLES)]
    for game in GAMES:
        for tables in (1, TABLES):
            batch = resolve(game).tables(tables)
            figures = measure(first_legal(batch), tables, seconds, None)
            rows.append(figures.row(game, "this process"))
        for workers in (0, 1):
            with server(game, workers) as (address, pid):
                for way, taken in (("", shortcut.SUPPORTED), (", gRPC alone", False)):
                    for tables in (1, TABLES):
                        with patch.object(shortcut, "SUPPORTED", taken):
                            batch = from_address(f"remote://{address}").tables(tables)
                        figures = measure(first_legal(batch), tables, seconds, pid)
                        rows.append(figures.row(game, f"server, --workers {workers}{way}"))
                        batch.close()
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=QUOTED_SECONDS, help="for each line")
    arguments = options.parse_args()
    idle = all_rows(arguments.seconds)
    with busy():
        beside = all_rows(arguments.seconds)
    columns = [
        "game",
        "where",
        "tables",
        "table-steps/s",
        "with resets",
        "a step, us",
        "a reset, us",
        "resets a step",
        "client's processor, us",
        "server's",
    ]
    write(
        "game-server",
        "The game server on loopback",
        [(IDLE, columns, idle), (BUSY, columns, beside)],
        notes=[
            "A step of all tables, there and back: median (quickest tenth). "
            f"Wanted: {STEPS_WANTED:,} table-steps/s at {TABLES} tables, {ROUND_TRIP_WANTED_US} us at one. "
            "Other load on the machine shows as the distance between the median and the quickest tenth. "
            "Tables that have ended are reset with a message of their own, since the seed of an episode is "
            "known only then; games of a few steps, such as kuhn, pay for it at nearly every step. Processor "
            "time is that of a step with its resets, the server's with its workers."
        ],
        keep=arguments.seconds >= QUOTED_SECONDS,
    )


if __name__ == "__main__":
    main()
