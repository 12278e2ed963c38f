"""What tables must never show: found cheaply after every step, where the game runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec, length_name
from ludus.data.trees import Array
from ludus.games.game import TableView

Seats = slice | list[int]
"""Columns of [tables, seats] that the seats of a kind have."""
_FALSE, _TRUE = b"\x00", b"\x01"
_any = np.logical_or.reduce
"""What `array.any` calls in the end."""


class GarbageWatch:
    """Looks at the tables of one view. `started`: those that have been reset at least once."""

    def __init__(self, spec: GameSpec, view: TableView) -> None:
        self._view = view
        self.started = np.zeros(len(view.over), np.bool_)
        self._odd = int.from_bytes(len(view.over) * b"\xfe", "little")
        """Bits that no flag has, unless it is stored as another byte than 0 or 1."""
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
        self._numbers = [*self._paid.values(), *(array for _, array, _, _ in self._seen)]

    def find(self) -> str | None:
        """The first thing that is wrong, or None. Each call of NumPy's costs more than what it does to a few
        tables: hence flags as bits of large numbers, and bytes that are looked for in bytes."""
        view = self._view
        over, truncated, started = _bits(view.over), _bits(view.truncated), _bits(self.started)
        acting = _bits(_any(view.to_act, 1))
        ended = over | truncated
        if over & truncated or ended & self._odd or (acting ^ ended) & started != started:
            found = self._wrong_end()
            if found is not None:
                return found
        for array in self._numbers:
            if _FALSE in np.isfinite(array).tobytes():
                found = self._not_finite()
                if found is not None:
                    return found
        for head, mask, seats in self._masks:
            stuck = view.to_act[:, seats] > _any(mask, -1)
            if _TRUE in stuck.tobytes():
                table, seat = self._first(stuck, seats)
                return f"seat {seat} of table {table} has no legal option for {head!r}"
        return None

    def _wrong_end(self) -> str | None:
        """None if it is only how the flags are stored: every byte but 0 is true."""
        over, truncated, to_act = self._view.over, self._view.truncated, self._view.to_act
        wrong = (over & truncated) | ((to_act.any(1) == (over | truncated)) & self.started)
        if not wrong.any():
            return None
        table = int(wrong.argmax())
        if over[table] and truncated[table]:
            return f"table {table} is both over and truncated"
        if over[table] or truncated[table]:
            return f"table {table} has ended, but seat {int(to_act[table].argmax())} is to act"
        return f"table {table} has not ended, but nobody is to act"

    def _not_finite(self) -> str | None:
        """None if it is only in what nobody looks at."""
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


def _bits(flags: NDArray[np.bool_]) -> int:
    return int.from_bytes(flags.tobytes(), "little")
