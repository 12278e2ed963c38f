"""The shorter way on one machine: who may take it, what goes through it, and how it ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import grpc
import numpy as np
import pytest
from game_servers import eventually, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from test_remote_tables import play_beside

from ludus.games.catalog import resolve
from ludus.games.remote import shortcut
from ludus.games.remote.batch import RemoteBatch, greet
from ludus.games.remote.client import GameClient
from ludus.games.remote.frames import TooLongError, WireError, pack, read_header, unpack
from ludus.games.remote.link import Access, PlayStream, Refused, ServerLost
from ludus.games.remote.messages import PROTOCOL, SERVICE, AnyAnswer, Hello, Reset, Shortcut, Switch
from ludus.games.remote.shortcut import FrameSocket, Shortcuts, reach

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


def test_silence_has_an_end(sockets: Sockets) -> None:
    waiting = FrameSocket(sockets[0], MOST)
    waiting.limit(0.05)
    with pytest.raises(BlockingIOError):
        waiting.receive()


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


def test_other_users_play_by_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("kuhn") as server:
        stream, _ = greet(Access(server=server), "kuhn", {}, 1)
        assert is_taken(stream)
        stream.close()
        monkeypatch.setattr(shortcut, "_is_ours", lambda connected: False)
        stream, _ = greet(Access(server=server), "kuhn", {}, 1)
        assert not is_taken(stream)
        stream.close()
        batch = RemoteBatch(Access(server=server), "kuhn", {}, resolve("kuhn").spec, 3)
        assert play_beside(resolve("kuhn").tables(3), batch, 10) > 0
        batch.close()


def test_refusals_come_by_the_stream() -> None:
    with serving("kuhn", message_bytes=4096) as server:
        for wrong, said in (
            (pack(Reset(rows=7)), "there are 1"),
            (b"\xff", "no frame"),
            (bytes(5000), "larger than max"),
        ):
            stream, _ = greet(Access(server=server), "kuhn", {}, 1)
            assert stream._shortcut is not None
            with pytest.raises(Refused, match=said):
                stream._ask_there(stream._shortcut, wrong)
            stream.close()
        batch = RemoteBatch(Access(server=server), "kuhn", {}, resolve("kuhn").spec, 1)  # others play on
        assert play_beside(resolve("kuhn").tables(1), batch, 10) > 0
        batch.close()


def test_a_server_that_stops_ends_it() -> None:
    with serving("kuhn") as server:
        stream, _ = greet(Access(server=server), "kuhn", {}, 1)
        assert is_taken(stream)
    with pytest.raises(ServerLost, match=server):
        stream.ask(Reset(rows=0))


def test_tables_are_closed_when_the_client_hangs_up() -> None:
    with serving("kuhn") as server, GameClient(server) as client:
        stream, _ = greet(Access(server=server), "kuhn", {}, 2)
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
