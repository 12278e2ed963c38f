from __future__ import annotations

import zlib

import msgspec
import numpy as np
import pytest

from ludus.data import replay as replays
from ludus.data.replay import Packed, Replay, ReplayError, SeatPlayer, decode_replay, encode_replay


def a_replay(**changes: object) -> Replay:
    whole = Replay(
        game="skirmish",
        options={"mode": "1v1"},
        version="3",
        map="1v1",
        seed=2**64 - 1,
        seats=(SeatPlayer("rush"), SeatPlayer("main", "main:0:12")),
        teams=(0, 1),
        score=(1.0, -1.0),
        truncated=False,
        num_steps=3,
        seen=7,
        step=Packed.of(np.array([0, 0, 2])),
        seat=Packed.of(np.array([0, 1, 1])),
        action=({"order": Packed.of(np.array([0, 300, 2])), "who": Packed.of(np.full((3, 8), -1))},),
    )
    return msgspec.structs.replace(whole, **changes)


def test_a_replay_comes_back_and_is_small() -> None:
    whole = a_replay()
    content = encode_replay(whole)
    assert decode_replay(content) == whole
    assert len(content) < 400
    assert whole.action[0]["order"].dtype == "int16"
    assert whole.action[0]["who"].dtype == "int8"
    np.testing.assert_array_equal(whole.action[0]["order"].array(), [0, 300, 2])
    assert whole.matchup == ("rush", "main")
    assert [whole.outcome(seat) for seat in (0, 1)] == ["win", "loss"]


def test_outcomes() -> None:
    four = a_replay(score=(2.0, 2.0, 1.0), teams=(0, 1, 2, 2), seats=(SeatPlayer("a"),) * 4)
    assert [four.outcome(seat) for seat in range(4)] == ["draw", "draw", "loss", "loss"]
    assert a_replay(score=(5.0,), teams=(0, 0)).outcome(0) is None


def test_cut_anywhere_it_is_refused() -> None:
    content = encode_replay(a_replay())
    for length in range(len(content)):
        with pytest.raises(ReplayError, match=r"empty|cut short"):
            decode_replay(content[:length])


def test_any_byte_changed_it_is_refused() -> None:
    content = encode_replay(a_replay())
    for place in range(len(content)):
        for bit in (0x01, 0x80):
            broken = bytearray(content)
            broken[place] ^= bit
            with pytest.raises(ReplayError):
                decode_replay(bytes(broken))
    with pytest.raises(ReplayError, match="damaged"):
        decode_replay(content + b"x")


def test_other_files_and_formats_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReplayError, match="not a replay"):
        decode_replay(b"PK\x03\x04 something else")
    with monkeypatch.context() as patch:
        patch.setattr(replays, "_FORMAT", 2)
        later = encode_replay(a_replay())
    with pytest.raises(ReplayError, match="format 2; this version of ludus reads 1"):
        decode_replay(later)


def forged(body: bytes) -> bytes:
    """With a right checksum, as somebody who wants to do harm would write it."""
    packed = zlib.compress(body)
    head = replays._HEAD.pack(replays.MAGIC, replays.FORMAT, len(packed), replays._checksum(replays.FORMAT, packed))
    return head + packed


def test_what_was_made_to_harm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReplayError, match="its map is a text of 5,000 characters, at most 4,000"):
        decode_replay(encode_replay(a_replay(map="A" * 5_000)))
    packed_bomb = forged(msgspec.msgpack.encode(a_replay(map="A" * 40_000_000)))
    with pytest.raises(ReplayError, match="unpacks to more than 33,554,432 bytes"):
        decode_replay(packed_bomb)
    monkeypatch.setattr(replays, "MOST_BYTES", 1 << 16)
    with pytest.raises(ReplayError, match="bytes is too long for a replay: at most 65,536"):
        encode_replay(a_replay(map="A" * 70_000))
    with pytest.raises(ReplayError, match="unpacks to more"):
        decode_replay(forged(b"\0" * (1 << 20)))
    with pytest.raises(ReplayError, match="damaged"):
        decode_replay(forged(b"\x91" * 50_000))
    wrong = [
        a_replay(step=Packed("int8", (3,), b"\0\0")),
        a_replay(step=Packed("object", (3,), b"\0\0\0")),
        a_replay(step=Packed("int8", (-1,), b"")),
        a_replay(step=Packed.of(np.array([0, 0, 3]))),
        a_replay(step=Packed.of(np.array([0, 2, 1]))),
        a_replay(seat=Packed.of(np.array([0, 0, 1]))),
        a_replay(seat=Packed.of(np.array([0, 2, 1]))),
        a_replay(teams=(0, 2)),
        a_replay(seed=-1),
        a_replay(action=({"order": Packed("int64", (2**40,), b"")},)),
        a_replay(action=({"order": Packed("int8", (2**32, 2**32), b"")},)),
        a_replay(step=Packed("int8", (), b"\0")),
    ]
    for one in wrong:
        with pytest.raises(ReplayError):
            decode_replay(encode_replay(one))
