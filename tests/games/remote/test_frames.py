from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from ludus.games.catalog import resolve
from ludus.games.game import TableView, allocate_actions
from ludus.games.remote.messages import (
    AnyAnswer,
    AnyRequest,
    Reset,
    SharedActions,
    SharedView,
    View,
    action_parts,
    array_parts,
    pack,
    read_header,
    read_integers,
    read_view,
    unpack,
    view_parts,
)
from ludus.system.arrays import WireError


def test_a_frame_is_the_protobuf_message_of_the_proto_file() -> None:
    header = b'{"message":"reset","rows":3}'
    body = bytes(200)
    expected = b"\x0a" + bytes([len(header)]) + header + b"\x12" + b"\xc8\x01" + body
    assert pack(Reset(rows=3), [body]) == expected
    assert pack(Reset(rows=3), [np.zeros(25)]) == expected
    assert unpack(expected) == (header, body)
    assert read_header(header, AnyRequest) == Reset(rows=3)


def test_fields_of_a_later_version_are_skipped() -> None:
    known = pack(View(), [b"12345678"])
    later = b"\x18\x96\x01" + b"\x25abcd" + b"\x29abcdefgh" + b"\x32\x02xy"
    assert unpack(later + known + later) == unpack(known)


@pytest.mark.parametrize("size", [0, 1, 2, 20, 40])
def test_a_cut_frame_is_refused(size: int) -> None:
    whole = pack(Reset(rows=3), [bytes(40)])
    cut = whole[:-1] if size == 0 else whole[:size]
    with pytest.raises(WireError):
        unpack(cut)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(content: bytes) -> None:
    try:
        header, _ = unpack(content)
        read_header(header, AnyRequest)
        read_header(header, AnyAnswer)
    except WireError:
        pass


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4), st.text())
def test_any_json_is_a_message_or_refused(value: object, name: str) -> None:
    header = msgspec.json.encode({"message": "reset", "rows": value, name: value})
    try:
        request: Reset = read_header(header, AnyRequest)
    except WireError:
        return
    assert request == Reset(rows=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("game", ["kuhn", "skirmish", "siege", "sumo"])
def test_views_and_actions_arrive_as_they_were(game: str) -> None:
    spec = resolve(game).spec
    rng = np.random.default_rng(0)
    sent = SharedView(spec, 5)
    sent.content[:] = rng.integers(0, 2, len(sent.content))  # bools must stay bools
    body = memoryview(b"".join(bytes(part) for part in view_parts(sent.view)))
    received = SharedView(spec, 5)
    received.take(body)
    assert b"".join(bytes(part) for part in view_parts(received.view)) == bytes(body)

    rows = np.array([3, 1])
    some = read_view(spec, 2, memoryview(b"".join(bytes(part) for part in view_parts(sent.view, rows))))
    assert np.array_equal(some.to_act, sent.view.to_act[rows])
    for tree, whole in zip(some.observation, sent.view.observation, strict=True):
        for name, array in tree.items():
            assert np.array_equal(array, whole[name][rows])

    actions = allocate_actions(spec, 5)
    for tree in actions:
        for array in tree.values():
            array[...] = rng.integers(-1, 9, array.shape)
    taken = SharedActions(spec, 5)
    taken.take(memoryview(b"".join(bytes(part) for part in action_parts(actions))))
    for one, other in zip(actions, taken.actions, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_every_array_is_where_numpy_wants_it() -> None:
    spec = resolve("skirmish").spec
    for array in SharedView(spec, 3).view.observation[0].values():
        assert array.flags.aligned
        assert array.flags.writeable


@pytest.mark.parametrize("change", [-1, 1, 8])
def test_arrays_of_the_wrong_length_are_refused(change: int) -> None:
    spec = resolve("kuhn").spec
    size = len(SharedView(spec, 2).content) + change
    with pytest.raises(WireError, match="bytes"):
        SharedView(spec, 2).take(memoryview(bytes(size)))
    with pytest.raises(WireError, match="bytes"):
        read_view(spec, 2, memoryview(bytes(size)))
    with pytest.raises(WireError, match="bytes"):
        read_integers(memoryview(bytes(32 + change)), tables=2, seeds=2)


def test_empty_arrays_take_their_place_too() -> None:
    spec = resolve("kuhn").spec
    view = TableView.allocate(spec, 1)
    parts = array_parts([np.zeros(3, np.uint8), np.zeros(0, np.float32), np.ones(1, np.uint8)])
    assert b"".join(bytes(part) for part in parts) == bytes(8) + b"\x01"
    assert sum(memoryview(part).nbytes for part in view_parts(view)) == len(SharedView(spec, 1).content)
