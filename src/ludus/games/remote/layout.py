"""How the arrays of a game lie in a frame: those of a view or of actions in the order in which they are
allocated, each at a multiple of 8 bytes, little-endian."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ArraySpec, GameSpec
from ludus.data.trees import Array, Tree, allocate
from ludus.games.game import Actions, TableView, allocate_actions
from ludus.games.isolation.shared_tables import named_arrays
from ludus.games.remote.frames import Buffer, WireError

_ALIGNMENT = 8
_PADDING = tuple(bytes(size) for size in range(_ALIGNMENT))
_INTEGERS = {
    "tables": ArraySpec(shape=(), dtype=np.dtype(np.int64)),
    "seats": ArraySpec(shape=(), dtype=np.dtype(np.int64)),
    "seeds": ArraySpec(shape=(), dtype=np.dtype(np.uint64)),
}

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("games are served and played from afar on little-endian machines only")


class Stretch:
    """Gives arrays one after the other from a stretch of bytes; raises `WireError` when it is too short."""

    def __init__(self, content: memoryview | NDArray[np.uint8]) -> None:
        self._content = content
        self._place = 0

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        start = _aligned(self._place)
        self._place = start + _size(shape, dtype)
        if self._place > len(self._content):
            raise WireError(f"the arrays have {len(self._content)} bytes; at least {self._place} are needed")
        return np.ndarray(shape, dtype, self._content, start)

    def finish(self) -> None:
        if self._place != len(self._content):
            raise WireError(f"the arrays have {len(self._content)} bytes; {self._place} were expected")


class _Measure:
    """Takes no memory: how long the stretch would have to be."""

    def __init__(self) -> None:
        self.size = 0

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        self.size = _aligned(self.size) + _size(shape, dtype)
        return np.broadcast_to(np.zeros((), dtype), shape)


class Shared:
    """Arrays in one stretch of bytes of their own, so that a frame is taken over in a single copy."""

    content: NDArray[np.uint8]

    def take(self, body: memoryview) -> None:
        if len(body) != len(self.content):
            raise WireError(f"the arrays have {len(body)} bytes; {len(self.content)} were expected")
        self.content[:] = np.frombuffer(body, np.uint8)


class SharedView(Shared):
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        measure = _Measure()
        TableView.allocate(spec, num_tables, measure.new)
        self.content = np.zeros(measure.size, np.uint8)
        self.view = TableView.allocate(spec, num_tables, Stretch(self.content).new)


class SharedActions(Shared):
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        measure = _Measure()
        allocate_actions(spec, num_tables, measure.new)
        self.content = np.zeros(measure.size, np.uint8)
        self.actions = allocate_actions(spec, num_tables, Stretch(self.content).new)

    def fill(self, given: Actions) -> None:
        """Raises ValueError for what are no actions of this game."""
        if isinstance(given, Mapping) or len(given) != len(self.actions):
            raise ValueError(f"actions are a tuple of {len(self.actions)}, a mapping for each kind of seat")
        for kind, (target, tree) in enumerate(zip(self.actions, given, strict=True)):
            if not isinstance(tree, Mapping) or tree.keys() != target.keys():
                found = ", ".join(tree) if isinstance(tree, Mapping) else type(tree).__name__
                raise ValueError(f"actions[{kind}] has the heads {', '.join(target)}, not {found}")
            for head, array in target.items():
                chosen = np.asarray(tree[head])
                if chosen.shape != array.shape or chosen.dtype.kind not in "iu":
                    raise ValueError(
                        f"actions[{kind}][{head!r}] holds integers of shape {array.shape}, "
                        f"not {chosen.dtype} of shape {chosen.shape}"
                    )
                if (chosen != chosen.astype(array.dtype)).any():
                    raise ValueError(f"actions[{kind}][{head!r}] holds numbers that are no {array.dtype}")
                array[...] = chosen


def view_arrays(view: TableView) -> list[Array]:
    """In the order of the wire."""
    return [*named_arrays(view).values()]


def view_parts(view: TableView, rows: Array | None = None) -> list[Buffer]:
    """The view of these tables, or of all, as parts of a frame."""
    arrays = view_arrays(view)
    return in_order(arrays if rows is None else [array[rows] for array in arrays])


def read_view(spec: GameSpec, num_rows: int, body: memoryview) -> TableView:
    stretch = Stretch(body)
    view = TableView.allocate(spec, num_rows, stretch.new)
    stretch.finish()
    return view


def action_parts(actions: Actions) -> list[Buffer]:
    return in_order(array for tree in actions for array in tree.values())


def read_row_actions(spec: GameSpec, kind: int, num_rows: int, body: memoryview) -> Tree:
    """Actions of rows that are all of one kind."""
    return _read(spec.kinds[kind].action.arrays, num_rows, body)


def read_integers(body: memoryview, **counts: int) -> list[Array]:
    """Arrays of `tables`, `seats` or `seeds`, with so many each."""
    stretch = Stretch(body)
    arrays = [stretch.new((count,), _INTEGERS[name].dtype) for name, count in counts.items()]
    stretch.finish()
    return [array.copy() for array in arrays]


def in_order(arrays: Iterable[Array]) -> list[Buffer]:
    """The arrays as parts of a frame, with what keeps each at its place."""
    parts: list[Buffer] = []
    missing = 0
    for array in arrays:
        if missing:
            parts.append(_PADDING[missing])
        size = array.nbytes
        if size:
            parts.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        missing = -size % _ALIGNMENT
    return parts


def _read(specs: Mapping[str, ArraySpec], num_rows: int, body: memoryview) -> Tree:
    stretch = Stretch(body)
    tree = allocate(specs, (num_rows,), stretch.new)
    stretch.finish()
    return {name: array.copy() for name, array in tree.items()}


def _aligned(place: int) -> int:
    return place + -place % _ALIGNMENT


def _size(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    size = dtype.itemsize
    for axis in shape:
        size *= axis
    return size
