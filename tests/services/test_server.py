"""What a server does with callers that do not behave."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from service_hosting import Hosted, Sums, hosted

from ludus import Solver
from ludus.services import server as server_module
from ludus.services.registry import MemoryRegistry, connect
from ludus.services.wire import PROTOCOL, Call, CallerHello, CallResult, FrameReader, ServiceWelcome, Unwelcome, pack


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def server(registry: MemoryRegistry, tmp_path: Path) -> Iterator[Hosted]:
    with hosted(Sums(), registry, folder=tmp_path) as running:
        yield running


def say(link: socket.socket, *messages: Any) -> None:
    for message in messages:
        link.sendall(message if isinstance(message, bytes) else b"".join(pack(message)))


def heard(link: socket.socket) -> list[Any]:
    """All that comes until the connection ends."""
    reader, messages = FrameReader(), []
    while count := link.recv_into(reader.room()):
        messages += reader.take(count)
    return messages


def test_callers_that_say_nothing_keep_nobody_out(server: Hosted, registry: MemoryRegistry) -> None:
    with ExitStack() as ending:
        silent = [ending.enter_context(connect(server.instance.address, 10)) for _ in range(100)]
        with Solver("sums", registry=registry) as solver:
            assert solver.solve("add", 1) == 2
            assert silent[0].recv(1) == b""  # the oldest have made room
            assert solver.solve("add", 2) == 3


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([CallerHello(PROTOCOL + 1, "")], f"sums-0 speaks protocol {PROTOCOL}, the caller {PROTOCOL + 1}"),
        ([Call(1, "add", [1], {})], "did not expect Call"),
        ([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], "bytes; at most 4,096"),
        ([b"\x03\x00\x00\x00" + bytes(8) + b"\xc1\xc1\xc1"], "is no message"),
        ([CallerHello(PROTOCOL, "x" * 5000)], "at most 4,096"),
    ],
)
def test_strangers_are_told_why_and_cut_off(server: Hosted, said: list[Any], why: str) -> None:
    with connect(server.instance.address, 10) as link:
        say(link, *said)
        (answer,) = heard(link)
        assert isinstance(answer, Unwelcome)
        assert why in answer.reason


def test_who_is_let_in_may_still_be_cut_off(server: Hosted, registry: MemoryRegistry) -> None:
    with connect(server.instance.address, 10) as link:
        say(link, CallerHello(PROTOCOL, ""), Call(7, "add", [1], {}), CallerHello(PROTOCOL, ""))
        welcome, answer, why = heard(link)
        assert isinstance(welcome, ServiceWelcome)
        assert welcome.methods["echo"].idempotent
        assert answer == CallResult(7, 2.0)
        assert why == Unwelcome("did not expect CallerHello")
    with Solver("sums", registry=registry) as solver:
        assert solver.solve("add", 1) == 2  # the others do not notice


def test_who_says_nothing_is_cut_off(registry: MemoryRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HELLO_WITHIN_S", 0.05)
    with hosted(Sums(), registry, folder=tmp_path) as running:
        with connect(running.instance.address, 10) as link:
            link.sendall(b"\x10\x00")  # and never more
            assert heard(link) == []
        with Solver("sums", registry=registry) as solver:
            solver.solve("add", 1)
            time.sleep(0.1)
            assert solver.solve("add", 1) == 2  # who has said hello stays


def test_a_caller_that_does_not_read_is_not_listened_to(server: Hosted, registry: MemoryRegistry) -> None:
    """It cannot make the server pile up answers for it."""
    with connect(server.instance.address, 10) as link:
        say(link, CallerHello(PROTOCOL, ""))
        link.settimeout(0.2)
        sent = 0
        with suppress(TimeoutError):
            for number in range(1000):
                link.sendall(b"".join(pack(Call(number, "echo", [bytes(2**20)], {}))))
                sent += 1
        assert sent < 100
        with Solver("sums", registry=registry) as solver:
            assert solver.solve("add", 1) == 2
