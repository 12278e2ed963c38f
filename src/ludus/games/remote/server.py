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
from ludus.games.remote.frames import Frame, pack, read_header, unpack
from ludus.games.remote.matches import ServerMatches
from ludus.games.remote.messages import (
    CHANNEL_OPTIONS,
    DEFAULT_PORT,
    MESSAGE_BYTES,
    PROTOCOL,
    SERVICE,
    AnyRequest,
    Description,
    ExistsAnswer,
    Hello,
    Join,
    MatchList,
    MatchRequest,
    MatchResult,
    Nothing,
    Shortcut,
    StartRequest,
    Step,
    Switch,
    Welcome,
)
from ludus.games.remote.served_tables import SERVER, RequestRefused, ServedTables, abort, require_protocol
from ludus.games.remote.shortcut import Shortcuts, listen
from ludus.system.arrays import WireError


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
    port: int = DEFAULT_PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    tls: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """Private key and certificate chain, both PEM."""
    tables_max: int = 4096
    clients_max: int = 128
    matches_max: int = 64
    message_bytes: int = MESSAGE_BYTES


_KEEPALIVE_MS = 30_000
"""A client whose machine has crashed is noticed after this long."""
_STOPPING_S = 5.0


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
        # A match thread or a stream of play holds a thread for as long as it lasts; calls need some more.
        self._threads = ThreadPoolExecutor(config.clients_max + 32, "client")
        self._server = grpc.server(
            self._threads,
            handlers=[_Methods(self)],
            options=[
                ("grpc.max_receive_message_length", config.message_bytes),
                ("grpc.max_send_message_length", config.message_bytes),
                ("grpc.so_reuseport", 0),  # a second server at the same port must fail
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                *CHANNEL_OPTIONS,
            ],
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

    def handler(self, method: str) -> grpc.RpcMethodHandler | None:
        if method == "Play":
            return grpc.stream_stream_rpc_method_handler(self._play)
        call = self._calls.get(method)
        return None if call is None else grpc.unary_unary_rpc_method_handler(partial(self._call, call))

    def _call(self, call: tuple[Any, Callable[..., msgspec.Struct]], frame: bytes, context: Any) -> bytes:
        kind, answer = call
        try:
            self._require_token(context)
            header, _ = unpack(frame)
            return pack(answer(self, read_header(header, kind)))
        except Exception as error:
            abort(context, error)

    def _play(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            self._require_token(context)
            first = next(frames, None)
            if first is None:
                return
            request, _ = _read_request(first)
            if isinstance(request, Hello):
                yield from self._serve_tables(request, frames, context)
            elif isinstance(request, Join):
                yield from self._serve_camp(request, frames)
            else:
                raise WireError("a stream begins with hello or join")
        except grpc.RpcError:
            return  # the client is gone
        except Exception as error:
            abort(context, error)

    def _serve_tables(self, hello: Hello, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        require_protocol(hello.protocol)
        self._require_ready()
        source = _made(self._game, hello.game, hello.options)
        with self._room_for(hello.tables), ExitStack() as ending:
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
                if isinstance(request, Switch):
                    return self._serve_by_shortcut(offered, tables, context)
                yield tables.answer(request, body)

    def _serve_by_shortcut(self, offered: Shortcut | None, tables: ServedTables, context: Any) -> None:
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

    def _serve_camp(self, join: Join, frames: Iterator[bytes]) -> Iterator[bytes]:
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
                if not isinstance(request, Step):
                    raise WireError("a camp of a match takes steps only")
                player.decide(body)
        finally:
            player.leave()

    def _welcome(self, source: GameSource, *, pictures: bool = False, shortcut: Shortcut | None = None) -> bytes:
        return pack(
            Welcome(
                protocol=PROTOCOL,
                server=SERVER,
                game=self._game.name,
                spec=spec_to_json(source.spec),
                bots=list(source.bots()),
                pictures=pictures,
                shortcut=shortcut,
            )
        )

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

    def _require_token(self, context: Any) -> None:
        if self._config.token is None:
            return
        told = dict(context.invocation_metadata()).get("authorization", "")
        if not hmac.compare_digest(told.encode(), f"Bearer {self._config.token}".encode()):
            why = "this is not its token" if told else "it wants a token: name a file with it in LUDUS_GAME_TOKEN_FILE"
            raise RequestRefused(grpc.StatusCode.UNAUTHENTICATED, why)

    def _start_game(self, told: StartRequest) -> MatchResult:
        self._require_ready()
        return self._matches.start(told.match, told.config)

    def _describe(self, _: Nothing) -> Description:
        source = self._game.source
        with self._lock:
            clients, tables = self._clients, self._tables
        return Description(
            protocol=PROTOCOL,
            server=SERVER,
            game=self._game.name,
            spec=spec_to_json(source.spec),
            bots=list(source.bots()),
            clients=clients,
            tables=tables,
            tables_max=self._config.tables_max,
            message_bytes=self._config.message_bytes,
            program=self._program_state(),
        )

    _calls: Mapping[str, tuple[Any, Callable[..., msgspec.Struct]]] = {
        "Describe": (Nothing, _describe),
        "StartGame": (StartRequest, _start_game),
        "StopGame": (MatchRequest, lambda self, told: self._matches.stop(told.match)),
        "Exists": (MatchRequest, lambda self, told: ExistsAnswer(self._matches.exists(told.match))),
        "WaitGame": (MatchRequest, lambda self, told: self._matches.wait(told.match, told.seconds)),
        "Result": (MatchRequest, lambda self, told: self._matches.result(told.match)),
        "List": (Nothing, lambda self, _: MatchList(self._matches.all())),
    }


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes requests and answers on as bytes, because frames are read and written by hand."""

    def __init__(self, server: GameServer) -> None:
        self._server = server

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        service, _, method = details.method.removeprefix("/").rpartition("/")
        return self._server.handler(method) if service == SERVICE else None


def _read_request(frame: Frame) -> tuple[AnyRequest, memoryview]:
    header, body = unpack(frame)
    return read_header(header, AnyRequest), body


def _made(game: ServedGame, name: str, options: Mapping[str, Any]) -> GameSource:
    try:
        source = game.chosen(name, options)
        _ = source.spec  # options that the game does not take may show only now
        return source
    except (ValueError, TypeError) as error:
        raise RequestRefused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
