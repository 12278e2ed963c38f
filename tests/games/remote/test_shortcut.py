"""The shorter way on one machine: who may take it, what goes through it, and how it ends."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import chain
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from game_servers import eventually, serving
from hypothesis import given, settings, strategies as st
from test_remote_tables import play_beside
from troubled_games import Trouble, TroubledKuhn

from ludus.games.catalog import resolve
from ludus.games.game import allocate_actions
from ludus.games.remote import shortcut
from ludus.games.remote.client import GameClient, PlayStream, ServerAccess
from ludus.games.remote.messages import (
    PROTOCOL,
    SERVICE,
    AnyAnswer,
    ChosenActions,
    Hello,
    Reset,
    Shortcut,
    Switch,
    TooLongError,
    View,
    pack,
    read_header,
    unpack,
)
from ludus.games.remote.served_tables import ServedTables
from ludus.games.remote.shortcut import FrameSocket, Shortcuts, reach
from ludus.games.remote.tables import RemoteBatch, ServerLost, ServerRefused
from ludus.system.arrays import WireError

pytestmark = pytest.mark.skipif(not shortcut.SUPPORTED, reason="there is no such way on this system")
MOST = 2**20
Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def shortcuts() -> Iterator[Shortcuts]:
    made = Shortcuts(MOST)
    yield made
    made.close()


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def is_taken(stream: PlayStream) -> bool:
    return stream._shortcut is not None


@settings(max_examples=30)
@given(sizes=st.lists(st.sampled_from([0, 1, 3, 200, 2**16 - 4, 2**16 - 3, 2**16, 300_000]), max_size=4))
def test_frames_arrive_as_they_were(sizes: list[int]) -> None:
    one, other = (FrameSocket(end, MOST) for end in socket.socketpair())
    frames = [np.random.default_rng(size).bytes(size) for size in sizes]

    def answer() -> None:
        while (frame := other.receive()) is not None:
            other.send(bytes(frame))

    thread = threading.Thread(target=answer)
    thread.start()
    for frame in frames:
        one.send(frame)
        assert one.receive() == frame
    one.close()
    thread.join(10)
    assert not thread.is_alive()
    other.close()


@pytest.mark.parametrize("begun", [b"", b"\x05\x00", b"\x05\x00\x00\x00", b"\x05\x00\x00\x00abc"])
def test_a_frame_that_breaks_off_is_the_end(sockets: Sockets, begun: bytes) -> None:
    one, other = sockets
    one.sendall(begun)
    one.close()
    assert FrameSocket(other, MOST).receive() is None


def test_frames_that_come_in_pieces_are_put_together(sockets: Sockets) -> None:
    one, other = sockets

    def send() -> None:
        for piece in b"\x03\x00\x00\x00abc":
            one.sendall(bytes([piece]))
            time.sleep(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    assert FrameSocket(other, MOST).receive() == b"abc"
    thread.join()


def test_frames_above_the_limit_are_neither_sent_nor_taken(sockets: Sockets) -> None:
    one, other = sockets
    with pytest.raises(TooLongError, match=r"larger than max \(11 vs. 10\)"):
        FrameSocket(one, 10).send(bytes(11))
    FrameSocket(one, MOST).send(bytes(11))
    with pytest.raises(TooLongError, match=r"larger than max \(11 vs. 10\)"):
        FrameSocket(other, 10).receive()


def test_two_frames_at_once_are_refused(sockets: Sockets) -> None:
    one, other = sockets
    one.sendall(b"\x01\x00\x00\x00a\x01\x00\x00\x00b")
    with pytest.raises(WireError, match="before the last one was answered"):
        FrameSocket(other, MOST).receive()


def test_an_offer_is_good_for_one_client_and_one_stream(shortcuts: Shortcuts) -> None:
    with shortcuts.offer() as offered, shortcuts.offer() as other:
        with pytest.raises(WireError, match="before the shortcut was reached"):
            shortcuts.reached(offered)
        mine = reach(offered, MOST)
        assert mine is not None
        assert reach(offered, MOST) is None  # taken
        assert reach(Shortcut(name=offered.name, key="00" * 16), MOST) is None  # unknown
        assert reach(Shortcut(name=offered.name, key="no hex"), MOST) is None
        theirs = reach(other, MOST)
        assert theirs is not None
        mine.send(b"to the first")
        theirs.send(b"to the second")
        assert shortcuts.reached(offered).receive() == b"to the first"
        assert shortcuts.reached(other).receive() == b"to the second"
    with closing(mine), closing(theirs):
        assert mine.receive() is None  # the stream has ended
        assert reach(offered, MOST) is None


def test_only_names_of_game_servers_are_approached() -> None:
    with socket.socket(socket.AF_UNIX) as elsewhere:
        elsewhere.bind("\0another-program")
        elsewhere.listen()
        elsewhere.settimeout(0.2)
        assert reach(Shortcut(name="another-program", key="00" * 16), MOST) is None
        with pytest.raises(TimeoutError):
            elsewhere.accept()


def test_a_client_tells_nothing_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcut, "_is_ours", lambda connected: False)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind("\0ludus-tables-of-somebody-else")
        theirs.listen()
        assert reach(Shortcut(name="ludus-tables-of-somebody-else", key="ab" * 16), MOST) is None
        client, _ = theirs.accept()
        with client:
            assert client.recv(1) == b""


def test_a_server_admits_no_other_user(shortcuts: Shortcuts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcut, "_is_ours", lambda connected: False)
    with shortcuts.offer() as offered, socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + offered.name)
        with suppress(ConnectionError):
            client.sendall(bytes.fromhex(offered.key))
            assert client.recv(1) == b""
        with pytest.raises(WireError, match="before the shortcut was reached"):
            shortcuts.reached(offered)


def test_the_kernel_says_whose_process_is_at_the_other_end(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shortcut._is_ours(sockets[0])
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not shortcut._is_ours(sockets[0])


def test_one_who_says_nothing_keeps_nobody_waiting(shortcuts: Shortcuts) -> None:
    with shortcuts.offer() as offered, ExitStack() as silent:
        for _ in range(5):
            silent.enter_context(socket.socket(socket.AF_UNIX)).connect("\0" + offered.name)
        began = time.monotonic()
        way = reach(offered, MOST)
        assert way is not None
        assert time.monotonic() - began < shortcut._GREETING_S
        way.close()


def test_it_admits_again_after_too_many_open_files(shortcuts: Shortcuts, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = shortcuts._listener
    failing = Mock(wraps=listener)
    failing.accept.side_effect = chain([OSError(errno.EMFILE, "too many")], iter(listener.accept, None))
    monkeypatch.setattr(shortcuts, "_listener", failing)
    with shortcuts.offer() as first, shortcuts.offer() as second:
        for offered in (first, second):  # the first is still accepted by the call that waits already
            way = reach(offered, MOST)
            assert way is not None
            way.close()
    assert failing.accept.call_count >= 2  # refused once, then asked again


def test_those_who_are_not_admitted_play_by_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("kuhn") as server:
        stream, _ = ServerAccess(server=server).greet("kuhn", {}, 1)
        assert is_taken(stream)
        stream.close()
        monkeypatch.setattr(shortcut, "_is_ours", lambda connected: False)
        stream, _ = ServerAccess(server=server).greet("kuhn", {}, 1)
        assert not is_taken(stream)
        stream.close()
        batch = RemoteBatch(ServerAccess(server=server), "kuhn", {}, resolve("kuhn").spec, 3)
        assert play_beside(resolve("kuhn").tables(3), batch, 10) > 0
        batch.close()


def test_refusals_come_by_the_stream() -> None:
    with serving("kuhn", message_bytes=4096) as server:
        for wrong, said in (
            (pack(Reset(rows=7)), "there are 1"),
            (b"\xff", "no frame"),
            (bytes(5000), "larger than max"),
        ):
            stream, _ = ServerAccess(server=server).greet("kuhn", {}, 1)
            assert stream._shortcut is not None
            with pytest.raises(ServerRefused, match=said):
                stream._ask_by_shortcut(stream._shortcut, wrong)
            stream.close()
        batch = RemoteBatch(ServerAccess(server=server), "kuhn", {}, resolve("kuhn").spec, 1)  # others play on
        assert play_beside(resolve("kuhn").tables(1), batch, 10) > 0
        batch.close()


@pytest.mark.parametrize("answer", [b"\xff", pack(View()), pack(View(), [bytes(7)]), pack(ChosenActions())])
def test_nonsense_by_the_shortcut_loses_the_tables(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("kuhn") as server:
        batch = RemoteBatch(ServerAccess(server=server), "kuhn", {}, resolve("kuhn").spec, 2)
        assert batch._stream is not None
        assert is_taken(batch._stream)
        monkeypatch.setattr(ServedTables, "answer", lambda tables, request, body: answer)
        batch.reset(np.arange(2), np.arange(2, dtype=np.uint64))
        assert all("nonsense" in why for why in batch.lost.values())
        assert set(batch.lost) == {0, 1}
        batch.close()


def test_what_a_game_raises_is_said_even_if_it_looks_like_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(tables: ServedTables, request: object, body: memoryview) -> bytes:
        raise ConnectionResetError("the game's own server is gone")

    monkeypatch.setattr(ServedTables, "answer", failing)
    with serving("kuhn") as server:
        stream, _ = ServerAccess(server=server).greet("kuhn", {}, 1)
        with pytest.raises(ServerLost, match="ConnectionResetError: the game's own server is gone"):
            stream.ask(Reset(rows=0))
        stream.close()


def test_the_time_limit_is_for_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it arrives, and whatever signals come in between."""
    ended = threading.Event()

    def trickle(way: FrameSocket, frame: bytes) -> None:
        for byte in b"\x20\x00\x00\x00" + bytes(32):
            if ended.wait(0.1):
                return
            way._socket.sendall(bytes([byte]))

    with serving("kuhn") as server:
        stream, _ = ServerAccess(server=server, timeout_s=0.5).greet("kuhn", {}, 1)
        mine = stream._shortcut
        assert mine is not None
        theirs_only = FrameSocket.send
        monkeypatch.setattr(
            FrameSocket, "send", lambda way, frame: (theirs_only if way is mine else trickle)(way, frame)
        )
        began = time.monotonic()
        with pytest.raises(ServerLost, match=r"no answer within 0.5 s"):
            stream.ask(Reset(rows=0))
        assert time.monotonic() - began < 2.5
        ended.set()
        stream.close()


