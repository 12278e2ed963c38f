"""Connect four in a process that does not live long."""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.game import Actions, GameBatch

MEMORY_MB = 400.0
"""More than this is a leak."""
_hoard: list[Any] = []


def _raise(_: GameBatch) -> None:
    raise RuntimeError("the game server has lost its licence")


def _show_nan(batch: GameBatch) -> None:
    batch.view.reward[0, 0] = np.nan


FAULTS: dict[str, Callable[[GameBatch], object]] = {
    "segfault": lambda _: ctypes.string_at(0),
    "exit": lambda _: os._exit(1),
    "raise": _raise,
    "garbage": _show_nan,
    "leak": lambda _: _hoard.append(np.ones(int(1.5 * MEMORY_MB * 2**20), np.uint8)),
    "hang": lambda _: time.sleep(1e6),
}


@dataclass(frozen=True, kw_only=True)
class Unreliable(ConnectFour):
    """Connect four whose process does not live long."""

    mean_seconds: float = 60.0
    """Of a process, until something happens."""

    def tables(self, num_tables: int) -> GameBatch:
        batch: Any = super().tables(num_tables)
        chance = random.Random(os.urandom(8))
        due = time.monotonic() + chance.expovariate(1 / self.mean_seconds)
        fault = FAULTS[chance.choice([*FAULTS])]
        plain = batch.step

        def step(actions: Actions) -> None:
            nonlocal due
            plain(actions)
            if time.monotonic() > due:
                due = np.inf
                fault(batch)

        batch.step = step
        made: GameBatch = batch
        return made
