"""How arrays lie in bytes: in shared memory, between nodes, in calls of services and in frames of game servers.

Arrays lie one after the other, each at a multiple of an alignment. Two sides that know the arrays cut them from the
bytes in the same order (`ArrayCutter`). Otherwise a msgpack header describes them (`encode`, `ArrayDecoder`): the
extension `ARRAY` stands for an array of the body and holds its dtype, shape and start. Nothing is pickled, and bytes
that do not fit are refused with a `WireError`.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array

Compression = Literal["none", "lz4", "zstd"]
"""How the body of a message between nodes is compressed."""

Bytes = NDArray[np.uint8]
Buffer = bytes | Array
"""Anything that bytes can be joined from."""
ALIGNMENT = 16
"""The alignment of arrays that a header describes."""
ARRAY = 1
"""The msgpack extension that stands for an array."""
_PADDING = tuple(bytes(size) for size in range(ALIGNMENT))
_NUMBERS = "biufc"
_NUMBER = re.compile(r"[<>|=][biufc]\d{1,2}")
"""How numpy writes the dtypes of those kinds."""


class WireError(ValueError):
    """Bytes that are no message of the protocol, or arrays that do not fit it."""


class ArrayCutter:
    """Cuts arrays from one buffer, in the order in which they are asked for; they are views."""

    def __init__(self, content: memoryview | Bytes | mmap.mmap, alignment: int) -> None:
        self._content = content
        self._alignment = alignment
        self._end = 0

    def new(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """The next array. Raises `WireError` when the buffer is too short."""
        dtype = np.dtype(dtype)
        start = self._end + -self._end % self._alignment
        self._end = start + math.prod(shape) * dtype.itemsize
        if self._end > len(self._content):
            raise WireError(f"the arrays have {len(self._content)} bytes; at least {self._end} are needed")
        return np.ndarray(shape, dtype, self._content, start)

    def finish(self) -> None:
        """Raises `WireError` if there is more than the arrays that were asked for."""
        if self._end != len(self._content):
            raise WireError(f"the arrays have {len(self._content)} bytes; {self._end} were expected")


def bytes_of(build: Callable[[Callable[[tuple[int, ...], Any], Array]], object], alignment: int) -> int:
    """How many bytes `build(ArrayCutter(content, alignment).new)` needs."""
    end = 0

    def measure(shape: tuple[int, ...], dtype: Any) -> Array:
        nonlocal end
        end += -end % alignment + math.prod(shape) * np.dtype(dtype).itemsize
        return stand_in(dtype, shape)

    build(measure)
    return end


def stand_in(dtype: Any, shape: tuple[int, ...]) -> Array:
    """An array of zeros that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def in_order(arrays: Iterable[Array], alignment: int) -> list[Buffer]:
    """The arrays and the padding between them, to be joined or sent one after the other. Contiguous arrays are not
    copied."""
    pieces: list[Buffer] = []
    missing = 0
    for array in arrays:
        if missing:
            pieces.append(_PADDING[missing])
        size = array.nbytes
        if size:
            pieces.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        missing = -size % alignment
    return pieces


_outline_encoder = msgspec.msgpack.Encoder()
_outline_decoder = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...], int])


def encode(value: Any, receiver: str) -> tuple[bytes, list[Array], int]:
    """The header of a value, the arrays in it in the order of the body, and the size of the body.

    A value is whatever msgpack knows (None, bool, int, float, str, bytes, list, dict with plain keys, struct,
    dataclass) and numpy arrays of numbers, nested. Raises TypeError for anything else and names the `receiver`.
    """
    arrays: list[Array] = []
    end = 0

    def set_aside(value: Any) -> Any:
        nonlocal end
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray):
            raise TypeError(
                f"a {type(value).__name__} cannot be sent to {receiver}: "
                "send plain values and numpy arrays (of a tensor: its .numpy())"
            )
        if value.dtype.kind not in _NUMBERS:
            raise TypeError(f"an array of {value.dtype} cannot be sent to {receiver}: send one of numbers")
        start = end + -end % ALIGNMENT
        arrays.append(value)
        end = start + value.nbytes
        return msgspec.msgpack.Ext(ARRAY, _outline_encoder.encode((value.dtype.str, value.shape, start)))

    return msgspec.msgpack.encode(value, enc_hook=set_aside), arrays, end


class ArrayDecoder:
    """Decodes headers of one type, one at a time. The arrays are views into the body."""

    def __init__(self, kind: Any) -> None:
        self._body = np.empty(0, np.uint8)
        self._decoder = msgspec.msgpack.Decoder(kind, ext_hook=self._view)

    def decode(self, header: bytes, body: Bytes) -> Any:
        """Raises `WireError`."""
        self._body = body
        try:
            return self._decoder.decode(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"{header[:80]!r} is no message: {error}") from error

    def _view(self, code: int, data: memoryview) -> Array:
        if code != ARRAY:
            raise WireError(f"extension {code} means nothing here")
        try:
            kind, shape, start = _outline_decoder.decode(data)
            if not _NUMBER.fullmatch(kind) or min((start, *shape)) < 0:
                raise WireError(f"an array of {kind!r} with shape {shape} at {start}")
            dtype, count = np.dtype(kind), math.prod(shape)
            if start + count * dtype.itemsize > len(self._body):
                raise WireError(f"an array of {dtype} with shape {shape} does not fit {len(self._body):,} bytes")
            if not count:
                return np.empty(shape, dtype)
            return np.frombuffer(self._body, dtype, count, start).reshape(shape)
        except WireError:
            raise
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError) as error:
            raise WireError(f"the outline of an array does not read: {error}") from error