def test_a_stream_that_was_closed_is_lost_not_broken() -> None:
    with serving("kuhn") as server:
        stream, _ = ServerAccess(server=server).greet("kuhn", {}, 1)
        stream.close()
        with pytest.raises(ServerLost):
            stream.ask(Reset(rows=0))


def test_a_server_that_stops_during_a_step_says_so() -> None:
    trouble = Trouble()
    trouble.before_step = trouble.wait
    with ThreadPoolExecutor() as pool:
        with serving(TroubledKuhn(trouble), name="kuhn") as server:
            batch = RemoteBatch(ServerAccess(server=server, timeout_s=30.0), "kuhn", {}, resolve("kuhn").spec, 2)
            batch.reset(np.arange(2), np.arange(2, dtype=np.uint64))
            stepping = pool.submit(batch.step, allocate_actions(batch.spec, 2))
            time.sleep(0.1)
        stepping.result(timeout=10)
        assert set(batch.lost) == {0, 1}
        trouble.going_on.set()
    batch.close()


def test_a_server_that_stops_ends_it() -> None:
    with serving("kuhn") as server:
        stream, _ = ServerAccess(server=server).greet("kuhn", {}, 1)
        assert is_taken(stream)
    with pytest.raises(ServerLost, match=server):
        stream.ask(Reset(rows=0))


def test_tables_are_closed_when_the_client_hangs_up() -> None:
    with serving("kuhn") as server, GameClient(server) as client:
        stream, _ = ServerAccess(server=server).greet("kuhn", {}, 2)
        assert client.describe().tables == 2
        assert stream._shortcut is not None
        stream._shortcut.hang_up()
        assert eventually(lambda: client.describe().tables == 0)


def test_a_switch_before_the_shortcut_was_reached_is_refused() -> None:
    with serving("kuhn") as server, grpc.insecure_channel(server) as channel:
        hello = Hello(protocol=PROTOCOL, game="kuhn", options={}, tables=1)
        call = channel.stream_stream(f"/{SERVICE}/Play")(iter([pack(hello), pack(Switch())]))
        welcome = read_header(unpack(next(call))[0], AnyAnswer)
        assert welcome.shortcut is not None
        with pytest.raises(grpc.RpcError, match="before the shortcut was reached") as refused:
            next(call)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
