"""What tables must never show: found cheaply after every step, where the game runs."""

from __future__ import annotations

from math import isfinite

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec, length_name
from ludus.data.trees import Array
from ludus.games.game import TableView

Seats = slice | list[int]
"""Columns of [tables, seats] that the seats of a kind have."""
_TRUE = b"\x01"
_any = np.logical_or.reduce
"""What `array.any` calls in the end."""


class GarbageWatch:
    """Looks at the tables of one view. `started`: those that have been reset at least once."""

    def __init__(self, spec: GameSpec, view: TableView) -> None:
        self._view = view
        self.started = np.zeros(len(view.over), np.bool_)
        self._paid = {"reward": view.reward, "score": view.score}
        self._paid |= {f"rewards[{kind}]": array for kind, array in enumerate(view.rewards) if array.size}
        self._seen: list[tuple[str, Array, Seats, Array | None]] = []
        self._masks: list[tuple[str, Array, Seats]] = []
        for kind, columns, shown, legal in zip(
            spec.kinds, spec.seats_of_kind, view.observation, view.legal, strict=True
        ):
            # A slice of all columns is not copied.
            seats: Seats = slice(None) if len(columns) == spec.num_seats else list(columns)
            for name, array in shown.items():
                if array.dtype.kind == "f":
                    self._seen.append((name, array, seats, shown.get(length_name(name))))
            for head, mask in legal.items():
                if kind.action.heads[head].when is None:
                    self._masks.append((head, mask, seats))
        numbers = [*self._paid.values(), *(array for _, array, _, _ in self._seen)]
        self._flat = [array.reshape(-1) for array in numbers if array.flags.c_contiguous]
        self._scattered = [array for array in numbers if not array.flags.c_contiguous]

    @np.errstate(over="ignore", invalid="ignore")  # large numbers are no fault
    def find(self) -> str | None:
        """The first thing that is wrong, or None."""
        view = self._view
        over, truncated, to_act = view.over, view.truncated, view.to_act
        wrong = (over & truncated) | ((_any(to_act, 1) == (over | truncated)) & self.started)
        if _TRUE in wrong.tobytes():  # several times faster than any() on a few bytes
            return self._wrong_end(int(wrong.argmax()))
        for flat in (*self._flat, *(array.reshape(-1) for array in self._scattered)):
            if not isfinite(np.dot(flat, flat)):  # if it is, so are all its terms, in one quick pass
                found = self._not_finite()
                if found is not None:
                    return found
        for head, mask, seats in self._masks:
            stuck = to_act[:, seats] > _any(mask, -1)
            if _TRUE in stuck.tobytes():
                table, seat = self._first(stuck, seats)
                return f"seat {seat} of table {table} has no legal option for {head!r}"
        return None

    def _wrong_end(self, table: int) -> str:
        view = self._view
        if view.over[table] and view.truncated[table]:
            return f"table {table} is both over and truncated"
        if view.over[table] or view.truncated[table]:
            seat = int(view.to_act[table].argmax())
            return f"table {table} has ended, but seat {seat} is to act"
        return f"table {table} has not ended, but nobody is to act"

    def _not_finite(self) -> str | None:
        """None if it is only in what nobody looks at, or large."""
        for name, array in self._paid.items():
            bad = ~np.isfinite(array).reshape(len(array), -1).all(1)
            if bad.any():
                table = int(bad.argmax())
                return f"{name} of table {table} is {array[table].tolist()}"
        for name, array, seats, lengths in self._seen:
            bad = ~np.isfinite(array)
            if lengths is not None:
                bad &= (np.arange(array.shape[2]) < lengths[..., None])[..., None]
            found = bad.reshape(*bad.shape[:2], -1).any(-1) & self._view.to_act[:, seats]
            if found.any():
                table, seat = self._first(found, seats)
                return f"{name!r} that seat {seat} of table {table} sees is not finite"
        return None

    @staticmethod
    def _first(found: NDArray[np.bool_], seats: Seats) -> tuple[int, int]:
        """Table and seat."""
        table, column = divmod(int(found.argmax()), found.shape[1])
        return table, column if isinstance(seats, slice) else seats[column]
