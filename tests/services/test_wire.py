"""Frames: arrays arrive as they were sent, and nothing that is no frame of ours does harm."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from ludus.services.endpoints import BadFrame
from ludus.services.wire import PROTOCOL, Call, CallerHello, CallResult, FrameReader, pack


def read(data: bytes, reader: FrameReader, chunk: int | None = None) -> list[Any]:
    messages = []
    while data:
        room = reader.room()
        count = min(len(room), chunk or len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        messages += reader.take(count)
    return messages


def sent(value: Any, chunk: int | None = None) -> Any:
    data = b"".join(pack(CallResult(7, value)))
    (message,) = read(data, FrameReader(), chunk)
    assert message.id == 7
    return message.value


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "<i8", ">f4", "f8", "f2", "c8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (4, 5)])
def test_arrays_arrive_as_they_are(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    arrived = sent({"first": np.ones(3, np.int8), "deep": [array, {"x": array.T}]})
    np.testing.assert_array_equal(arrived["deep"][0], array)
    np.testing.assert_array_equal(arrived["deep"][1]["x"], array.T)
    assert arrived["deep"][0].dtype == array.dtype
    assert arrived["deep"][0].shape == shape


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_frames_come_in_whatever_pieces(chunk: int) -> None:
    value = [1, 2.5, "text", None, True, b"bytes", {"k": np.arange(300), "large": np.arange(9_000)}]
    arrived = sent(value, chunk)
    assert arrived[:6] == value[:6]
    np.testing.assert_array_equal(arrived[6]["k"], np.arange(300))
    np.testing.assert_array_equal(arrived[6]["large"], np.arange(9_000))


def test_large_arrays_are_not_copied_and_may_be_written_into_where_they_arrive() -> None:
    array = np.zeros(100_000)
    pieces = pack(CallResult(1, array))
    assert any(isinstance(piece, memoryview) and piece.nbytes == array.nbytes for piece in pieces)
    arrived = sent(array)
    arrived[0] = 5.0
    assert array[0] == 0.0


def test_several_messages_in_one_piece() -> None:
    sizes = (1, 30_000, 2)  # the one in the middle is read to where it stays
    frames = (pack(CallResult(number, np.full(size, number))) for number, size in enumerate(sizes))
    data = b"".join(b"".join(frame) for frame in frames)
    messages = read(data, FrameReader())
    assert [(one.id, one.value.tolist()) for one in messages] == [
        (number, [number] * size) for number, size in enumerate(sizes)
    ]


def test_numbers_of_numpy_are_plain_numbers() -> None:
    assert sent([np.float32(0.5), np.int64(3), np.bool_(True)]) == [0.5, 3, True]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([object()]), "an array of object cannot be sent"),
        (np.array(["text"]), "send one of numbers"),
        (np.zeros(2, "i4,f8"), "send one of numbers"),
        (object(), "a object cannot be sent to a service"),
        (lambda: 1, "a function cannot be sent"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pack(Call(1, "add", [value], {}))


def frame(header: bytes, arrays: bytes = b"", *, declared: int | None = None) -> bytes:
    length = len(arrays) if declared is None else declared
    return struct.pack("<IQ", len(header), length) + header + arrays


def array_frame(kind: str, shape: tuple[int, ...], start: int, held: int = 8) -> bytes:
    outline = msgspec.msgpack.encode((kind, shape, start))
    header = msgspec.msgpack.encode(["answer", 1, msgspec.msgpack.Ext(1, outline)])
    return frame(header, bytes(held))


@pytest.mark.parametrize(
    "data",
    [
        frame(b"\xc1 no msgpack"),
        frame(msgspec.msgpack.encode(["nonsense", 1])),
        frame(msgspec.msgpack.encode(["call", "one", "add", [], {}])),
        frame(msgspec.msgpack.encode(["answer", 1, msgspec.msgpack.Ext(9, b"")])),
        frame(msgspec.msgpack.encode(["answer", 1, msgspec.msgpack.Ext(1, b"outline")])),
        frame(b"", declared=50 * 2**30),
        array_frame("|O", (1,), 0),
        array_frame("<f3", (1,), 0),
        array_frame("<f8", (0, 2**62, 2**62), 0),
        array_frame("f8,O", (1,), 0),
        array_frame("no dtype", (1,), 0),
        array_frame("<f8", (2,), 0),
        array_frame("<f8", (1,), 4),
        array_frame("<f8", (1,), -8),
        array_frame("<f8", (-1,), 0),
        array_frame("<f8", (2**40, 2**40), 0),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        read(data, FrameReader())


@given(st.binary(max_size=200))
def test_chance_bytes_are_refused_or_wait_for_more(data: bytes) -> None:
    with suppress(BadFrame):
        read(data, FrameReader(most_bytes=4096))


def test_a_stranger_may_not_send_much() -> None:
    data = b"".join(pack(CallerHello(PROTOCOL, "x" * 5000)))
    with pytest.raises(BadFrame, match="at most 4,096"):
        read(data, FrameReader(most_bytes=4096))
