"""Results of many pairs of players in columns, and how much of each the later ones have left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PairRows:
    """What `pair_counts` makes of many finished matches, oldest first. Of two players it is always the same
    one that comes first."""

    first: NDArray[np.intp]
    """Places in a list of names."""
    second: NDArray[np.intp]
    wins: Floats
    draws: Floats
    losses: Floats
    margins: Floats
    episodes: Floats
    """Of the match, by which older games fade."""


class FadedSums:
    """Sums over the rows of each cell, in which every row counts what the later rows of its cell leave."""

    def __init__(self, cells: NDArray[np.intp], log_fade: Floats) -> None:
        """`log_fade`: logarithm of what a row leaves of those before it in its cell."""
        self._order = np.argsort(cells, kind="stable")
        self._starts = np.flatnonzero(np.diff(cells[self._order], prepend=-1))
        ends = np.append(self._starts[1:], len(cells)) - 1
        faded = np.cumsum(log_fade[self._order])
        self._left = np.exp(np.repeat(faded[ends], ends - self._starts + 1) - faded)
        self.cells = cells[self._order][self._starts]
        """Each cell once."""
        self.left_of_before = np.exp(faded[ends] - np.where(self._starts > 0, faded[self._starts - 1], 0.0))
        """What all rows together leave of what was in each cell."""

    def of(self, values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values[self._order] * self._left, self._starts))
