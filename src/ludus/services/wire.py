"""How calls travel: a frame is a msgpack header followed by the numpy arrays in it, as they lie in memory.

Values are what msgpack knows (None, bool, int, float, str, bytes, list, dict with plain keys) and numpy
arrays of numbers, nested as they like; a tuple arrives as a list, a struct or dataclass as a dict. Nothing
is pickled.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.services.endpoints import BadFrame

PROTOCOL = 1
"""Counts up when a message, or how arrays lie, changes its meaning."""
MOST_BYTES = 2 * 2**30
"""The largest frame that is taken from somebody who has said hello."""
HELLO_BYTES = 4096
"""And from somebody who has not."""
_PREFIX = struct.Struct("<IQ")
"""Bytes of the header, bytes of the arrays."""
_ALIGNMENT = 16
_JOINED_BYTES = 64 * 1024
"""Smaller arrays are copied behind their header, so that the frame goes out at once."""
_SCRATCH_BYTES = 64 * 1024
"""Read at a time; arrays of a frame that are larger are read to where they stay."""
_ARRAY = 1
"""The msgpack extension that stands for an array."""
_NUMBERS = "biufc"
_NUMBER = re.compile(r"[<>|=][biufc]\d{1,2}")
"""How numpy writes the types of those that may travel."""


class MethodFacts(msgspec.Struct, frozen=True, array_like=True):
    """What callers need to know of a method."""

    reply: bool
    idempotent: bool


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="message"):
    pass


class CallerHello(Message, frozen=True, array_like=True, tag="hello"):
    """The first thing a caller says."""

    protocol: int
    token: str


class ServiceWelcome(Message, frozen=True, array_like=True, tag="welcome"):
    instance: str
    methods: dict[str, MethodFacts]


class Unwelcome(Message, frozen=True, array_like=True, tag="unwelcome"):
    """Why the caller is not let in; the connection ends."""

    reason: str


class Call(Message, frozen=True, array_like=True, tag="call"):
    """Answered by `CallResult` or `CallFailure` with the same id, unless the method has no reply."""

    id: int
    method: str
    args: list[Any]
    kwargs: dict[str, Any]


class CallResult(Message, frozen=True, array_like=True, tag="answer"):
    id: int
    value: Any


class CallFailure(Message, frozen=True, array_like=True, tag="failure"):
    id: int
    kind: str
    """The class of the error."""
    text: str
    place: str
    """The line that raised it."""


AnyMessage = CallerHello | ServiceWelcome | Unwelcome | Call | CallResult | CallFailure

_header = msgspec.msgpack.Encoder()
_outline = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...], int])


def pack(message: Message) -> list[bytes | memoryview]:
    """The pieces of a frame, to be sent one after the other; large arrays are not copied."""
    arrays: list[np.ndarray[Any, Any]] = []
    end = 0

    def set_aside(value: Any) -> Any:
        nonlocal end
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray):
            raise TypeError(
                f"a {type(value).__name__} cannot be sent to a service: "
                "send plain values and numpy arrays (of a tensor: its .numpy())"
            )
        if value.dtype.kind not in _NUMBERS:
            raise TypeError(f"an array of {value.dtype} cannot be sent to a service: send one of numbers")
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        arrays.append(value)
        end = start + value.nbytes
        return msgspec.msgpack.Ext(_ARRAY, _header.encode((value.dtype.str, value.shape, start)))

    header = msgspec.msgpack.encode(message, enc_hook=set_aside)
    first = _PREFIX.pack(len(header), end) + header
    if not arrays:
        return [first]
    pieces: list[bytes | memoryview] = [first]
    written = 0
    for array in arrays:
        pieces.append(bytes(-written % _ALIGNMENT))
        written += len(pieces[-1])
        pieces.append(_bytes_of(array))
        written += array.nbytes
    return [b"".join(pieces)] if end <= _JOINED_BYTES else pieces


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class FrameReader:
    """Turns bytes, in whatever pieces they come, into messages. One for each connection.

    Read into `room()` and say with `take` how much it was: large arrays are read to where they stay.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._begun = bytearray()
        """Of a frame that is not whole yet."""
        self._header = b""
        self._arrays: NDArray[np.uint8] | None = None
        """Of a large frame whose header is whole, as far as they have come."""
        self._filled = 0
        self._decoding = np.empty(0, np.uint8)
        self._decoder = msgspec.msgpack.Decoder(AnyMessage, ext_hook=self._array)

    def room(self) -> memoryview:
        return memoryview(self._scratch) if self._arrays is None else self._arrays.data[self._filled :]

    def take(self, count: int) -> Iterator[Any]:
        """The messages that are whole now. Raises `BadFrame`; then the connection is of no use any more."""
        if self._arrays is not None:
            self._filled += count
            if self._filled == len(self._arrays):
                arrays, self._arrays = self._arrays, None
                yield self._decoded(self._header, arrays)
            return
        self._begun += memoryview(self._scratch)[:count]
        while len(self._begun) >= _PREFIX.size:
            header, arrays_bytes = _PREFIX.unpack_from(self._begun)
            if header + arrays_bytes > self.most_bytes:
                raise BadFrame(f"a message of {header + arrays_bytes:,} bytes; at most {self.most_bytes:,}")
            start = _PREFIX.size + header
            there = len(self._begun) - start
            if there < 0 or (there < arrays_bytes <= _SCRATCH_BYTES):
                return
            content = bytes(self._begun[_PREFIX.size : start])
            # Memory of their own: they outlive what is read next, and whoever gets them may write into them.
            arrays = np.empty(arrays_bytes, np.uint8)
            filled = min(there, arrays_bytes)
            arrays[:filled] = self._begun[start : start + filled]
            del self._begun[: start + filled]
            if filled < arrays_bytes:
                self._header, self._arrays, self._filled = content, arrays, filled
                return
            yield self._decoded(content, arrays)

    def _decoded(self, header: bytes, arrays: NDArray[np.uint8]) -> Any:
        self._decoding = arrays
        try:
            return self._decoder.decode(header)
        except BadFrame:
            raise
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"{header[:80]!r} is no message: {error}") from error

    def _array(self, code: int, data: memoryview) -> NDArray[Any]:
        if code != _ARRAY:
            raise BadFrame(f"extension {code} means nothing here")
        try:
            kind, shape, start = _outline.decode(data)
            if not _NUMBER.fullmatch(kind) or min((start, *shape)) < 0:
                raise BadFrame(f"an array of {kind!r} with shape {shape} at {start}")
            dtype, count = np.dtype(kind), math.prod(shape)
            if start + count * dtype.itemsize > len(self._decoding):
                held = len(self._decoding)
                raise BadFrame(f"an array of {dtype} with shape {shape} does not fit {held:,} bytes")
            if not count:
                return np.empty(shape, dtype)
            return np.frombuffer(self._decoding, dtype, count, start).reshape(shape)
        except BadFrame:
            raise
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError) as error:
            raise BadFrame(f"the outline of an array does not read: {error}") from error
