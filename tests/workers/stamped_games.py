"""Games that write down what happens. Every observation carries a stamp, a number that is never used twice,
so that each row of a trajectory can be found again in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec, ObservationSpec, Vector
from ludus.data.trees import IntArray
from ludus.games.game import Actions, Bot, GameBatch, GameSource, TableView

UNIT = 2.0**-20
"""Stamps are whole multiples of this: exact in float32, and small enough for a network to look at."""


def number_of(stamp: Any) -> Any:
    """The number behind a stamp."""
    return np.rint(np.asarray(stamp, np.float64) / UNIT).astype(np.int64)


@dataclass
class LoggedDecision:
    stamp: int
    seat: int
    action: dict[str, Any]
    clock: int
    reward: float = 0.0
    """All that the seat got until its next decision or the end."""


@dataclass
class Episode:
    table: int
    seed: int
    number: int
    """How many episodes the table played before."""
    decisions: dict[int, list[LoggedDecision]] = field(default_factory=dict)
    early_reward: float = 0.0
    """Sum of |reward| that came to seats before their first decision."""
    steps: int = 0
    over: bool = False
    truncated: bool = False
    score: tuple[float, ...] = ()
    last_clock: int = 0
    last_stamp: dict[int, int] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.over or self.truncated


class StampedTables:
    """Another batch of tables, stamped and logged."""

    def __init__(self, spec: GameSpec, inner: GameBatch) -> None:
        self.spec = spec
        self.num_tables = inner.num_tables
        self._inner = inner
        self._stamps = tuple(np.zeros((self.num_tables, len(seats), 1), np.float32) for seats in spec.seats_of_kind)
        self.view: TableView = replace(
            inner.view,
            observation=tuple(
                {**tree, "stamp": stamps} for tree, stamps in zip(inner.view.observation, self._stamps, strict=True)
            ),
        )
        self._next = 0
        self.log: list[Episode] = []
        self._now: dict[int, Episode] = {}

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._inner.reset(tables, seeds)
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            before = self._now.get(table)
            assert before is None or before.ended, f"table {table} is reset in the middle of an episode"
            self._now[table] = Episode(table, seed, 0 if before is None else before.number + 1)
            self.log.append(self._now[table])
            self._stamp(table)

    def step(self, actions: Actions) -> None:
        view = self.view
        going_on = [table for table in range(self.num_tables) if not self._now[table].ended]
        for table in going_on:
            for seat in np.flatnonzero(view.to_act[table]).tolist():
                self._log_decision(table, seat, actions)
        self._inner.step(actions)
        for table in going_on:
            episode = self._now[table]
            episode.steps += 1
            for seat, reward in enumerate(view.reward[table].tolist()):
                if made := episode.decisions.get(seat):
                    made[-1].reward += reward
                else:
                    episode.early_reward += abs(reward)
            episode.over, episode.truncated = bool(view.over[table]), bool(view.truncated[table])
            episode.score = tuple(view.score[table].tolist())
            episode.last_clock = int(view.clock[table])
            self._stamp(table)

    def close(self) -> None:
        self._inner.close()

    def _log_decision(self, table: int, seat: int, actions: Actions) -> None:
        kind, column = self.spec.seats[seat], self.spec.column_of_seat[seat]
        made = LoggedDecision(
            stamp=int(number_of(self._stamps[kind][table, column, 0])),
            seat=seat,
            action={name: array[table, column].copy() for name, array in actions[kind].items()},
            clock=int(self.view.clock[table]),
        )
        self._now[table].decisions.setdefault(seat, []).append(made)

    def _stamp(self, table: int) -> None:
        for seat, (kind, column) in enumerate(zip(self.spec.seats, self.spec.column_of_seat, strict=True)):
            self._next += 1
            self._stamps[kind][table, column, 0] = self._next * UNIT
            self._now[table].last_stamp[seat] = self._next


@dataclass(frozen=True)
class Stamped:
    """A game source whose tables are logged; `made` holds all tables that it made."""

    source: GameSource
    made: list[StampedTables] = field(default_factory=list)

    @cached_property
    def spec(self) -> GameSpec:
        inner = self.source.spec
        kinds = tuple(
            replace(
                kind,
                observation=ObservationSpec(
                    parts={**kind.observation.parts, "stamp": Vector(size=1)}, critic=kind.observation.critic
                ),
            )
            for kind in inner.kinds
        )
        return replace(inner, kinds=kinds)

    def tables(self, num_tables: int) -> GameBatch:
        self.made.append(StampedTables(self.spec, self.source.tables(num_tables)))
        return self.made[-1]

    def bots(self) -> Mapping[str, Bot]:
        return self.source.bots()

    def tree(self) -> None:
        return None
