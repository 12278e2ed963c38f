"""Windows of a measured training: frames, wall seconds and CPU seconds, one JSON line each.

Ludus and the peers' programs use it alike, each in an environment of its own: standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from pathlib import Path


class Windows:
    """Cuts a training into windows. Start and warm-up, which begins with the first update, do not count."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._left: int = arguments.windows
        self._seconds: float = arguments.seconds
        self._warm_up: float = arguments.warm_up
        self._due: float | None = None
        self._frames = 0
        self._before: tuple[int, float, float] | None = None

    def note(self, frames: int) -> bool:
        """`frames` have been learned from since the start. False once all windows are full.

        A window ends with the first update after its time is up, since frames count by whole batches.
        """
        if frames == self._frames or not self._left:
            return bool(self._left)
        self._frames = frames
        now = time.monotonic()
        if self._due is None:
            self._due = now + self._warm_up
        if now >= self._due:
            self._cut(frames, now)
        return bool(self._left)

    def _cut(self, frames: int, now: float) -> None:
        cpu = cpu_of_tree()
        if self._before is not None:
            frames_0, wall_0, cpu_0 = self._before
            window = {"frames": frames - frames_0, "wall": now - wall_0, "cpu": cpu - cpu_0}
            print(json.dumps(window), flush=True)
            self._left -= 1
        self._before = (frames, now, cpu)
        self._due = now + self._seconds


def parser(description: str | None) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--windows", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    arguments.add_argument("--warm-up", type=float, default=5.0, help="seconds from the first update")
    return arguments


def cpu_of_tree() -> float:
    """User and system seconds of this process and all below it: those that run, and those that have ended
    and were waited for."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended since we listed it
            continue
        children[int(fields[1])].append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children[process]
    return total / os.sysconf("SC_CLK_TCK")
