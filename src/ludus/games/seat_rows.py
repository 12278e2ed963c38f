"""The rows of one seat in a `TableView`: checks the values of a plain-Python game and writes them in place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from ludus.data.specs import CRITIC_PREFIX, Entities, GameSpec, Pointer, SeatKind, length_name
from ludus.data.trees import Array
from ludus.games.game import Legal, Observation, TableView


class GameError(ValueError):
    """A game cannot be made as asked, or returned a value that its spec or interface does not allow."""


def nearest(wrong: str, known: Iterable[str], *, cutoff: float = 0.6, otherwise: str = "") -> str:
    """The end of a message about a wrong name: the most similar known one, else `otherwise`, else all of them."""
    names = list(known)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=cutoff)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; {otherwise or 'there are ' + (', '.join(sorted(names)) or 'none')}"


class _Row:
    """A view of one row with its shape and dtype: reading them from the array costs a call each."""

    __slots__ = ("array", "dtype", "shape")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def fits(self, value: Any) -> bool:
        """Whether the value can be assigned as it is; otherwise `SeatRows` converts and checks it."""
        return type(value) is ndarray and value.dtype is self.dtype and value.shape == self.shape


class SeatRows:
    """The rows of one seat at one table, as views, so that a write is one array assignment."""

    __slots__ = ("_entities", "_kind", "_masks", "_only_mask", "_only_part", "_parts", "_where")

    def __init__(
        self, where: str, kind: SeatKind, observation: Mapping[str, Array], legal: Mapping[str, Array]
    ) -> None:
        critic = {CRITIC_PREFIX + name: part for name, part in kind.observation.critic.items()}
        parts = {**kind.observation.parts, **critic}
        self._where = where
        self._kind = kind
        self._parts = {name: _Row(observation[name]) for name in parts}
        self._entities = {
            name: observation[length_name(name)] for name, part in parts.items() if isinstance(part, Entities)
        }
        self._masks = {name: _Row(row) for name, row in legal.items()}
        self._only_part = None if self._entities else _only(self._parts)
        self._only_mask = _only(self._masks)

    @classmethod
    def of_table(cls, spec: GameSpec, view: TableView, table: int) -> Sequence[SeatRows]:
        return [
            cls(
                f"{spec.name}, table {table}, seat {seat}",
                spec.kinds[kind],
                {name: array[table, column, ...] for name, array in view.observation[kind].items()},
                {name: array[table, column, ...] for name, array in view.legal[kind].items()},
            )
            for seat, (kind, column) in enumerate(zip(spec.seats, spec.column_of_seat, strict=True))
        ]

    def write_observation(self, observation: Observation) -> None:
        only = self._only_part
        if only is not None and only.fits(observation):
            only.array[...] = observation
            return
        if not isinstance(observation, Mapping):
            if len(self._parts) > 1:
                raise self._wrong("observation", f"a mapping with {_names(self._parts)}", observation)
            observation = {next(iter(self._parts)): observation}
        given = len(observation)
        for name, row in self._parts.items():
            value = observation.get(name)
            if value is None:
                raise self._unknown("observation lacks part", name, observation)
            if name in self._entities:
                length = observation.get(length_name(name))
                given -= length is not None
                self._write_entities(name, row, value, length)
            elif row.fits(value):
                row.array[...] = value
            else:
                self._write(name, row.array, value)
        if given != len(self._parts):
            known = [*self._parts, *map(length_name, self._entities)]
            extra = next(name for name in observation if name not in known)
            raise self._unknown("observation has unknown part", extra, known)

    def write_legal(self, legal: Legal | None) -> None:
        only = self._only_mask
        if only is not None and only.fits(legal):
            only.array[...] = legal
            if b"\x01" not in only.array.tobytes():  # several times faster than any() on a short row
                self._require_option(next(iter(self._masks)))
            return
        if legal is None:
            legal = {}
        elif not isinstance(legal, Mapping):
            if only is None:
                raise self._wrong("legal", f"a mapping with {_names(self._masks)}", legal)
            legal = {next(iter(self._masks)): legal}
        for name, row in self._masks.items():
            self._write_mask(name, row, legal.get(name))
        for name in self._masks:
            self._require_option(name)
        for name in legal:
            if name not in self._masks:
                raise self._unknown("legal mask for unknown or unmasked head", name, self._masks)

    def _write(self, name: str, row: Array, value: Any) -> None:
        array = np.asarray(value)
        if array.shape != row.shape or not np.can_cast(array.dtype, row.dtype, "same_kind"):
            raise self._wrong(f"part {name!r}", _shown(row), array)
        row[...] = array

    def _write_entities(self, name: str, row: _Row, value: Any, length: Any) -> None:
        """Write up to the maximum number of rows; without an explicit length, all of them are real."""
        array = np.asarray(value, row.dtype if len(value) == 0 else None).reshape(len(value), -1)
        maximum, features = row.shape
        if len(array) > maximum or (len(array) and array.shape[1] != features):
            raise self._wrong(f"part {name!r}", f"{row.dtype}[at most {maximum}, {features}]", array)
        if len(array):
            self._write(name, row.array[: len(array)], array)
        row.array[len(array) :] = 0
        count = len(array) if length is None else int(length)
        if not 0 <= count <= len(array):
            raise self._wrong(f"part {length_name(name)!r}", f"0 to {len(array)}", count)
        self._entities[name][...] = count

    def _write_mask(self, name: str, row: _Row, value: Any) -> None:
        if value is None:
            head = self._kind.action.heads[name]
            row.array[...] = True
            if isinstance(head, Pointer):
                row.array[int(self._entities[head.into]) :] = False
            return
        array = np.asarray(value)
        if array.shape != row.shape or array.dtype != np.bool_:
            raise self._wrong(f"legal mask of head {name!r}", _shown(row.array), array)
        row.array[...] = array

    def _require_option(self, name: str) -> None:
        """A head needs a legal option, unless the condition under which it counts cannot be met."""
        if self._masks[name].array.any():
            return
        if not self._kind.can_count(name, {head: row.array for head, row in self._masks.items()}):
            return
        raise GameError(f"{self._where}: head {name!r} has no legal option: its mask is all False")

    def _wrong(self, what: str, expected: str, given: Any) -> GameError:
        return GameError(f"{self._where}: {what}: expected {expected}, got {_shown(given)}")

    def _unknown(self, what: str, name: object, known: Iterable[object]) -> GameError:
        return GameError(f"{self._where}: {what} {name!r}{nearest(str(name), map(str, known))}")


def _only(rows: Mapping[str, _Row]) -> _Row | None:
    return next(iter(rows.values())) if len(rows) == 1 else None


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _shown(value: Any) -> str:
    """The dtype and shape of an array, the repr of anything else."""
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, ndarray) else repr(value)
