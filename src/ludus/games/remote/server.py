"""The game server: tables for many clients and matches between bots, over gRPC."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import msgspec

from ludus.data.specs import spec_to_json
from ludus.games.game import GameSource
from ludus.games.remote import messages
from ludus.games.remote.matches import ServerMatches
from ludus.games.remote.served_tables import SERVER, RequestRefused, ServedTables, abort, require_protocol
from ludus.games.remote.shortcut import Shortcuts, listen
from ludus.system.arrays import WireError
from ludus.system.network import Strangers


@dataclass(frozen=True, kw_only=True)
class ServedGame:
    """The game of a server."""

    name: str
    source: GameSource
    with_options: Callable[[Mapping[str, Any]], GameSource]
    """The game with the options of a client. Raises ValueError for those that a client may not set."""

    def chosen(self, name: str, options: Mapping[str, Any]) -> GameSource:
        if name and name != self.name:
            raise ValueError(f"this server plays {self.name!r}, not {name!r}")
        return self.with_options(options) if options else self.source


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The address of a server, and the limits of its clients."""

    host: str = "127.0.0.1"
    port: int = messages.DEFAULT_PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    tls: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """Private key and certificate chain, both PEM."""
    tables_max: int = 4096
    clients_max: int = 128
    matches_max: int = 64
    message_bytes: int = messages.MESSAGE_BYTES


_KEEPALIVE_MS = 30_000  # a client whose machine has crashed is noticed after this long
_STOPPING_S = 5.0
_LONGEST_WAIT_S = 30.0  # how long a call may wait for the end of a match
_MOST_WAITING = 16  # calls that wait; further ones are answered at once, and ask again later
_HANDSHAKE_MS = 10_000  # a connection that is not set up by then is closed
_MOST_STRANGERS = 16  # calls without a request; the oldest makes room for the next


