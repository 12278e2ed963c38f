"""Games in an engine: `Engine`, a `GameSource` whose tables are played by a program such as Godot, Unity or Unreal.

Ludus starts the engine and waits for it on loopback. The engine connects and answers the requests of
docs/game-server.md, as frames on that socket.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from weakref import finalize

from ludus.data.game_tree import TreeState
from ludus.data.specs import GameSpec
from ludus.games.bots import hosted_bots
from ludus.games.game import Bot, GameBatch
from ludus.games.remote import messages
from ludus.games.remote.outside_program import require_program
from ludus.games.remote.shortcut import FrameSocket
from ludus.games.remote.tables import RemoteBatch, ServerLost, ServerRefused, read_frame, read_spec, require_welcome
from ludus.games.seat_rows import GameError
from ludus.system.arrays import Buffer, WireError
from ludus.system.process import PIPE, GuardedProcess, OutputReader

ADDRESS_VARIABLE = "LUDUS_ENGINE"
KEY_VARIABLE = "LUDUS_ENGINE_KEY"
_KEY_BYTES = 16
_LOOK_S = 0.1  # how often to look whether an engine that starts has ended
_ENDING_S = 1.0  # how long to wait for the exit code of an engine that has closed the connection
_LAST_LINES = 10  # lines of its output that are reported when it is lost


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A game in an engine, which Ludus starts as a program of its own."""

    command: tuple[str, ...]
    """The program and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of Ludus."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the game, which the engine is told."""
    start_seconds: float = 30.0
    """How long the engine may take to start and connect."""
    step_seconds: float = 20.0
    """How long an answer may take."""

    def __post_init__(self) -> None:
        given: object = self.command
        if isinstance(given, str) or not given:
            raise ValueError(
                f"command is a program and its arguments, such as ('godot3-server',), got {self.command!r}"
            )
        for name in ("start_seconds", "step_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)}")

    @cached_property
    def spec(self) -> GameSpec:
        return read_spec(self._welcome, self.name)

    def tables(self, num_tables: int) -> GameBatch:
        return RemoteBatch(self, "", self.options, self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return hosted_bots(self._welcome.bots)

    def tree(self) -> TreeState | None:
        return None

    @property
    def name(self) -> str:
        return f"engine {Path(self.command[0]).name}"

    @property
    def patience_s(self) -> float:
        """A reset starts a lost engine once."""
        return 0.0

    def greet(self, game: str, options: Mapping[str, Any], tables: int) -> tuple[EngineStream, messages.Welcome]:
        """Start the engine. Raises `ServerRefused` or `ServerLost`."""
        stream = EngineStream(self)
        try:
            return stream, require_welcome(self.name, stream, game, options, tables)
        except BaseException:
            stream.close()
            raise

    @cached_property
    def _welcome(self) -> messages.Welcome:
        try:
            stream, welcome = self.greet("", self.options, tables=0)
        except ServerLost as error:
            raise GameError(str(error)) from error
        stream.close()
        return welcome


class EngineStream:
    """One run of the engine and the connection to it. Not safe to use from several threads.

    What the engine prints after its first answer goes to our standard error, line by line; what it prints before is
    told only if it fails."""

    def __init__(self, engine: Engine) -> None:
        try:
            require_program(engine.command[0], ".", engine.environment)
        except FileNotFoundError as error:
            raise GameError(f"{engine.name} cannot be started: {error}") from error
        self._engine = engine
        self._greeted = threading.Event()
        self._refused = ""
        key = secrets.token_bytes(_KEY_BYTES)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            told = {ADDRESS_VARIABLE: f"127.0.0.1:{listener.getsockname()[1]}", KEY_VARIABLE: key.hex()}
            self._process = GuardedProcess(
                engine.command, stdout=PIPE, environment={**os.environ, **engine.environment, **told}
            )
            show = partial(_show, engine.name, self._greeted)
            self._output = OutputReader(self._process.stdout, show, _LAST_LINES)
            ends: list[Callable[[], object]] = [self._process.end, self._output.join]
            self.close = finalize(self, lambda: [end() for end in ends])
            try:
                self._frames = self._accepted(listener, key)
            except BaseException:
                self.close()
                raise
            ends.insert(0, self._frames.close)

    def ask(
        self, request: messages.ClientRequest, arrays: Sequence[Buffer] = ()
    ) -> tuple[messages.AnyAnswer, memoryview]:
        """The answer; raises `ServerLost`, or `ServerRefused`."""
        name, limit_s = self._engine.name, self._engine.step_seconds
        try:
            self._frames.require_silence()
            self._frames.send(messages.pack(request, arrays))
            frame = self._frames.receive()
        except TimeoutError:
            raise ServerLost(f"{name} gave no answer within {limit_s:g} s{self._last_words()}") from None
        except OSError:
            frame = None
        except WireError as error:
            raise ServerLost(f"{name} answered nonsense: {error}") from error
        if frame is None:
            raise self._gone()
        answer, body = read_frame(name, frame, messages.AnyAnswer)
        if isinstance(answer, messages.Problem):
            refusal = ServerLost if self._greeted.is_set() else ServerRefused
            raise refusal(f"{name} says: {answer.text[:1000]}")
        self._greeted.set()
        return answer, body

    def _accepted(self, listener: socket.socket, key: bytes) -> FrameSocket:
        """The connection of the engine; others are closed."""
        engine, until = self._engine, time.monotonic() + self._engine.start_seconds
        listener.settimeout(_LOOK_S)
        while time.monotonic() < until:
            if self._process.exit_code is not None:
                raise self._gone()
            with suppress(TimeoutError):
                connected, _ = listener.accept()
                connected.settimeout(_ENDING_S)
                with suppress(OSError):
                    if secrets.compare_digest(_read_key(connected), key):
                        connected.settimeout(engine.step_seconds)
                        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        return FrameSocket(connected, messages.LONGEST_MESSAGE_BYTES)
                connected.close()
                self._refused = f"; a connection without the key in {KEY_VARIABLE} was refused"
        raise ServerLost(
            f"{engine.name} did not connect to the address in {ADDRESS_VARIABLE} within {engine.start_seconds:g} s"
            f"{self._last_words()}"
        )

    def _gone(self) -> ServerLost:
        code = self._process.wait_end(_ENDING_S)
        if code is None:
            return ServerLost(f"{self._engine.name} has closed the connection{self._last_words()}")
        self._output.join()
        return ServerLost(f"{self._engine.name} has ended with exit code {code}{self._last_words()}")

    def _last_words(self) -> str:
        words = [*self._output.last_words]
        return self._refused + (f"; its last words: {' | '.join(words)}" if words else "")


def _read_key(connected: socket.socket) -> bytes:
    read = b""
    while len(read) < _KEY_BYTES and (more := connected.recv(_KEY_BYTES - len(read))):
        read += more
    return read


def _show(name: str, greeted: threading.Event, line: bytes) -> None:
    if greeted.is_set():
        print(f"[{name}] {line.decode(errors='replace').rstrip()}", file=sys.stderr, flush=True)
