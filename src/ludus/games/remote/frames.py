"""Frames of game servers: a JSON header and the bytes of arrays, as the protobuf message `Frame`.

The message has two fields. Encoding it by hand saves a dependency, and a copy of the arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

import msgspec
import numpy as np

from ludus.data.specs import GameSpec
from ludus.data.trees import Array, Tree, allocate
from ludus.games.game import Actions, TableView, allocate_actions
from ludus.games.isolation.shared import named_arrays
from ludus.system.arrays import ArrayCutter, Buffer, Bytes, WireError, bytes_of, in_order

_HEADER, _ARRAYS = b"\x0a", b"\x12"
"""The tags of fields 1 and 2, both of wire type 2: a length, then as many bytes."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""

Frame = bytes | bytearray
"""A frame that has arrived."""


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
    if frame[:1] == _HEADER and len(frame) > 2:  # the fast path for frames of `pack`
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
    """Cached, because making a decoder takes ten times as long as decoding a message."""
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


ALIGNMENT = 8
"""The alignment of the arrays in a frame (docs/game-server.md)."""
_INTEGERS = {"tables": np.int64, "seats": np.int64, "seeds": np.uint64}

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("games are served and played from afar on little-endian machines only")


class Shared:
    """Arrays in one buffer, so that the body of a frame is taken over with a single copy."""

    content: Bytes

    def take(self, body: memoryview) -> None:
        if len(body) != len(self.content):
            raise WireError(f"the arrays have {len(body)} bytes; {len(self.content)} were expected")
        self.content[:] = np.frombuffer(body, np.uint8)


class SharedView(Shared):
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        size = bytes_of(lambda new: TableView.allocate(spec, num_tables, new), ALIGNMENT)
        self.content = np.zeros(size, np.uint8)
        self.view = TableView.allocate(spec, num_tables, ArrayCutter(self.content, ALIGNMENT).new)


class SharedActions(Shared):
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        size = bytes_of(lambda new: allocate_actions(spec, num_tables, new), ALIGNMENT)
        self.content = np.zeros(size, np.uint8)
        self.actions = allocate_actions(spec, num_tables, ArrayCutter(self.content, ALIGNMENT).new)

    def fill(self, given: Actions) -> None:
        """Raises ValueError for actions that do not fit the game."""
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


def array_parts(arrays: Iterable[Array]) -> list[Buffer]:
    """The arrays as parts of a frame."""
    return in_order(arrays, ALIGNMENT)


def view_arrays(view: TableView) -> list[Array]:
    """In the order of the wire."""
    return [*named_arrays(view).values()]


def view_parts(view: TableView, rows: Array | None = None) -> list[Buffer]:
    """The view of these tables, or of all, as parts of a frame."""
    arrays = view_arrays(view)
    return array_parts(arrays if rows is None else [array[rows] for array in arrays])


def read_view(spec: GameSpec, num_rows: int, body: memoryview) -> TableView:
    cutter = ArrayCutter(body, ALIGNMENT)
    view = TableView.allocate(spec, num_rows, cutter.new)
    cutter.finish()
    return view


def action_parts(actions: Actions) -> list[Buffer]:
    return array_parts(array for tree in actions for array in tree.values())


def read_row_actions(spec: GameSpec, kind: int, num_rows: int, body: memoryview) -> Tree:
    """Actions of rows that are all of one kind."""
    cutter = ArrayCutter(body, ALIGNMENT)
    tree = allocate(spec.kinds[kind].action.arrays, (num_rows,), cutter.new)
    cutter.finish()
    return {name: array.copy() for name, array in tree.items()}


def read_integers(body: memoryview, **counts: int) -> list[Array]:
    """Arrays of `tables`, `seats` or `seeds`, with so many each."""
    cutter = ArrayCutter(body, ALIGNMENT)
    arrays = [cutter.new((count,), _INTEGERS[name]) for name, count in counts.items()]
    cutter.finish()
    return [array.copy() for array in arrays]
