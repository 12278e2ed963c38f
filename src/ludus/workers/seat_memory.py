"""The recurrent state of every seat at every table, before its next decision and before its latest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ArraySpec
from ludus.data.trees import Array, IntArray, Tree, allocate, put, take, under


class SeatMemory:
    """Rows are (table, column among the seats of a kind). A decision changes them when it is played, not
    when it is made: until then it may be made again."""

    def __init__(self, kinds: Sequence[tuple[Mapping[str, ArraySpec], tuple[int, int]]]) -> None:
        """Per kind of seat: the arrays of one row, and (tables, seats of the kind)."""
        self._next = tuple(allocate(specs, leading) for specs, leading in kinds)
        self._before_latest = tuple(allocate(specs, leading) for specs, leading in kinds)
        self._made: list[tuple[int, tuple[IntArray, IntArray], Tree]] = []

    def read(self, kind: int, tables: IntArray, columns: IntArray) -> Tree:
        return take(self._next[kind], (tables, columns))

    def made(self, kind: int, tables: IntArray, columns: IntArray, after: Tree) -> None:
        """Decisions were made that will leave this memory behind."""
        if after:
            self._made.append((kind, (tables, columns), after))

    def forget_made(self) -> None:
        """The decisions since the last `commit` are made again."""
        self._made.clear()

    def commit(self) -> None:
        """The decisions that were made are played."""
        for kind, at, after in self._made:
            put(self._before_latest[kind], at, take(self._next[kind], at))
            put(self._next[kind], at, after)
        self._made.clear()

    def before_decision(
        self, kind: int, tables: IntArray, columns: IntArray, to_act: NDArray[np.bool_]
    ) -> Tree:
        """Before each row's latest decision; that of a row which is `to_act` is made but not yet played."""
        at = (tables, columns)
        return {
            name: np.where(
                to_act.reshape(-1, *(1,) * (array.ndim - 2)), array[at], self._before_latest[kind][name][at]
            )
            for name, array in self._next[kind].items()
        }

    def reset(self, tables: IntArray) -> None:
        for tree in self._next:
            for array in tree.values():
                array[tables] = 0

    def save(self) -> Tree:
        saved: Tree = {}
        for kind, (after, before) in enumerate(zip(self._next, self._before_latest, strict=True)):
            saved |= {f"state.{kind}.{name}": array for name, array in after.items()}
            saved |= {f"before.{kind}.{name}": array for name, array in before.items()}
        return saved

    def load(self, saved: Mapping[str, Array]) -> None:
        for kind, (after, before) in enumerate(zip(self._next, self._before_latest, strict=True)):
            put(after, ..., under(f"state.{kind}.", saved))
            put(before, ..., under(f"before.{kind}.", saved))
