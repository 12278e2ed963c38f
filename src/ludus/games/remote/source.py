"""A game on a server, as a `GameSource`: `remote://HOST:PORT/GAME?option=value`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ludus.data.specs import GameSpec
from ludus.data.tree_game import TreeState
from ludus.games.bots import HostedBot, RandomBot
from ludus.games.game import Bot, GameBatch, GameSource
from ludus.games.pointing import REMOTE, SERVER_VARIABLE
from ludus.games.remote.batch import RemoteBatch, greet, read_spec, require_same
from ludus.games.remote.link import Access, Refused, ServerLost
from ludus.games.remote.messages import DEFAULT_PORT, Welcome
from ludus.games.remote.options import plain_options
from ludus.games.seat_rows import GameError


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A game whose tables are on a server, with its bots beside them."""

    server: str | None = None
    """HOST:PORT; None: what LUDUS_GAME_SERVER says, so that a run can go on with another server."""
    game: str = ""
    """As the server names it; empty: whatever it plays."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the game; plain values."""
    token_file: str | None = None
    ca_file: str | None = None
    timeout_s: float = 60.0
    """How long the server may take for an answer, and to come back after it was lost."""
    local: GameSource | None = None
    """The same game as it is here: what it is like is known without asking, its tree is there, and the
    server's must agree with it."""

    def __post_init__(self) -> None:
        if self.server is not None:
            _ = self.access  # says what is wrong with it

    @property
    def access(self) -> Access:
        server = self.server or os.environ.get(SERVER_VARIABLE)
        if not server:
            raise GameError(f"this game is on a game server: say where with {SERVER_VARIABLE}=HOST:PORT")
        return Access(
            server=server, token_file=self.token_file, ca_file=self.ca_file, timeout_s=self.timeout_s
        )

    @cached_property
    def spec(self) -> GameSpec:
        return read_spec(self._welcome, self.access.server) if self.local is None else self.local.spec

    def tables(self, num_tables: int) -> GameBatch:
        return RemoteBatch(self.access, self.game, self.options, self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        names = self._welcome.bots if self.local is None else [*self.local.bots()]
        return {"random": RandomBot(), **{name: HostedBot(name) for name in names if name != "random"}}

    def tree(self) -> TreeState | None:
        return None if self.local is None else self.local.tree()

    def require_same(self) -> None:
        """Ask the server whether its game is the one here; raises `GameError` if not."""
        require_same(self.spec, read_spec(self._welcome, self.access.server), self.access.server)

    @cached_property
    def _welcome(self) -> Welcome:
        try:
            stream, welcome = greet(self.access, self.game, self.options, tables=0)
        except ServerLost as error:
            raise GameError(f"{error}; `ludus serve GAME` starts one") from error
        stream.close()
        return welcome


def at_server(game: GameSource) -> GameSource:
    """The same game at the server that LUDUS_GAME_SERVER names; one that is on a server stays there."""
    if isinstance(game, Remote):
        return game
    try:
        _ = game.spec
    except ImportError:
        return Remote(options=plain_options(game))  # its library is where the server is
    remote = Remote(options=plain_options(game), local=game)
    try:
        remote.require_same()
    except Refused as error:
        plays = Remote()._welcome.game
        raise GameError(f"{error} (it plays {plays!r}; here it is {game.spec.name!r})") from error
    return remote


def from_address(address: str, **options: Any) -> Remote:
    """The game at `remote://HOST[:PORT][/GAME][?option=value&...]`. Values are read as JSON where they are,
    and are texts otherwise."""
    parts = urlsplit(address)
    if not address.startswith(REMOTE) or not parts.hostname or parts.username is not None or parts.fragment:
        raise ValueError(f"{address!r} is no game on a server: write remote://HOST:PORT/GAME?option=value")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise ValueError(f"{address!r}: {error}") from error
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    asked = {name: _value(text) for name, text in parse_qsl(parts.query, keep_blank_values=True)}
    return Remote(
        server=f"{host}:{port}", game=unquote(parts.path.removeprefix("/")), options={**asked, **options}
    )


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
