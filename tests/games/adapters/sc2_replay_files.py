"""Makes small .SC2Replay files: an MPQ archive with a header and the game's facts, and no events."""

from __future__ import annotations

import json
import struct
from typing import Any

import mpyq

_EXISTS, _SINGLE_UNIT = 0x80000000, 0x01000000
_OFFSET = 1024
"""Of the archive behind what the game says first."""


def replay_file(
    *, version: tuple[int, int, int] = (4, 10, 0), build: int = 75689, game_steps: int = 64, **facts: Any
) -> bytes:
    players = [
        {"PlayerID": 1, "AssignedRace": "Terr", "Result": "Win"},
        {"PlayerID": 2, "AssignedRace": "Zerg", "Result": "Loss"},
    ]
    metadata = {"Title": "Simple64", "Players": players, **facts}
    numbers = (1, *version, build, build)
    header = _struct(
        {
            0: _blob(b"StarCraft II replay\x1b11"),
            1: _struct({field: _number(value) for field, value in enumerate(numbers)}),
            2: _number(2),
            3: _number(game_steps),
        }
    )
    first = struct.pack("<4s3I", b"MPQ\x1b", 512, _OFFSET, len(header)) + header
    return first.ljust(_OFFSET, b"\0") + _archive("replay.gamemetadata.json", json.dumps(metadata).encode())


def _number(value: int) -> bytes:
    return b"\x09" + _vint(value)


def _blob(data: bytes) -> bytes:
    return b"\x02" + _vint(len(data)) + data


def _struct(fields: dict[int, bytes]) -> bytes:
    body = b"".join(_vint(field) + value for field, value in fields.items())
    return b"\x05" + _vint(len(fields)) + body


def _vint(value: int) -> bytes:
    """The first byte holds six bits between the sign and the mark that more follow."""
    head, value = value & 0x3F, value >> 6
    found = [head << 1 | (0x80 if value else 0)]
    while value:
        found.append(value & 0x7F | (0x80 if value >> 7 else 0))
        value >>= 7
    return bytes(found)


def _archive(name: str, data: bytes) -> bytes:
    """With one file in it."""
    reader = mpyq.MPQArchive.__new__(mpyq.MPQArchive)
    start = 32
    tables = start + len(data)
    block = struct.pack("<4I", start, len(data), len(data), _EXISTS | _SINGLE_UNIT)
    entry = struct.pack("<2I2HI", reader._hash(name, "HASH_A"), reader._hash(name, "HASH_B"), 0, 0, 0)
    header = struct.pack("<4s2I2H4I", b"MPQ\x1a", 32, tables + 32, 0, 3, tables, tables + 16, 1, 1)
    encrypted = _encrypt(reader, entry, "(hash table)") + _encrypt(reader, block, "(block table)")
    return header + data + encrypted


def _encrypt(reader: Any, data: bytes, key: str) -> bytes:
    seed1, seed2 = reader._hash(key, "TABLE"), 0xEEEEEEEE
    found = b""
    for (value,) in struct.iter_unpack("<I", data):
        seed2 = seed2 + reader.encryption_table[0x400 + (seed1 & 0xFF)] & 0xFFFFFFFF
        found += struct.pack("<I", (value ^ (seed1 + seed2)) & 0xFFFFFFFF)
        seed1 = ((~seed1 << 0x15) + 0x11111111 | seed1 >> 0x0B) & 0xFFFFFFFF
        seed2 = value + seed2 + (seed2 << 5) + 3 & 0xFFFFFFFF
    return found
