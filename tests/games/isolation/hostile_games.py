"""Kuhn poker that misbehaves after some steps of its tables: what a process of its own is for."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import IntArray, Tree
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.game import Actions, Bot, GameBatch

_hoard: list[NDArray[np.uint8]] = []
_DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(1000)
"""


def start_daemon(mark: Path) -> None:
    """A program that lets go of everything that could tell whose it is."""
    subprocess.run([sys.executable, "-S", "-c", _DAEMON, str(mark)], check=True)
    while not mark.exists():
        time.sleep(0.01)


def _raise(_: GameBatch, __: Path) -> None:
    raise OSError("no licence for this game")


def _segfault(_: GameBatch, __: Path) -> None:
    ctypes.string_at(0)


def _exit(_: GameBatch, __: Path) -> None:
    print("the game server said good-bye", file=sys.stderr)
    sys.stderr.flush()
    os._exit(3)


def _hang(_: GameBatch, __: Path) -> None:
    time.sleep(1000)


def _wait(_: GameBatch, __: Path) -> None:
    time.sleep(1)


def _hang_deeply(_: GameBatch, __: Path) -> None:
    ctypes.PyDLL(None).sleep(1000)  # holds the lock of the interpreter: no thread of it can do anything


def _leak(_: GameBatch, __: Path) -> None:
    _hoard.append(np.ones(400 * 2**20, np.uint8))


def _show_nan(batch: GameBatch, _: Path) -> None:
    for array in batch.view.observation[0].values():
        array[...] = np.nan


def _pay_infinity(batch: GameBatch, _: Path) -> None:
    batch.view.reward[0, 0] = np.inf


def _forbid_all(batch: GameBatch, _: Path) -> None:
    for mask in batch.view.legal[0].values():
        mask[...] = False


def _end_twice(batch: GameBatch, _: Path) -> None:
    batch.view.over[1] = batch.view.truncated[1] = True


def _let_nobody_act(batch: GameBatch, _: Path) -> None:
    batch.view.to_act[1] = batch.view.over[1] = False


def _start_daemon(_: GameBatch, marks: Path) -> None:
    start_daemon(marks / "daemon")


ACTS: Mapping[str, Callable[[GameBatch, Path], None]] = {
    "raise": _raise,
    "segfault": _segfault,
    "exit": _exit,
    "hang": _hang,
    "wait": _wait,
    "hang deeply": _hang_deeply,
    "leak": _leak,
    "show NaN": _show_nan,
    "pay infinity": _pay_infinity,
    "forbid all": _forbid_all,
    "end twice": _end_twice,
    "let nobody act": _let_nobody_act,
    "start a daemon": _start_daemon,
}


@dataclass(frozen=True, kw_only=True)
class Hostile(Kuhn):
    act: str
    marks: str
    """A folder that remembers, from one process to the next, how often it was done."""
    after: int = 3
    """Steps of the tables."""
    times: int = 1
    at_start: bool = False
    """Already when the tables are made."""

    def tables(self, num_tables: int) -> GameBatch:
        return HostileTables(self, super().tables(num_tables))

    def bots(self) -> Mapping[str, Bot]:
        return {**super().bots(), "hostile": HostileBot()}


class HostileTables:
    """The tables of a hostile game; all else is as Kuhn poker's."""

    def __init__(self, source: Hostile, batch: GameBatch) -> None:
        self._source, self._batch, self._steps = source, batch, 0
        self.view = batch.view
        if source.at_start:
            self.misbehave()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def step(self, actions: Actions) -> None:
        self._batch.step(actions)
        self._steps += 1
        if self._steps >= self._source.after:
            self.misbehave()

    def misbehave(self) -> None:
        marks = Path(self._source.marks)
        for number in range(self._source.times):
            try:
                (marks / f"done-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            ACTS[self._source.act](self._batch, marks)
            return


@dataclass(frozen=True)
class HostileBot:
    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        raise RuntimeError("this bot has lost its temper")
