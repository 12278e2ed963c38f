"""Tables that write down what is done at them: each episode that ends becomes a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.replay import Packed, Replay, SeatPlayer
from ludus.data.specs import GameSpec
from ludus.data.tree_game import TreeState
from ludus.data.trees import Array, IntArray, Tree, allocate
from ludus.games.game import Actions, Bot, GameBatch, GameSource, lost_tables
from ludus.games.seen import Seen

_FIRST_CAPACITY = 64
"""Decisions of a table that there is room for before the arrays grow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What a replay says about play itself."""

    table: int
    seed: int
    score: tuple[float, ...]
    truncated: bool
    num_steps: int
    seen: int
    step: Packed
    seat: Packed
    action: tuple[dict[str, Packed], ...]

    def replay(
        self,
        *,
        game: str,
        options: Mapping[str, Any],
        version: str,
        map_name: str,
        seats: tuple[SeatPlayer, ...],
        teams: tuple[int, ...],
    ) -> Replay:
        """With what else there is to know: which game, and who sat where."""
        return Replay(
            game=game,
            options=dict(options),
            version=version,
            map=map_name,
            seed=self.seed,
            seats=seats,
            teams=teams,
            score=self.score,
            truncated=self.truncated,
            num_steps=self.num_steps,
            seen=self.seen,
            step=self.step,
            seat=self.seat,
            action=self.action,
        )


Finished = Callable[[Recording], None]


def innermost(source: GameSource) -> GameSource:
    """The game itself, without what is wrapped around it (as the attribute `game` of each wrapper)."""
    inner = getattr(source, "game", None)
    return innermost(inner) if isinstance(inner, GameSource) else source


def record_innermost(source: GameSource, finished: Finished) -> GameSource:
    """The same game; what is done at the tables of the innermost one is recorded, whatever is around it."""
    inner = getattr(source, "game", None)
    if isinstance(inner, GameSource):
        wrapper: Any = source
        changed: Any = replace(wrapper, game=record_innermost(inner, finished))
        return changed  # type: ignore[no-any-return]
    return RecordedGame(source, finished)


@dataclass(frozen=True)
class RecordedGame:
    """A `GameSource`: another one's game, at tables that record."""

    source: GameSource
    finished: Finished
    """Called with each episode that ends, before anything else learns of it."""

    @cached_property
    def spec(self) -> GameSpec:
        return self.source.spec

    def tables(self, num_tables: int) -> GameBatch:
        return RecordedTables(self.source.tables(num_tables), self.finished)

    def bots(self) -> Mapping[str, Bot]:
        return self.source.bots()

    def tree(self) -> TreeState | None:
        return self.source.tree()


class RecordedTables:
    """A `GameBatch` that plays another one's tables. All else that those can do, it can."""

    def __init__(self, game: GameBatch, finished: Finished) -> None:
        self.spec = game.spec
        self.num_tables = game.num_tables
        self.view = game.view
        self.game = game
        """The tables as the game has them."""
        self._finished = finished
        self._seats = [np.array(seats) for seats in game.spec.seats_of_kind]
        self._seeds = np.zeros(self.num_tables, np.uint64)
        self._steps = np.zeros(self.num_tables, np.int64)
        self._running = np.zeros(self.num_tables, np.bool_)
        self._decisions = _Log({"step": np.zeros(()), "seat": np.zeros(())}, self.num_tables)
        self._actions = [_Log(allocate(kind.action.arrays, ()), self.num_tables) for kind in game.spec.kinds]
        self._seen = Seen(game.spec, self.num_tables)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.game, name)

    @property
    def lost(self) -> Mapping[int, str]:
        return lost_tables(self.game)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self.game.reset(tables, seeds)
        self._seeds[tables] = seeds
        self._steps[tables] = 0
        self._running[tables] = True
        self._seen.reset(tables)
        for log in (self._decisions, *self._actions):
            log.clear(tables)

    def step(self, actions: Actions) -> None:
        to_act = self.view.to_act
        self._seen.add(self.view)
        tables, seats = np.nonzero(to_act)
        self._decisions.append(tables, {"step": self._steps[tables], "seat": seats})
        for log, chosen, own in zip(self._actions, actions, self._seats, strict=True):
            tables, columns = np.nonzero(to_act[:, own])
            log.append(tables, {head: array[tables, columns] for head, array in chosen.items()})
        self.game.step(actions)
        self._steps[self._running] += 1
        ended = self._running & (self.view.over | self.view.truncated)
        for table in np.flatnonzero(ended).tolist():
            self._finished(self._recording(table))
        self._running &= ~ended

    def close(self) -> None:
        self.game.close()

    def _recording(self, table: int) -> Recording:
        decisions = self._decisions.of(table)
        return Recording(
            table=table,
            seed=int(self._seeds[table]),
            score=tuple(self.view.score[table].tolist()),
            truncated=not self.view.over[table],
            num_steps=int(self._steps[table]),
            seen=self._seen.of(table),
            step=Packed.of(decisions["step"]),
            seat=Packed.of(decisions["seat"]),
            action=tuple(
                {head: Packed.of(array) for head, array in log.of(table).items()} for log in self._actions
            ),
        )


class _Log:
    """Rows written one after the other at each table."""

    def __init__(self, rows: Mapping[str, Array], num_tables: int) -> None:
        self._length = np.zeros(num_tables, np.int64)
        self._rows: Tree = {
            name: np.zeros((num_tables, _FIRST_CAPACITY, *row.shape), np.int32) for name, row in rows.items()
        }

    def clear(self, tables: IntArray) -> None:
        self._length[tables] = 0

    def append(self, tables: IntArray, rows: Mapping[str, Array]) -> None:
        """Row i belongs to `tables[i]`; tables are in order."""
        if not len(tables):
            return
        place = self._length[tables] + np.arange(len(tables)) - np.searchsorted(tables, tables)
        for name, array in self._rows.items():
            while place.max() >= self._rows[name].shape[1]:
                self._rows[name] = np.concatenate([self._rows[name], np.zeros_like(array)], axis=1)
            self._rows[name][tables, place] = rows[name]
        np.add.at(self._length, tables, 1)

    def of(self, table: int) -> Tree:
        return {name: array[table, : self._length[table]] for name, array in self._rows.items()}
