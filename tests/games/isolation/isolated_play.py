"""Plays isolated tables, and looks at the processes that this takes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.games.game import Actions, GameBatch, allocate_actions
from ludus.games.isolation.isolated import Isolated

HOSTILE = f"{Path(__file__).with_name('hostile_games.py')}:Hostile"


def hostile(act: str, marks: Path, *, times: int = 1, after: int = 3, at_start: bool = False, **how: Any) -> Isolated:
    options = {"act": act, "marks": str(marks), "times": times, "after": after, "at_start": at_start}
    return Isolated(HOSTILE, options, **{"step_seconds": 10.0, **how})


def first_legal(batch: GameBatch) -> Actions:
    actions = allocate_actions(batch.spec, batch.num_tables)
    for tree, legal in zip(actions, batch.view.legal, strict=True):
        for head, mask in legal.items():
            tree[head][...] = mask.argmax(-1)
    return actions


def reset(batch: GameBatch, tables: list[int], first_seed: int = 0) -> None:
    batch.reset(np.array(tables), seeds(len(tables), first_seed))


def seeds(number: int, first: int = 0) -> NDArray[np.uint64]:
    return np.arange(first, first + number, dtype=np.uint64)


def play(batch: GameBatch, steps: int) -> None:
    """As far as `steps`, or until a table is lost; ended tables begin again."""
    for step in range(steps):
        batch.step(first_legal(batch))
        if getattr(batch, "lost", {}):
            return
        ended = np.flatnonzero(batch.view.over | batch.view.truncated)
        if len(ended):
            batch.reset(ended, seeds(len(ended), 100 * step))


def descendants(pid: int | None = None) -> set[int]:
    """All processes below this one, or another one."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid or os.getpid()}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found |= {child} | descendants(child)
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: set[int], limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while alive := {pid for pid in pids if is_alive(pid)}:
        assert time.monotonic() < end, f"still alive: {alive}"
        time.sleep(0.02)
