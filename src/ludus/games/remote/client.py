"""The client's side of a game server: the connection to it, streams of play, and the client for its matches."""

from __future__ import annotations

import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar
from weakref import finalize

import grpc
import msgspec

from ludus.games.game import Actions, TableView
from ludus.games.remote import messages
from ludus.games.remote.shortcut import FrameSocket, reach
from ludus.games.remote.tables import ServerLost, ServerRefused, StreamEnded, read_frame, read_spec, require_welcome
from ludus.system.arrays import Buffer, WireError
from ludus.system.network import read_token_file

TOKEN_VARIABLE = "LUDUS_GAME_TOKEN_FILE"
CA_VARIABLE = "LUDUS_GAME_CA_FILE"

_REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""The client is at fault, so trying again is of no use."""


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

    @property
    def name(self) -> str:
        return f"game server {self.server}"

    @property
    def patience_s(self) -> float:
        return self.timeout_s

    def greet(self, game: str, options: Mapping[str, Any], tables: int) -> tuple[PlayStream, messages.Welcome]:
        """Open a stream of play. Raises `ServerRefused` or `ServerLost`."""
        stream = PlayStream(self)
        try:
            welcome = require_welcome(self.name, stream, game, options, tables)
            stream.switch(welcome.shortcut)
        except BaseException:
            stream.close()
            raise
        return stream, welcome

    def channel(self) -> grpc.Channel:
        options = [
            ("grpc.max_receive_message_length", messages.LONGEST_MESSAGE_BYTES),  # the server sets the limit
            ("grpc.max_send_message_length", messages.LONGEST_MESSAGE_BYTES),
            *messages.CHANNEL_OPTIONS,
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
        return [] if file is None else [("authorization", f"Bearer {read_token_file(file)}")]

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


class PlayStream:
    """One stream of play. Not safe to use from several threads."""

    def __init__(self, access: ServerAccess) -> None:
        self._access = access
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = access.channel()
        self._call: Any = self._channel.stream_stream(f"/{messages.SERVICE}/Play")(
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
        self.close = finalize(self, lambda ends: [end() for end in ends], self._ends)

    def ask(
        self, request: messages.ClientRequest, arrays: Sequence[Buffer] = ()
    ) -> tuple[messages.AnyAnswer, memoryview]:
        """The answer; raises `ServerLost`, or `ServerRefused`."""
        frame = messages.pack(request, arrays)
        if self._shortcut is None:
            self._requests.put(frame)
            return self.listen()
        with self._watch:
            answer = self._ask_by_shortcut(self._shortcut, frame)
        return read_frame(self._access.name, answer, messages.AnyAnswer)

    def listen(self) -> tuple[messages.AnyAnswer, memoryview]:
        """The next message of the server."""
        with self._watch:
            answer = self._next()
        return read_frame(self._access.name, answer, messages.AnyAnswer)

    def switch(self, offered: messages.Shortcut | None) -> None:
        """Use the shortcut from now on, if it can be reached."""
        self._shortcut = reach(offered, messages.LONGEST_MESSAGE_BYTES)
        if self._shortcut is not None:
            self._ends.append(self._shortcut.close)
            self._watch.cancelling.append(self._shortcut.hang_up)
            self._requests.put(messages.pack(messages.Switch()))

    def _ask_by_shortcut(self, shortcut: FrameSocket, frame: bytes) -> messages.Frame:
        try:
            shortcut.send(frame)
            answer = shortcut.receive()
        except OSError:
            answer = None
        except messages.TooLongError as error:
            raise ServerRefused(f"game server {self._access.server}: {error}: use fewer tables") from error
        except WireError as error:
            raise ServerLost(f"game server {self._access.server} answered nonsense: {error}") from error
        return self._next() if answer is None else answer  # the stream knows why

    def _next(self) -> messages.Frame:
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
        self.close = self._closed.set
        self.expired = False
        threading.Thread(target=self._look, name="deadline", daemon=True).start()

    def __enter__(self) -> None:
        self._asked_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._asked_at = math.inf

    def _look(self) -> None:
        while not self._closed.wait(min(1.0, self._limit_s / 4)):
            if time.monotonic() - self._asked_at > self._limit_s:
                self.expired = True
                for cancel in self.cancelling:
                    cancel()
                return


_POLL_S = 0.2
_LONG_POLL_S = 20.0
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class GameClient:
    """A client of the match service, such as `GameClient("127.0.0.1:23432")`. Raises `ServerRefused` if the server
    rejects a request, `ServerLost` if it is gone."""

    def __init__(
        self, server: str, *, token_file: str | None = None, ca_file: str | None = None, timeout_s: float = 60.0
    ) -> None:
        self._access = ServerAccess(server=server, token_file=token_file, ca_file=ca_file, timeout_s=timeout_s)
        self._channel = self._access.channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def describe(self) -> messages.Description:
        """The game of the server, and its load."""
        return self._call("Describe", messages.Nothing(), messages.Description)

    def start_game(self, match: str, config: messages.MatchConfig) -> messages.MatchResult:
        """Start a match under a name of the caller's. A repeated call changes nothing."""
        return self._call("StartGame", messages.StartRequest(match, config), messages.MatchResult)

    def stop_game(self, match: str) -> messages.MatchResult:
        return self._call("StopGame", messages.MatchRequest(match), messages.MatchResult)

    def exists(self, match: str) -> bool:
        """Whether it is being played."""
        return self._call("Exists", messages.MatchRequest(match), messages.ExistsAnswer).exists

    def wait_game(self, match: str, timeout_s: float | None = None) -> messages.MatchResult:
        """The result, once it has ended; raises TimeoutError if that takes longer."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            asked = time.monotonic()
            left = _LONG_POLL_S if until is None else min(_LONG_POLL_S, until - asked)
            result = self._call(
                "WaitGame", messages.MatchRequest(match, max(0.0, left)), messages.MatchResult, wait_s=_LONG_POLL_S
            )
            if result.ended:
                return result
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"match {match!r} is {result.state} after {timeout_s:g} s")
            # A server at which many wait answers at once: do not ask again at once.
            time.sleep(max(0.0, min(asked + _POLL_S, until or math.inf) - time.monotonic()))

    def result(self, match: str) -> messages.MatchResult:
        """The result so far."""
        return self._call("Result", messages.MatchRequest(match), messages.MatchResult)

    def list(self) -> tuple[messages.MatchResult, ...]:
        """Every match that the server knows, the oldest first."""
        return self._call("List", messages.Nothing(), messages.MatchList).matches

    def join(self, match: str, camp: int, turn_seconds: float = 600.0) -> CampSeats:
        """Play a camp that has no bot. The server is lost if two turns are more than `turn_seconds` apart."""
        return CampSeats(replace(self._access, timeout_s=turn_seconds), match, camp)

    def _call(self, method: str, request: msgspec.Struct, kind: type[_Answer], wait_s: float = 0.0) -> _Answer:
        access = self._access
        try:
            frame = self._channel.unary_unary(f"/{messages.SERVICE}/{method}")(
                messages.pack(request), timeout=access.timeout_s + wait_s, metadata=access.metadata()
            )
        except grpc.RpcError as error:
            access.require_answer(error)
        answer: _Answer = read_frame(access.name, frame, kind)[0]
        return answer


class CampSeats:
    """The seats of one camp at the table of a match.

    `view` shows one table, in which only the seats of the camp are filled in, with the rewards since the last view.
    While `playing`, call `step` with actions for the seats to act; after the end of an episode (over, or truncated,
    also by the frame limit) the actions do not matter. Raises `ServerLost`."""

    def __init__(self, access: ServerAccess, match: str, camp: int) -> None:
        self._server = access.server
        self._stream = PlayStream(access)
        self.playing = True
        try:
            answer = self._expect(
                messages.Welcome, self._stream.ask(messages.Join(protocol=messages.PROTOCOL, match=match, camp=camp))
            )[0]
            self.spec = read_spec(answer, access.name)
            self.seats = self.spec.seats_of_team[camp]
            self._shared = messages.SharedView(self.spec, 1)
            self._chosen = messages.SharedActions(self.spec, 1)
            self._listen()
        except BaseException:
            self.close()
            raise

    @property
    def view(self) -> TableView:
        return self._shared.view

    def step(self, actions: Actions) -> None:
        """Act, and wait for the next turn or the end. Raises ValueError for wrong actions, and then sends nothing."""
        self._chosen.fill(actions)
        self._listen(messages.Step())

    def close(self) -> None:
        self.playing = False
        self._stream.close()

    def _listen(self, step: messages.Step | None = None) -> None:
        try:
            told = self._stream.listen() if step is None else self._stream.ask(step, [self._chosen.content])
            self._shared.take(self._expect(messages.View, told)[1])
        except StreamEnded:
            self.close()
        except WireError as error:
            self.close()
            raise ServerLost(f"game server {self._server} answered nonsense: {error}") from error
        except BaseException:  # such as Ctrl-C: its answer would be taken for that to the next step
            self.close()
            raise

    def _expect(self, kind: type[_Answer], told: tuple[messages.AnyAnswer, memoryview]) -> tuple[_Answer, memoryview]:
        answer, body = told
        if not isinstance(answer, kind):
            raise ServerLost(f"game server {self._server} answered {type(answer).__name__}")
        return answer, body
