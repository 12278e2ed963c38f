"""Kuhn poker that does something bad when it finds an order. It is apart from the experiment, so that a game in its own
process takes no more memory than a game does.

An order is a file in the folder that FAULT_MARKS names. One process takes it, so that each order is carried out once,
at the moment when the harness gave it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ludus.games.builtin.kuhn import Kuhn
from ludus.games.game import Actions, GameBatch


def marks() -> Path:
    return Path(os.environ["FAULT_MARKS"])


def order(who: str) -> str | None:
    """The order that this process has just taken, if there was one."""
    file = marks() / who
    try:
        with file.open() as opened:  # before it is taken: whoever gave the order then removes it
            file.rename(marks() / f"{who}.taken.{os.getpid()}.{time.monotonic_ns()}")
            return opened.read()
    except FileNotFoundError:
        return None


def _leak(_: GameBatch) -> None:
    KEPT.append(np.ones(400 * 2**20, np.uint8))


def _start_child(session: bool) -> None:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=session)
    (marks() / "child.new").write_text(str(child.pid))
    (marks() / "child.new").rename(marks() / "child")


def _blind(batch: GameBatch) -> None:
    for array in batch.view.observation[0].values():
        array[...] = np.nan


def _pay(amount: float) -> Callable[[GameBatch], None]:
    def pay(batch: GameBatch) -> None:
        batch.view.reward[batch.view.over] = amount

    return pay


def _raise(_: GameBatch) -> None:
    raise OSError("no licence for this game")


KEPT: list[Any] = []
ACTS: dict[str, Callable[[GameBatch], object]] = {
    "raise": _raise,
    "segfault": lambda _: ctypes.string_at(0),
    "exit": lambda _: os._exit(0),
    "hang": lambda _: time.sleep(1e6),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "child": lambda _: _start_child(session=False),
    "child of its own session": lambda _: _start_child(session=True),
    "show NaN": _blind,
    "pay NaN": _pay(float("nan")),
    "pay infinity": _pay(float("inf")),
    "leak": _leak,
}


@dataclass(frozen=True, kw_only=True)
class FaultyKuhn(Kuhn):
    """Kuhn poker that carries out orders for `game`. "end kill": in the step that ends the last episode of a match."""

    episodes: int = 8

    def tables(self, num_tables: int) -> GameBatch:
        batch: Any = super().tables(num_tables)
        plain = batch.step
        ended = np.zeros(num_tables, np.int64)
        given: list[str] = []

        def step(actions: Actions) -> None:
            plain(actions)
            ended[batch.view.over] += 1
            at_end = bool((ended[batch.view.over] % self.episodes == 0).any())
            given.extend(filter(None, [order("game")]))
            if given and (at_end or not given[0].startswith("end ")):
                ACTS[given.pop(0).removeprefix("end ")](batch)

        batch.step = step
        made: GameBatch = batch
        return made
