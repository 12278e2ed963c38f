"""A replay: the seed and the actions of one episode, in one small file that says what it is.

A table is a function of its seed and its actions, so observations need not be kept: playing it again shows
them. The file is msgpack, compressed, behind a head with a checksum. Nothing in it is ever executed: the game
that it names is only looked up by whoever reads it.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from typing import Any

import msgspec
import numpy as np

from ludus.data.dataset_format import smallest_type
from ludus.data.episodes import Outcome
from ludus.data.trees import Array, IntArray

SUFFIX = ".replay"
MAGIC = b"\x89LUDUS\r\n"
FORMAT = 1
_HEAD = struct.Struct("<8sHQ16s")
"""Magic, format, length of the rest, checksum of both and the rest."""
_MOST_BYTES = 1 << 30
"""Unpacked: more than any episode, less than what would harm."""
_DTYPES = frozenset(("uint8", "int8", "int16", "int32", "int64"))


class ReplayError(ValueError):
    """Not a replay, a damaged one, or one of another format."""


class Packed(msgspec.Struct, frozen=True):
    """An array of integers."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: Array) -> Packed:
        """In the smallest type that holds it."""
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        small = np.ascontiguousarray(array, smallest_type(low, high))
        return cls(small.dtype.name, small.shape, small.tobytes())

    def array(self) -> Array:
        if self.dtype not in _DTYPES or any(size < 0 for size in self.shape):
            raise ReplayError(f"it holds an array of {self.dtype}{list(self.shape)}")
        if math.prod(self.shape) * np.dtype(self.dtype).itemsize != len(self.data):
            raise ReplayError(f"an array of {self.dtype}{list(self.shape)} has {len(self.data)} bytes")
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class SeatPlayer(msgspec.Struct, frozen=True):
    """Who sat on a seat."""

    name: str
    model: str = ""
    """Id of its weights; empty for a bot."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """One episode."""

    game: str
    """Name or address of the game."""
    options: dict[str, Any]
    version: str
    """Of the game's rules."""
    map: str
    seed: int
    seats: tuple[SeatPlayer, ...]
    teams: tuple[int, ...]
    """Per seat."""
    score: tuple[float, ...]
    """Per team."""
    truncated: bool
    """Cut off rather than ended by the rules."""
    num_steps: int
    """Calls of `GameBatch.step`."""
    seen: int
    """Digest of all that the seats saw when they decided: playing it again must give the same."""
    step: Packed
    """Per decision, in order: before which step it was made, and by which seat."""
    seat: Packed
    action: tuple[dict[str, Packed], ...]
    """Per kind of seat: head -> the actions of its decisions, in order."""

    @property
    def matchup(self) -> tuple[str, ...]:
        """Who played each team; of a mixed one all its players."""
        names = [
            "+".join(
                dict.fromkeys(
                    seat.name for seat, own in zip(self.seats, self.teams, strict=True) if own == team
                )
            )
            for team in range(len(self.score))
        ]
        return tuple(names)

    def outcome(self, seat: int) -> Outcome | None:
        """None in a game of one team."""
        if len(self.score) < 2:
            return None
        own = self.score[self.teams[seat]]
        others = [score for team, score in enumerate(self.score) if team != self.teams[seat]]
        return "win" if own > max(others) else "draw" if own == max(others) else "loss"

    def decisions(self) -> tuple[IntArray, IntArray]:
        """(step, seat) of each, in order."""
        return self.step.array().astype(np.int64), self.seat.array().astype(np.int64)


def encode_replay(replay: Replay) -> bytes:
    body = zlib.compress(msgspec.msgpack.encode(replay), 6)
    return _HEAD.pack(MAGIC, FORMAT, len(body), _checksum(FORMAT, body)) + body


def decode_replay(content: bytes) -> Replay:
    """Raises `ReplayError`, which says what is wrong."""
    if not content.startswith(MAGIC[: len(content)]) or not content:
        raise ReplayError("not a replay" if content else "empty")
    if len(content) < _HEAD.size:
        raise ReplayError(f"cut short: {len(content)} bytes")
    _, written, length, checksum = _HEAD.unpack_from(content)
    body = content[_HEAD.size :]
    if checksum != _checksum(written, body) or length != len(body):
        reason = "cut short" if len(body) < length else "damaged"
        raise ReplayError(f"{reason}: its checksum is wrong")
    if written != FORMAT:
        raise ReplayError(f"format {written}; this version of ludus reads {FORMAT}")
    try:
        replay = msgspec.msgpack.decode(_unpacked(body), type=Replay)
        _require_sense(replay)
    except (msgspec.MsgspecError, zlib.error, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ReplayError(f"damaged: {error}") from error
    return replay


def _unpacked(body: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(body, _MOST_BYTES)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ReplayError("damaged: it unpacks to more than it should or ends too soon")
    return content


def _checksum(written: int, body: bytes) -> bytes:
    return hashlib.blake2b(written.to_bytes(2, "little") + body, digest_size=16).digest()


def _require_sense(replay: Replay) -> None:
    """What a reader relies on, whoever wrote the file."""
    step, seat = replay.decisions()
    fits = (
        step.ndim == 1
        and step.shape == seat.shape
        and len(replay.seats) == len(replay.teams) > 0
        and (step >= 0).all()
        and (step < replay.num_steps).all()
        and (np.diff(step) >= 0).all()
        and (seat >= 0).all()
        and (seat < len(replay.seats)).all()
        and all(0 <= team < len(replay.score) for team in replay.teams)
        and 0 <= replay.seed < 2**64
        and 0 <= replay.seen < 2**64
        and len({*zip(step.tolist(), seat.tolist(), strict=True)}) == len(step)
    )
    if not fits:
        raise ReplayError("damaged: its decisions make no sense")
    for heads in replay.action:
        for packed in heads.values():
            packed.array()
