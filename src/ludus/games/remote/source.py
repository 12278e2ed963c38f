"""Games on a server: `Remote`, their `GameSource`, such as `remote://HOST:PORT/GAME?option=value`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ludus.data.game_tree import TreeState
from ludus.data.specs import GameSpec
from ludus.games.bots import hosted_bots
from ludus.games.catalog import REMOTE, SERVER_VARIABLE
from ludus.games.game import Bot, GameBatch, GameSource
from ludus.games.isolation.isolated import Isolated, is_plain, own_options
from ludus.games.recording import innermost
from ludus.games.remote import messages
from ludus.games.remote.tables import RemoteBatch, ServerLost, ServerRefused, read_spec, require_same
from ludus.games.seat_rows import GameError
from ludus.games.tables import change_innermost
from ludus.system.machine import install_command

if TYPE_CHECKING:
    from ludus.games.remote.client import ServerAccess

_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")  # excludes addresses of code, and paths out of the folder of the game


def plain_options(source: GameSource) -> dict[str, Any]:
    """Every option of the game that is a plain value; tuples become lists, as in JSON."""
    source = innermost(source)
    options = source.options if isinstance(source, Isolated) else own_options(source)
    plain = {name: value for name, value in options.items() if is_plain(value) and not isinstance(value, Mapping)}
    listed: dict[str, Any] = msgspec.to_builtins(plain)
    return listed


def with_client_options(
    source: GameSource, options: Mapping[str, Any], change: Callable[[GameSource, Mapping[str, Any]], GameSource]
) -> GameSource:
    """The game with the options of a client. Raises ValueError for those that a client may not set; options that
    already have the value are ignored. `change` sets options of a game and checks their types."""
    own = plain_options(source)
    changed = {name: value for name, value in options.items() if name not in own or own[name] != value}
    for name, value in changed.items():
        _require_harmless(name, value)

    def with_options(game: GameSource) -> GameSource:
        if isinstance(game, Isolated):
            return replace(game, options={**game.options, **changed})
        return change(game, changed)

    return change_innermost(source, with_options) if changed else source


def _require_harmless(name: str, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _require_harmless(name, item)
    elif isinstance(value, str):
        if not _WORD.fullmatch(value):
            raise ValueError(
                f"option {name!r}: clients may set numbers and plain words, not {value[:80]!r}; "
                f"start the server with --set {name}=..."
            )
    elif value is not None and not isinstance(value, bool | int | float):
        raise ValueError(f"option {name!r}: clients may set numbers and plain words only")


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A game whose tables are on a server, with its bots beside them."""

    server: str | None = None
    """HOST:PORT; None: what LUDUS_GAME_SERVER says, so that a run can go on with another server."""
    game: str = ""
    """As the server names it; empty: the one that it plays."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the game; plain values."""
    token_file: str | None = None
    ca_file: str | None = None
    timeout_s: float = 60.0
    """How long the server may take for an answer, and to come back after it was lost."""
    local: GameSource | None = None
    """The same game on this machine, whose spec and tree are used; the game of the server must agree with it."""

    def __post_init__(self) -> None:
        if self.server is not None:
            _ = self.access  # raises for a bad address

    @property
    def access(self) -> ServerAccess:
        try:  # only those who play on a server need gRPC
            from ludus.games.remote.client import ServerAccess
        except ModuleNotFoundError as error:
            if error.name != "grpc":
                raise
            raise GameError(f"a game on a server needs 'grpcio'; {install_command('server')} adds it") from error
        server = self.server or os.environ.get(SERVER_VARIABLE)
        if not server:
            raise GameError(f"this game is on a game server: say where with {SERVER_VARIABLE}=HOST:PORT")
        return ServerAccess(server=server, token_file=self.token_file, ca_file=self.ca_file, timeout_s=self.timeout_s)

    @cached_property
    def spec(self) -> GameSpec:
        return read_spec(self._welcome, self.access.name) if self.local is None else self.local.spec

    def tables(self, num_tables: int) -> GameBatch:
        return RemoteBatch(self.access, self.game, self.options, self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        names = self._welcome.bots if self.local is None else [*self.local.bots()]
        return hosted_bots(names)

    def tree(self) -> TreeState | None:
        return None if self.local is None else self.local.tree()

    def require_same(self) -> None:
        """Raises `GameError` if the game of the server is another one."""
        require_same(self.spec, read_spec(self._welcome, self.access.name), self.access.name)

    @cached_property
    def _welcome(self) -> messages.Welcome:
        try:
            stream, welcome = self.access.greet(self.game, self.options, tables=0)
        except ServerLost as error:
            raise GameError(f"{error}; `ludus serve GAME` starts one") from error
        stream.close()
        return welcome


def at_server(game: GameSource) -> GameSource:
    """The same game at the server that LUDUS_GAME_SERVER names. A game that is on a server stays there."""
    if isinstance(game, Remote):
        return game
    try:
        _ = game.spec
    except ImportError:
        return Remote(options=plain_options(game))  # its library is where the server is
    remote = Remote(options=plain_options(game), local=game)
    try:
        remote.require_same()
    except ServerRefused as error:
        plays = Remote()._welcome.game
        raise GameError(f"{error} (it plays {plays!r}; here it is {game.spec.name!r})") from error
    return remote


def from_address(address: str, **options: Any) -> Remote:
    """The game at `remote://HOST[:PORT][/GAME][?option=value&...]`. Values are JSON, or else texts."""
    parts = urlsplit(address)
    if not address.startswith(REMOTE) or not parts.hostname or parts.username is not None or parts.fragment:
        raise ValueError(f"{address!r} is no game on a server: write remote://HOST:PORT/GAME?option=value")
    try:
        port = parts.port or messages.DEFAULT_PORT
    except ValueError as error:
        raise ValueError(f"{address!r}: {error}") from error
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    asked = {name: _value(text) for name, text in parse_qsl(parts.query, keep_blank_values=True)}
    return Remote(server=f"{host}:{port}", game=unquote(parts.path.removeprefix("/")), options={**asked, **options})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