class _TokenGuard:
    """An interceptor that rejects calls without the token before anything of their request is waited for."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        told = dict(handler_call_details.invocation_metadata).get("authorization", "")
        if hmac.compare_digest(told.encode(), self._expected):
            return continuation(handler_call_details)
        why = "this is not its token" if told else "it wants a token: name a file with it in LUDUS_GAME_TOKEN_FILE"
        return grpc.stream_stream_rpc_method_handler(
            lambda frames, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
        )


class GameServer:
    """Serves from `start` to `stop`."""

    def __init__(
        self,
        game: ServedGame,
        config: ServerConfig,
        *,
        program_state: Callable[[], str | None] = lambda: None,
        why_not_ready: Callable[[], str | None] = lambda: None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`why_not_ready`: why clients are rejected now. `tell` gets a line for every event."""
        self._game = game
        self._config = config
        self._program_state, self._why_not_ready, self._tell = program_state, why_not_ready, tell
        self._matches = ServerMatches(game.chosen, config.matches_max)
        self._lock = threading.Condition()
        self._clients = self._tables = 0
        self._shortcuts: Shortcuts | None = None
        self._strangers = Strangers(_MOST_STRANGERS)
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        # A match thread or a stream of play holds a thread for as long as it lasts; calls need some more.
        self._threads = ThreadPoolExecutor(config.clients_max + 32, "client")
        self._server = grpc.server(
            self._threads,
            handlers=[grpc.method_handlers_generic_handler(messages.SERVICE, self._handlers())],
            options=[
                ("grpc.max_receive_message_length", config.message_bytes),
                ("grpc.max_send_message_length", config.message_bytes),
                ("grpc.so_reuseport", 0),  # a second server at the same port must fail
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                *messages.CHANNEL_OPTIONS,
            ],
            interceptors=[] if config.token is None else [_TokenGuard(config.token)],
            maximum_concurrent_rpcs=config.clients_max + 32,
        )

    def start(self) -> int:
        """Listen and return the port. Raises OSError."""
        config = self._config
        address = f"{f'[{config.host}]' if ':' in config.host else config.host}:{config.port}"
        try:
            if config.tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, grpc.ssl_server_credentials([config.tls]))
        except RuntimeError as error:
            raise OSError(f"cannot listen at {address}: is another server there already?") from error
        if port == 0:
            raise OSError(f"cannot listen at {address}")
        self._shortcuts = listen(config.message_bytes)
        self._server.start()
        return int(port)

    def stop(self) -> bool:
        """Returns whether everything has ended; a game that hangs in this process does not."""
        self._matches.close()
        ended: bool = self._server.stop(grace=0.5).wait(_STOPPING_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._shortcuts is not None:
            self._shortcuts.close()
        with self._lock:  # their tables are closed by their own threads
            return self._lock.wait_for(lambda: self._clients == 0, _STOPPING_S) and ended

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """By method. gRPC passes requests and answers on as bytes, because frames are read and written by hand."""
        matches = self._matches
        calls: dict[str, tuple[Any, Callable[[Any], msgspec.Struct]]] = {
            "Describe": (messages.Nothing, self._describe),
            "StartGame": (messages.StartRequest, self._start_game),
            "StopGame": (messages.MatchRequest, lambda told: matches.stop(told.match)),
            "Exists": (messages.MatchRequest, lambda told: messages.ExistsAnswer(matches.is_played(told.match))),
            "WaitGame": (messages.MatchRequest, self._wait_game),
            "Result": (messages.MatchRequest, lambda told: matches.table(told.match).result),
            "List": (messages.Nothing, lambda _: messages.MatchList(matches.all())),
        }

        def answer(kind: Any, call: Callable[[Any], msgspec.Struct], frames: Iterator[bytes], context: Any) -> bytes:
            try:
                frame = self._first(frames, context)
                if frame is None:
                    raise WireError("a call without a request")
                return messages.pack(call(messages.read_header(messages.unpack(frame)[0], kind)))
            except Exception as error:
                abort(context, error)

        # As a stream, because gRPC would wait for a single request without end.
        unary = {name: grpc.stream_unary_rpc_method_handler(partial(answer, *call)) for name, call in calls.items()}
        return {"Play": grpc.stream_stream_rpc_method_handler(self._play), **unary}

    def _wait_game(self, told: messages.MatchRequest) -> messages.MatchResult:
        """The result when the match has ended or the time is up. A call that waits holds a thread, so only some may."""
        match = self._matches.table(told.match)
        if not self._waiting.acquire(blocking=False):
            return match.result
        try:
            return match.wait(min(told.seconds, _LONGEST_WAIT_S))
        finally:
            self._waiting.release()

    def _play(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            first = self._first(frames, context)
            if first is None:
                return
            request, _ = _read_request(first)
            if isinstance(request, messages.Hello):
                yield from self._serve_tables(request, frames, context)
            elif isinstance(request, messages.Join):
                yield from self._serve_camp(request, frames)
            else:
                raise WireError("a stream begins with hello or join")
        except grpc.RpcError:
            return  # the client is gone
        except Exception as error:
            abort(context, error)

    def _first(self, frames: Iterator[bytes], context: Any) -> bytes | None:
        """The first request of a call; None if it ends without one."""
        self._strangers.add(context, context.cancel)
        try:
            return next(frames, None)
        finally:
            self._strangers.remove(context)

    def _serve_tables(self, hello: messages.Hello, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        require_protocol(hello.protocol)
        self._require_ready()
        with self._room_for(hello.tables), ExitStack() as ending:
            try:
                source = self._game.chosen(hello.game, hello.options)
                _ = source.spec  # options that the game does not take may show only now
            except (ValueError, TypeError) as error:
                raise RequestRefused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
            if not hello.tables:
                yield self._welcome(source)
                if next(frames, None) is not None:
                    raise WireError("hello has asked for no tables")
                return
            peer = context.peer().partition(":")[2]
            tables = ServedTables(source, hello.tables, lambda why: self._tell(f"{peer}: {why}"))
            ending.callback(self._tell, f"{peer}: gone")
            ending.callback(tables.close)
            self._tell(f"{peer}: has {hello.tables} table{'s' * (hello.tables > 1)}")
            offered = None if self._shortcuts is None else ending.enter_context(self._shortcuts.offer())
            yield self._welcome(source, pictures=tables.has_pictures, shortcut=offered)
            for frame in frames:
                request, body = _read_request(frame)
                if isinstance(request, messages.Switch):
                    return self._serve_by_shortcut(offered, tables, context)
                yield tables.answer(request, body)

    def _serve_by_shortcut(self, offered: messages.Shortcut | None, tables: ServedTables, context: Any) -> None:
        """Serve until the client closes the shortcut, or its stream ends."""
        if self._shortcuts is None or offered is None:
            raise WireError("switch without a shortcut")
        shortcut = self._shortcuts.reached(offered)
        if not context.add_callback(shortcut.hang_up):
            return  # it has ended already
        while (frame := shortcut.receive()) is not None:
            answer = tables.answer(*_read_request(frame))
            with suppress(ConnectionError):  # a client that is gone is noticed by `receive`
                shortcut.send(answer)

    def _serve_camp(self, join: messages.Join, frames: Iterator[bytes]) -> Iterator[bytes]:
        require_protocol(join.protocol)
        table = self._matches.table(join.match)
        player = table.join(join.camp)
        try:
            yield self._welcome(table.source)
            while (shown := player.next_view()) is not None:
                yield shown
                frame = next(frames, None)
                if frame is None:
                    return
                request, body = _read_request(frame)
                if not isinstance(request, messages.Step):
                    raise WireError("a camp of a match takes steps only")
                player.decide(body)
        finally:
            player.leave()

    def _welcome(
        self, source: GameSource, *, pictures: bool = False, shortcut: messages.Shortcut | None = None
    ) -> bytes:
        return messages.pack(messages.Welcome(**self._facts(source), pictures=pictures, shortcut=shortcut))

    def _facts(self, source: GameSource) -> dict[str, Any]:
        """The fields of `GameFacts`."""
        spec, bots = spec_to_json(source.spec), list(source.bots())
        return {"protocol": messages.PROTOCOL, "server": SERVER, "game": self._game.name, "spec": spec, "bots": bots}

    @contextmanager
    def _room_for(self, num_tables: int) -> Iterator[None]:
        most = self._config.tables_max
        if num_tables < 0:
            raise WireError(f"{num_tables} tables")
        with self._lock:
            if self._clients >= self._config.clients_max or self._tables + num_tables > most:
                raise RequestRefused(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"no room for {num_tables} tables: {self._tables} of {most} tables and {self._clients} "
                    f"of {self._config.clients_max} clients are here",
                )
            self._clients += 1
            self._tables += num_tables
        try:
            yield
        finally:
            with self._lock:
                self._clients -= 1
                self._tables -= num_tables
                self._lock.notify_all()

    def _require_ready(self) -> None:
        if (reason := self._why_not_ready()) is not None:
            raise RequestRefused(grpc.StatusCode.UNAVAILABLE, reason)

    def _start_game(self, told: messages.StartRequest) -> messages.MatchResult:
        self._require_ready()
        return self._matches.start(told.match, told.config)

    def _describe(self, _: messages.Nothing) -> messages.Description:
        with self._lock:
            clients, tables = self._clients, self._tables
        return messages.Description(
            **self._facts(self._game.source),
            clients=clients,
            tables=tables,
            tables_max=self._config.tables_max,
            message_bytes=self._config.message_bytes,
            program=self._program_state(),
        )


def _read_request(frame: messages.Frame) -> tuple[messages.AnyRequest, memoryview]:
    header, body = messages.unpack(frame)
    return messages.read_header(header, messages.AnyRequest), body
