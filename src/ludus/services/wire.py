"""Frames of services: a prefix with two sizes, a header and a body of arrays, in the format of `system.arrays`. A tuple
arrives as a list, a struct or dataclass as a dict."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from ludus.services.endpoints import BadFrame
from ludus.system.arrays import ALIGNMENT, ArrayDecoder, Bytes, WireError, encode, in_order

PROTOCOL = 1  # counts up when the format changes
MOST_BYTES = 2 * 2**30  # the largest frame that a caller may send after its hello
HELLO_BYTES = 4096  # the largest frame before that
_PREFIX = struct.Struct("<IQ")  # bytes of the header, bytes of the arrays
_JOINED_BYTES = 64 * 1024  # smaller arrays are copied behind their header, so that the frame is sent in one piece
_SCRATCH_BYTES = 64 * 1024  # read at a time; larger arrays are read into their final memory


class MethodFacts(msgspec.Struct, frozen=True, array_like=True):
    """The facts about a method that callers need."""

    reply: bool
    idempotent: bool


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="message"):
    pass


class CallerHello(Message, frozen=True, array_like=True, tag="hello"):
    """The first message of a caller."""

    protocol: int
    token: str


class ServiceWelcome(Message, frozen=True, array_like=True, tag="welcome"):
    instance: str
    methods: dict[str, MethodFacts]


class Unwelcome(Message, frozen=True, array_like=True, tag="unwelcome"):
    """Why the caller is rejected; the connection ends."""

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
    kind: str  # the class of the error
    text: str
    place: str  # the line that raised it


AnyMessage = CallerHello | ServiceWelcome | Unwelcome | Call | CallResult | CallFailure


def pack(message: Message) -> list[bytes | memoryview]:
    """The pieces of a frame, to be sent one after the other; large arrays are not copied."""
    header, arrays, body_bytes = encode(message, "a service")
    pieces: list[Any] = [_PREFIX.pack(len(header), body_bytes) + header, *in_order(arrays, ALIGNMENT)]
    if body_bytes <= _JOINED_BYTES:
        return [b"".join(pieces)]
    return [one if isinstance(one, bytes) else one.reshape(-1).view(np.uint8).data for one in pieces]


class FrameReader:
    """Turns bytes, in whatever pieces they arrive, into messages. One for each connection. Read into `room()`, then
    pass the number of bytes to `take`: large arrays are read into their final memory."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._begun = bytearray()  # the bytes of a frame that is not complete yet
        self._header = b""
        self._arrays: Bytes | None = None
        """The body of a large frame whose header is complete; `_filled` bytes have arrived."""
        self._filled = 0
        self._decoder = ArrayDecoder(AnyMessage)

    def room(self) -> memoryview:
        return memoryview(self._scratch) if self._arrays is None else self._arrays.data[self._filled :]

    def take(self, count: int) -> Iterator[Any]:
        """The messages that are complete now. After a `BadFrame` the connection cannot be used any more."""
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
            # Memory of their own: they outlive the next read, and their receiver may write into them.
            arrays = np.empty(arrays_bytes, np.uint8)
            filled = min(there, arrays_bytes)
            arrays[:filled] = self._begun[start : start + filled]
            del self._begun[: start + filled]
            if filled < arrays_bytes:
                self._header, self._arrays, self._filled = content, arrays, filled
                return
            yield self._decoded(content, arrays)

    def _decoded(self, header: bytes, arrays: Bytes) -> Any:
        try:
            return self._decoder.decode(header, arrays)
        except WireError as error:
            raise BadFrame(str(error)) from error
