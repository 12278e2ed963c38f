"""`metrics/train.jsonl` by column, read on from where it was left."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ludus.store.metrics_file import read_metrics

Floats = NDArray[np.float64]
POINTS = 240
"""A curve has at most so many points: more than a screen can show says nothing more."""


class MetricsTable:
    """All numbers of all rows. A row that lacks a number has NaN there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._columns: dict[str, array[float]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def names(self) -> Iterator[str]:
        return iter(list(self._columns))

    def follow(self) -> bool:
        """Read what is new; whether anything was."""
        try:
            rows, self._offset = read_metrics(self._path, self._offset)
        except OSError:
            return False
        for row in rows:
            for name, value in row.items():
                if isinstance(value, int | float):
                    column = self._columns.get(name)
                    if column is None:
                        column = self._columns[name] = array("d")
                    if len(column) < self._length:
                        column.extend([math.nan] * (self._length - len(column)))
                    column.append(value)
            self._length += 1
        return bool(rows)

    def column(self, name: str) -> Floats:
        found = np.array(self._columns.get(name, ()), np.float64)
        return np.pad(found, (0, self._length - len(found)), constant_values=np.nan)

    def latest(self, name: str, default: float = math.nan) -> float:
        """The newest value that there is."""
        for value in reversed(self._columns.get(name, ())):
            if math.isfinite(value):
                return value
        return default


def thinned(x: Floats, *curves: Floats, points: int = POINTS) -> list[Floats]:
    """A long curve as the means of equal stretches of it; gaps stay gaps."""
    length = len(x)
    if length <= points:
        return [x, *curves]
    edges = np.linspace(0, length, points + 1).astype(int)
    result = [x[edges[1:] - 1]]
    for curve in curves:
        known = np.isfinite(curve)
        sums = np.add.reduceat(np.where(known, curve, 0.0), edges[:-1])
        counts = np.add.reduceat(known.astype(np.float64), edges[:-1])
        result.append(np.divide(sums, counts, out=np.full(points, np.nan), where=counts > 0))
    return result
