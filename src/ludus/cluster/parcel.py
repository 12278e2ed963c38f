"""Arrays on their way between nodes: one head that says what they are, and one body of bytes. Nothing of it
can be executed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, Tree
from ludus.runtime.cluster_config import Compression

Bytes = NDArray[np.uint8]
ALIGNMENT = 16


class DamagedParcel(ValueError):  # noqa: N818
    """Not what was sent."""


class _Piece(msgspec.Struct, frozen=True, array_like=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class _Head(msgspec.Struct, frozen=True):
    pieces: tuple[_Piece, ...]
    num_bytes: int
    """Of the body before it was made smaller."""
    compress: Compression = "none"
    digest: bytes = b""
    """Of the body before it was made smaller; empty: it is not checked."""


class Parcel(msgspec.Struct, frozen=True):
    """What travels."""

    head: bytes
    body: Any
    """[bytes] uint8: of the object store's own memory where it arrives, and read only there."""


class Draft:
    """A parcel that is being filled: `arrays` are views into its body."""

    def __init__(self, shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        pieces, start = [], 0
        for name, (dtype, shape) in shapes.items():
            piece = _Piece(name, dtype.str, shape, start)
            pieces.append(piece)
            start += -(-piece.num_bytes // ALIGNMENT) * ALIGNMENT
        self._pieces = tuple(pieces)
        self._body: Bytes = np.zeros(start, np.uint8)
        self.arrays: Tree = _views(self._pieces, self._body)

    def seal(self, compress: Compression = "none", *, digest: bool = False) -> Parcel:
        checked = _digest(self._body) if digest else b""
        head = _Head(self._pieces, len(self._body), compress, checked)
        return Parcel(msgspec.msgpack.encode(head), _smaller(self._body, compress))


def pack(arrays: Mapping[str, Array]) -> Parcel:
    """A parcel with a digest."""
    draft = Draft({name: (array.dtype, array.shape) for name, array in arrays.items()})
    for name, array in arrays.items():
        draft.arrays[name][...] = array
    return draft.seal(digest=True)


def unpack(parcel: Parcel) -> Tree:
    """The arrays, as views; compared with the digest if it has one."""
    head = msgspec.msgpack.decode(parcel.head, type=_Head)
    body = _larger(parcel.body, head.compress)
    if len(body) != head.num_bytes:
        raise DamagedParcel(f"a parcel of {head.num_bytes} bytes has {len(body)}")
    if head.digest and _digest(body) != head.digest:
        raise DamagedParcel(f"a parcel of {len(body)} bytes does not match its digest")
    return _views(head.pieces, body)


def _views(pieces: tuple[_Piece, ...], body: Bytes) -> Tree:
    return {
        piece.name: body[piece.start : piece.start + piece.num_bytes].view(piece.dtype).reshape(piece.shape)
        for piece in pieces
    }


def _digest(body: Bytes) -> bytes:
    return hashlib.blake2b(body.data, digest_size=16).digest()


def _smaller(body: Bytes, compress: Compression) -> Bytes:
    if compress == "none":
        return body
    library = _library(compress)
    packed = library.compress(body.data) if compress == "lz4" else library.compress(body.data, 1)
    return np.frombuffer(packed, np.uint8)


def _larger(body: Bytes, compress: Compression) -> Bytes:
    return body if compress == "none" else np.frombuffer(_library(compress).decompress(body.data), np.uint8)


@cache
def _library(compress: Compression) -> Any:
    try:
        return import_module({"lz4": "lz4.frame", "zstd": "zstandard"}[compress])
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"cluster.compress={compress} needs: pip install 'ludus[ray]'") from error
