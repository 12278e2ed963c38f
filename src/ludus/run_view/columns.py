"""A table that grows by rows and is read by columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Columns:
    """Rows of numbers. Appending is as cheap as to a list; reading joins what is new to an array."""

    def __init__(self, *names: str) -> None:
        self._place = {name: place for place, name in enumerate(names)}
        self._rows: Floats = np.empty((1024, len(names)))
        self._length = 0
        self._new: list[Sequence[float]] = []

    def __len__(self) -> int:
        return self._length + len(self._new)

    def append(self, row: Sequence[float]) -> None:
        self._new.append(row)

    def column(self, name: str, start: int = 0, end: int | None = None) -> Floats:
        """Part of a column, to be read only."""
        self._join()
        return self._rows[: self._length][start:end, self._place[name]]

    def _join(self) -> None:
        if not self._new:
            return
        width, length = self._rows.shape[1], len(self)
        if length > len(self._rows):
            grown = np.empty((max(length, 2 * len(self._rows)), width))
            grown[: self._length] = self._rows[: self._length]
            self._rows = grown
        count = len(self._new) * width
        new = np.fromiter(chain.from_iterable(self._new), np.float64, count).reshape(-1, width)
        self._rows[self._length : length] = new
        self._length, self._new = length, []
