"""Tables that record their episodes, and the digest, version and map that replays hold to recognise a game."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.replay import Packed, Replay, SeatPlayer
from ludus.data.specs import GameSpec, length_name
from ludus.data.trees import Array, IntArray, Tree, allocate
from ludus.games.game import Actions, GameBatch, GameSource, TableView
from ludus.games.lift import Lifted
from ludus.games.seeding import mix
from ludus.games.tables import WrappedGame, WrappedTables, change_innermost

_WORD = 8

_FIRST_CAPACITY = 64  # decisions per table before the arrays grow

_MAP_OPTIONS = ("map_name", "map", "mode")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """One finished episode: the part of a `Replay` that tables know."""

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
        """Complete the replay with the game and its players."""
        recorded = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "table"}
        return Replay(
            game=game, options=dict(options), version=version, map=map_name, seats=seats, teams=teams, **recorded
        )


Finished = Callable[[Recording], None]


def record_innermost(source: GameSource, finished: Finished) -> GameSource:
    """The same game with recording tables for the innermost game."""
    return change_innermost(source, lambda game: RecordedGame(game, finished))


def innermost(source: GameSource) -> GameSource:
    """The game inside all wrappers, each of which holds the next as its attribute `game`."""
    inner = getattr(source, "game", None)
    return innermost(inner) if isinstance(inner, GameSource) else source


@dataclass(frozen=True)
class RecordedGame(WrappedGame):
    """A `GameSource` that records the tables of another one."""

    finished: Finished
    """Called with each finished episode, before `step` returns."""

    def tables(self, num_tables: int) -> GameBatch:
        return RecordedTables(self.game.tables(num_tables), self.finished)


class RecordedTables(WrappedTables):
    """A `GameBatch` that records another one."""

    def __init__(self, game: GameBatch, finished: Finished) -> None:
        super().__init__(game)
        self._finished = finished
        self._seats = [np.array(seats) for seats in game.spec.seats_of_kind]
        self._seeds = np.zeros(self.num_tables, np.uint64)
        self._steps = np.zeros(self.num_tables, np.int64)
        self._running = np.zeros(self.num_tables, np.bool_)
        self._decisions = _Log(dict.fromkeys(("step", "seat"), np.zeros((), np.int32)), self.num_tables)
        self._actions = [_Log(allocate(kind.action.arrays, ()), self.num_tables) for kind in game.spec.kinds]
        self._seen = ViewDigest(game.spec, self.num_tables)

    def __getattr__(self, name: str) -> Any:
        """What a game offers to its own bots, such as SlimeVolley's baseline."""
        return getattr(self.game, name)

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
            action=tuple({head: Packed.of(array) for head, array in log.of(table).items()} for log in self._actions),
        )


class _Log:
    """Growing arrays of rows, one sequence per table."""

    def __init__(self, rows: Mapping[str, Array], num_tables: int) -> None:
        self._length = np.zeros(num_tables, np.int64)
        self._rows: Tree = {
            name: np.zeros((num_tables, _FIRST_CAPACITY, *row.shape), row.dtype) for name, row in rows.items()
        }

    def clear(self, tables: IntArray) -> None:
        self._length[tables] = 0

    def append(self, tables: IntArray, rows: Mapping[str, Array]) -> None:
        """Append row i to `tables[i]`; tables are sorted."""
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


class ViewDigest:
    """Digest of the current episode at each table. It detects accidents, not forgery."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self._kinds = [np.array(seats) for seats in spec.seats_of_kind]
        self._digest = np.zeros(num_tables, np.uint64)

    def reset(self, tables: IntArray) -> None:
        self._digest[tables] = 0

    def of(self, table: int) -> int:
        return int(self._digest[table])

    def add(self, view: TableView) -> None:
        """Add the observations and masks of all seats to act."""
        total = np.zeros_like(self._digest)
        for kind, seats in enumerate(self._kinds):
            tables, columns = np.nonzero(view.to_act[:, seats])
            if not len(tables):
                continue
            observation, legal = view.observation[kind], view.legal[kind]
            rows = seats[columns].astype(np.uint64)
            for name, array in observation.items():
                lengths = observation.get(length_name(name))
                shown = array[tables, columns]
                if lengths is not None:  # rows after the last entity may hold anything
                    shown[np.arange(shown.shape[1]) >= lengths[tables, columns][:, None]] = 0
                rows = mix(rows + _row_sums(shown), 0)
            for mask in legal.values():
                rows = mix(rows + _row_sums(mask[tables, columns]), 1)
            np.add.at(total, tables, rows)
        acting = view.to_act.any(axis=1)
        self._digest[acting] = mix(self._digest[acting] + total[acting], 2)


def _row_sums(rows: Array) -> NDArray[np.uint64]:
    """Words of each row times odd weights: a change of any single word changes the sum."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    flat = flat.view(np.uint8) if flat.dtype != np.uint8 else flat
    missing = -flat.shape[1] % _WORD
    if missing:
        flat = np.pad(flat, ((0, 0), (0, missing)))
    words = flat.view(np.uint64)
    sums: NDArray[np.uint64] = (words * _weights(words.shape[1])).sum(axis=1, dtype=np.uint64)
    return sums


@lru_cache(maxsize=64)
def _weights(number: int) -> NDArray[np.uint64]:
    return mix(np.arange(number, dtype=np.uint64), 3) | np.uint64(1)


def game_version(source: GameSource) -> str:
    """The source's own `version`; else a digest of its file and of the neighbouring files that it imports."""
    stated = getattr(source, "version", None)
    if isinstance(stated, str | int):
        return str(stated)
    digest = hashlib.sha256()
    for file in sorted(_files(_home(source)), key=lambda file: file.name):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return f"code-{digest.hexdigest()[:12]}"


def map_name(source: GameSource) -> str:
    """The value of the option for a map or mode; the name of the game if it has none."""
    for option in _MAP_OPTIONS:
        if isinstance(value := getattr(source, option, None), str):
            return value
    return source.spec.name


def _home(source: GameSource) -> Path | None:
    maker: Any = source.factory if isinstance(source, Lifted) else source
    while isinstance(maker, functools.partial):
        maker = maker.func
    owner = maker if isinstance(maker, type | FunctionType) else type(maker)
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return None if file is None else Path(file)


def _files(start: Path | None) -> set[Path]:
    found: set[Path] = set()
    waiting = [] if start is None else [start]
    while waiting:
        file = waiting.pop()
        if file not in found and file.is_file():
            found.add(file)
            waiting += [file.with_name(f"{name}.py") for name in _imported(file)]
    return found


def _imported(file: Path) -> Iterator[str]:
    """Imported names that may be those of neighbouring files."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.rpartition(".")[2] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").rpartition(".")[2]
            yield from (alias.name for alias in node.names)
