"""The client's connection to a game server: the channel, calls, and streams of requests with deadlines."""

from __future__ import annotations

import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from weakref import finalize

import grpc
import msgspec

from ludus.games.remote.frames import Frame, TooLongError, pack, read_header, unpack
from ludus.games.remote.messages import (
    CHANNEL_OPTIONS,
    LONGEST_MESSAGE_BYTES,
    SERVICE,
    AnyAnswer,
    ClientRequest,
    Shortcut,
    Switch,
)
from ludus.games.remote.shortcut import FrameSocket, reach
from ludus.games.seat_rows import GameError
from ludus.system.arrays import Buffer, WireError

TOKEN_VARIABLE = "LUDUS_GAME_TOKEN_FILE"
CA_VARIABLE = "LUDUS_GAME_CA_FILE"
_LONGEST_TOKEN = 4096

_REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""The client is at fault, so trying again is of no use."""


class ServerLost(Exception):  # noqa: N818 - what has happened, as in `CanLoseTables.lost`
    """The server is gone, silent, or has ended the stream. The text says why."""


class StreamEnded(ServerLost):
    """The server has ended the stream in good order."""


class ServerRefused(GameError):  # noqa: N818 - what has happened
    """The server has rejected a request."""


@dataclass(frozen=True, kw_only=True)
class ServerAccess:
    """The address of a server, and the credentials for it."""

    server: str
    """HOST:PORT."""
    token_file: str | None = None
    """A file with the token; None: the one that LUDUS_GAME_TOKEN_FILE names, if any."""
    ca_file: str | None = None
    """Certificates for a server with TLS (PEM); None: the file that LUDUS_GAME_CA_FILE names. Without either the
    connection is not encrypted."""
    timeout_s: float = 60.0
    """How long an answer may take."""

    def __post_init__(self) -> None:
        host, colon, port = self.server.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ValueError(f"a game server is HOST:PORT, such as 127.0.0.1:23432, got {self.server!r}")
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"timeout_s must be above 0 and finite, got {self.timeout_s}")

    def channel(self) -> grpc.Channel:
        options = [
            ("grpc.max_receive_message_length", LONGEST_MESSAGE_BYTES),  # the server sets the limit
            ("grpc.max_send_message_length", LONGEST_MESSAGE_BYTES),
            *CHANNEL_OPTIONS,
            ("grpc.enable_http_proxy", 0),  # a proxy for the web is not meant for games
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 5_000),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        ca_file = self._certificates()
        if ca_file is None:
            return grpc.insecure_channel(self.server, options)
        certificates = Path(ca_file).read_bytes()
        if b"-----BEGIN CERTIFICATE-----" not in certificates:
            raise ValueError(f"{ca_file}: holds no certificate (PEM)")
        credentials = grpc.ssl_channel_credentials(certificates)
        return grpc.secure_channel(self.server, credentials, options)

    def _certificates(self) -> str | None:
        return self.ca_file or os.environ.get(CA_VARIABLE)

    def metadata(self) -> list[tuple[str, str]]:
        file = self.token_file or os.environ.get(TOKEN_VARIABLE)
        return [] if file is None else [("authorization", f"Bearer {read_token(file)}")]

    def require_answer(self, error: grpc.RpcError) -> NoReturn:
        """Raises `ServerRefused` if the client is at fault, else `ServerLost`."""
        code, details = error.code(), " ".join((error.details() or "").split())
        if code in _REFUSALS:
            raise ServerRefused(f"game server {self.server}: {details}") from error
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            raise ServerRefused(
                f"game server {self.server}: {details}: use fewer tables, or serve with a larger --message-mb"
            ) from error
        if code == grpc.StatusCode.UNAVAILABLE:
            why = re.sub(r" \(\d+\)$", "", details.rpartition("connect: ")[2]) or "no reason given"
            if why.endswith("Socket closed") and self._certificates() is None:
                why = f"it has closed the connection; if it uses TLS, name its certificate in {CA_VARIABLE}"
            raise ServerLost(f"no game server answers at {self.server}: {why}") from error
        raise ServerLost(f"game server {self.server}: {details or code}") from error


def read_token(file: str | Path) -> str:
    """The first line of the file. Raises ValueError if it is no token."""
    text = Path(file).read_text(encoding="utf-8")[:_LONGEST_TOKEN].strip()
    token = text.partition("\n")[0].strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{file}: holds no token: one line of printable ASCII without spaces")
    return token


class PlayStream:
    """One stream of play. Not safe to use from several threads."""

    def __init__(self, access: ServerAccess) -> None:
        self._access = access
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = access.channel()
        self._call: Any = self._channel.stream_stream(f"/{SERVICE}/Play")(
            iter(self._requests.get, None), metadata=access.metadata()
        )
        self._watch = _Deadline(self._call.cancel, access.timeout_s)
        self._shortcut: FrameSocket | None = None
        self._ends = [
            self._watch.close,
            partial(self._requests.put, None),  # the thread that waits for requests ends
            self._call.cancel,
            self._channel.close,
        ]
        self.close = finalize(self, _close, self._ends)

    def ask(self, request: ClientRequest, arrays: Sequence[Buffer] = ()) -> tuple[AnyAnswer, memoryview]:
        """The answer; raises `ServerLost`, or `ServerRefused`."""
        frame = pack(request, arrays)
        with self._watch:
            if self._shortcut is None:
                self._requests.put(frame)
                answer = self._next()
            else:
                answer = self._ask_by_shortcut(self._shortcut, frame)
        return _read(self._access, answer, AnyAnswer)

    def listen(self) -> tuple[AnyAnswer, memoryview]:
        """The next message of the server, without a request."""
        with self._watch:
            answer = self._next()
        return _read(self._access, answer, AnyAnswer)

    def switch(self, offered: Shortcut | None) -> None:
        """Use the shortcut from now on, if it can be reached."""
        self._shortcut = reach(offered, LONGEST_MESSAGE_BYTES)
        if self._shortcut is not None:
            self._ends.append(self._shortcut.close)
            self._watch.cancelling.append(self._shortcut.hang_up)
            self._requests.put(pack(Switch()))

    def _ask_by_shortcut(self, shortcut: FrameSocket, frame: bytes) -> Frame:
        try:
            shortcut.send(frame)
            answer = shortcut.receive()
        except OSError:
            answer = None
        except TooLongError as error:
            raise ServerRefused(f"game server {self._access.server}: {error}: use fewer tables") from error
        except WireError as error:
            raise ServerLost(f"game server {self._access.server} answered nonsense: {error}") from error
        return self._next() if answer is None else answer  # the stream knows why

    def _next(self) -> Frame:
        try:
            frame: bytes = next(self._call)
            return frame
        except StopIteration:
            raise StreamEnded(f"game server {self._access.server} has ended the stream") from None
        except grpc.RpcError as error:
            if self._watch.expired:
                raise ServerLost(
                    f"game server {self._access.server} gave no answer within {self._access.timeout_s:g} s"
                ) from None
            self._access.require_answer(error)


class _Deadline:
    """Cancels a request that takes too long. It is checked from a thread, which costs a step nothing."""

    def __init__(self, cancel: Callable[[], object], limit_s: float) -> None:
        self.cancelling = [cancel]
        self._limit_s = limit_s
        self._asked_at = math.inf
        self._closed = threading.Event()
        self.expired = False
        threading.Thread(target=self._look, name="deadline", daemon=True).start()

    def __enter__(self) -> None:
        self._asked_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._asked_at = math.inf

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(min(1.0, self._limit_s / 4)):
            if time.monotonic() - self._asked_at > self._limit_s:
                self.expired = True
                for cancel in self.cancelling:
                    cancel()
                return


def _close(ends: list[Callable[[], object]]) -> None:
    for end in ends:
        end()


def call(
    access: ServerAccess, channel: Any, method: str, request: msgspec.Struct, kind: Any, wait_s: float = 0.0
) -> Any:
    """One call outside of play; raises `ServerRefused` or `ServerLost`."""
    try:
        frame = channel.unary_unary(f"/{SERVICE}/{method}")(
            pack(request), timeout=access.timeout_s + wait_s, metadata=access.metadata()
        )
    except grpc.RpcError as error:
        access.require_answer(error)
    return _read(access, frame, kind)[0]


def _read(access: ServerAccess, frame: Frame, kind: Any) -> tuple[Any, memoryview]:
    try:
        header, body = unpack(frame)
        return read_header(header, kind), body
    except WireError as error:
        raise ServerLost(f"game server {access.server} answered nonsense: {error}") from error
