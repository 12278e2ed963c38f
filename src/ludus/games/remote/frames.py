"""One message on the wire: a JSON header and the bytes of arrays, as the protobuf message `Frame`.

It has two fields, so that encoding it by hand spares a dependency, and a copy of the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, cast

import msgspec

from ludus.data.trees import Array

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
