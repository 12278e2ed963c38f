"""What a process of its own costs a game: the same tables stepped here and there, by turns.

python benchmarks/isolation.py            about two minutes on two idle cores
python benchmarks/isolation.py --quick    to see that it works
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _other_cores import BUSY, IDLE, busy
from _report import parser, write

from ludus.games.catalog import resolve
from ludus.games.game import GameBatch, allocate_actions
from ludus.games.isolation.isolated import Isolated

LIMIT_US = 60.0
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Player:
    """Plays the first legal move at every table, for ever."""

    batch: GameBatch

    def __post_init__(self) -> None:
        number = self.batch.num_tables
        self._actions = allocate_actions(self.batch.spec, number)
        self._rng = np.random.default_rng(0)
        self.batch.reset(np.arange(number), np.arange(number, dtype=np.uint64))

    def play(self, steps: int) -> tuple[float, float]:
        """Microseconds that a step takes, and a reset of the tables that have ended."""
        view, actions = self.batch.view, self._actions
        stepping = resetting = 0.0
        resets = 0
        for _ in range(steps):
            for head, mask in view.legal[0].items():
                actions[0][head][...] = mask.argmax(-1)
            start = time.perf_counter()
            self.batch.step(actions)
            stepping += time.perf_counter() - start
            ended = np.flatnonzero(view.over | view.truncated)
            if len(ended):
                seeds = self._rng.integers(0, 2**63, len(ended), np.uint64)
                start = time.perf_counter()
                self.batch.reset(ended, seeds)
                resetting += time.perf_counter() - start
                resets += 1
        return 1e6 * stepping / steps, 1e6 * resetting / max(resets, 1)


def cpu_seconds() -> float:
    """Of this process and all below it."""
    return time.process_time() + sum(_cpu_of(pid) for pid in _below(os.getpid()))


def _below(pid: int) -> list[int]:
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return [*children, *(one for child in children for one in _below(child))]


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def bare_pipes(steps: int, windows: int) -> list[str]:
    """What any two processes that take turns must take: a byte there and back, from Python."""
    to_other, command = os.pipe()
    answer, to_us = os.pipe()
    other = os.fork()
    if other == 0:
        os.close(command)
        while told := os.read(to_other, 1):
            os.write(to_us, told)
        os._exit(0)
    times = np.zeros((windows, steps))
    for window in range(windows):
        for step in range(steps):
            start = time.perf_counter()
            os.write(command, b"s")
            os.read(answer, 1)
            times[window, step] = time.perf_counter() - start
    for end in (command, to_other, answer, to_us):
        os.close(end)
    os.waitpid(other, 0)
    took = 1e6 * float(np.median(times))
    return ["a byte", "", "0", f"{took:.0f}", f"{took:.0f}", *[""] * 6]


def measure(game: str, tables: int, steps: int, windows: int) -> list[str]:
    here, there = Player(resolve(game).tables(tables)), Player(Isolated(game).tables(tables))
    try:
        for player in (here, there):
            player.play(steps // 4)
        times, cpu = np.zeros((windows, 2, 2)), [0.0, 0.0]
        for window in range(windows):
            for which, player in enumerate((here, there)):
                before = cpu_seconds()
                times[window, which] = player.play(steps)
                cpu[which] += cpu_seconds() - before
    finally:
        there.batch.close()
    inside, apart = np.median(times, axis=0).tolist()
    step, reset = np.median(times[:, 1] - times[:, 0], axis=0).tolist()
    more_cpu = 1e6 * (cpu[1] - cpu[0]) / (steps * windows)
    return [
        game,
        str(tables),
        f"{inside[0]:.0f}",
        f"{apart[0]:.0f}",
        f"{step:.0f}",
        "yes" if step <= LIMIT_US else "no",
        f"{step / tables:.1f}",
        f"{inside[1]:.0f}",
        f"{apart[1]:.0f}",
        f"{reset:.0f}",
        f"{more_cpu:.0f}",
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    steps, windows = (200, 3) if quick else (1_000, 9)
    columns = ["game", "tables", "step here, us", "apart", "extra", f"<= {LIMIT_US:.0f}"]
    columns += ["extra a table, us"]
    columns += ["reset here, us", "apart", "extra", "extra CPU of a step and its reset, us"]
    games = [(game, tables) for game in ("kuhn", "connect_four") for tables in (1, 16, 64)]

    def rows() -> list[list[str]]:
        return [bare_pipes(steps, windows), *(measure(*game, steps, windows) for game in games)]

    idle = rows()
    with busy():
        beside = rows()
    write(
        "isolation",
        "A game in a process of its own",
        [(IDLE, columns, idle), (BUSY, columns, beside)],
        notes=[
            "Medians of windows that take turns. CPU time is of both sides together. A step is one of all "
            "tables; a byte goes between two processes with no game behind it."
        ],
        keep=not quick,
    )


if __name__ == "__main__":
    main()
