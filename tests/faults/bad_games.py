"""Kuhn poker at tables where something goes wrong: what a game does to the process that plays it."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.game import Actions, Bot, GameBatch, Turn


def _raise(_: GameBatch, __: Path) -> None:
    raise OSError("no licence for this game")


def _segfault(_: GameBatch, __: Path) -> None:
    ctypes.string_at(0)


def _exit(_: GameBatch, __: Path) -> None:
    os._exit(0)


def _hang(_: GameBatch, __: Path) -> None:
    time.sleep(1e6)


def _kill(_: GameBatch, __: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _start_child(_: GameBatch, marks: Path) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    (marks / "child.new").write_text(str(child.pid))
    (marks / "child.new").rename(marks / "child")


def _blind(batch: GameBatch, _: Path) -> None:
    for array in batch.view.observation[0].values():
        array[...] = np.nan


def _pay_nan(batch: GameBatch, _: Path) -> None:
    batch.view.reward[batch.view.over] = np.nan


ACTS: Mapping[str, Callable[[GameBatch, Path], None]] = {
    "raise": _raise,
    "segfault": _segfault,
    "exit": _exit,
    "hang": _hang,
    "kill": _kill,
    "start a child": _start_child,
    "show NaN": _blind,
    "pay NaN": _pay_nan,
}


@dataclass(frozen=True, kw_only=True)
class BadKuhn(Kuhn):
    """After some steps of the tables it does `act`; `times` times in all, over all processes."""

    act: str
    marks: str
    """A folder that remembers, from one process to the next, how often it was done."""
    times: int = 1
    after: int = 40
    """Steps of the tables; -1: when every table has ended the last episode of a match."""
    episodes: int = 8
    per_process: int = 10**9
    only: int = -1
    """The number of the actor whose game is bad; -1: all."""

    def tables(self, num_tables: int) -> GameBatch:
        batch: Any = super().tables(num_tables)
        plain, plain_reset = batch.step, batch.reset
        steps = itertools.count(1)
        ended = np.zeros(num_tables, np.int64)
        here = itertools.count()

        def step(actions: Actions) -> None:
            plain(actions)
            ended[batch.view.over] += 1
            due = next(steps) >= self.after if self.after >= 0 else ended.min() >= self.episodes
            if due and next(here) < self.per_process and self._may():
                ACTS[self.act](batch, Path(self.marks))

        def reset(*tables_and_seeds: Any) -> None:
            """Where something is shown, it is shown at the beginning of episodes too."""
            plain_reset(*tables_and_seeds)
            if self.act == "show NaN" and next(steps) >= self.after and self._may():
                ACTS[self.act](batch, Path(self.marks))

        batch.step, batch.reset = step, reset
        made: GameBatch = batch
        return made

    def _may(self) -> bool:
        if self.only >= 0 and json.loads(sys.argv[1])["index"] != self.only:
            return False
        done = len(list(Path(self.marks).glob("done-*")))
        if done >= self.times:
            return False
        (Path(self.marks) / f"done-{done}").touch()
        return True


class Pennies:
    """Two seats that choose in turn, four choices an episode."""

    spec = GameSpec.symmetric(
        name="pennies",
        num_seats=2,
        observation=ObservationSpec(parts={"turn": Vector(size=1)}),
        action=ActionSpec(heads={"side": Choice(num=2)}),
        max_length=4,
    )
    score = (1.0, -1.0)
    length = 4

    def reset(self, seed: int) -> Turn:
        self._turn = 0
        return self._show()

    def step(self, actions: Mapping[int, Any]) -> Turn:
        self._turn += 1
        return self._show()

    def bots(self) -> Mapping[str, Bot]:
        return {"clumsy": ClumsyBot()}

    def _show(self) -> Turn:
        over = self._turn == self.length
        shown = {} if over else {self._turn % 2: np.array([self._turn], np.float32)}
        return Turn(observations=shown, over=over, score=self.score if over else None)


class EndlessPennies(Pennies):
    """No episode ends, although it should after four steps."""

    length = -1


class EmptyPennies(Pennies):
    """Every episode ends before it begins."""

    length = 0


class UnscoredPennies(Pennies):
    score = (float("nan"), float("nan"))


class ClumsyBot:
    def act(self, game: GameBatch, tables: Any, seats: Any, rng: np.random.Generator) -> Any:
        raise KeyError("opening")
