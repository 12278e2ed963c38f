"""One message on the wire: a JSON header and the bytes of arrays, as the protobuf message `Frame`.

It has two fields, so that encoding it by hand spares a dependency, and a copy of the arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ArraySpec, GameSpec
from ludus.data.trees import Array, Tree, allocate
from ludus.games.game import Actions, TableView, allocate_actions
from ludus.games.isolation.shared import named_arrays

_HEADER, _ARRAYS = b"\x0a", b"\x12"
"""The tags of fields 1 and 2, both of wire type 2: a length, then as many bytes."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""

Buffer = bytes | Array
"""Anything that bytes can be joined from."""


Frame = bytes | bytearray
"""As it has arrived."""


class WireError(ValueError):
    """Bytes that are no message of the protocol."""


class TooLongError(WireError):
    """A frame above the server's limit."""


def pack(header: msgspec.Struct, arrays: Sequence[Buffer] = ()) -> bytes:
    """A frame; the arrays must be contiguous."""
    text = msgspec.json.encode(header)
    parts: list[Buffer] = [_HEADER, _varint(len(text)), text]
    if arrays:
        size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in arrays)
        parts += [_ARRAYS, _varint(size), *arrays]
    return b"".join(cast("list[bytes]", parts))  # arrays are buffers too


def unpack(frame: Frame) -> tuple[Frame, memoryview]:
    """Header and arrays; raises `WireError`."""
    if frame[:1] == _HEADER and len(frame) > 2:  # as `pack` writes it, in a few steps
        length, start = _read_varint(frame, 1)
        end = start + length
        if frame[end : end + 1] == _ARRAYS:
            size, place = _read_varint(frame, end + 1)
            if place + size == len(frame):
                return frame[start:end], memoryview(frame)[place:]
    header: bytes = b""
    arrays = memoryview(b"")
    for number, content in _fields(memoryview(frame)):
        if number == 1:
            header = bytes(content)
        elif number == 2:
            arrays = content
    return header, arrays


def read_header(header: Frame, kind: Any) -> Any:
    """A header as one of its messages; raises `WireError`."""
    try:
        return _decoder(kind).decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{bytes(header[:80])!r} is no message: {error}") from error


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Made once for each kind: making one takes ten times as long as a message."""
    return msgspec.json.Decoder(kind)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _fields(frame: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and content of the fields that hold bytes; others are skipped, as protobuf asks."""
    place = 0
    while place < len(frame):
        tag, place = _read_varint(frame, place)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, place = _read_varint(frame, place)
            continue
        if wire_type == _BYTES:
            size, place = _read_varint(frame, place)
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise WireError(f"no frame: wire type {wire_type} at byte {place}")
        if size > len(frame) - place:
            raise WireError(f"no frame: {size} bytes announced, {len(frame) - place} follow")
        if wire_type == _BYTES:
            yield tag >> 3, frame[place : place + size]
        place += size


def _read_varint(frame: memoryview | Frame, place: int) -> tuple[int, int]:
    if place < len(frame) and (byte := frame[place]) < 0x80:
        return byte, place + 1
    value = 0
    for index in range(10):
        if place + index >= len(frame):
            raise WireError("no frame: it ends in the middle of a number")
        byte = frame[place + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, place + index + 1
    raise WireError("no frame: a number has more than ten bytes")


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
