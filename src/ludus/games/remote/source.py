"""Games on a server: `Remote`, their `GameSource`, such as `remote://HOST:PORT/GAME?option=value`, and its tables."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import TreeState
from ludus.data.specs import GameSpec, differences
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot, hosted_bots
from ludus.games.catalog import REMOTE, SERVER_VARIABLE
from ludus.games.game import Actions, Bot, GameBatch, GameSource, Seat, TableView
from ludus.games.isolation.host import GarbageWatch
from ludus.games.isolation.isolated import Isolated, is_plain, own_options
from ludus.games.recording import innermost
from ludus.games.remote import messages
from ludus.games.remote.client import PlayStream, ServerAccess, ServerLost, ServerRefused, greet, read_spec
from ludus.games.seat_rows import GameError
from ludus.games.tables import change_innermost
from ludus.system.arrays import WireError

MOST_LOSSES = 20  # losses in a row, without an episode that was finished, after which the game is given up
_Answer = TypeVar("_Answer", bound=messages.AnyAnswer)
_Read = TypeVar("_Read")
_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.1, 5.0
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")  # excludes addresses of code, and paths out of the folder of the game


def require_same(own: GameSpec, theirs: GameSpec, server: str) -> None:
    """Raises `ServerRefused` with the first difference."""
    if own == theirs:
        return
    facts = ("name", "seats", "teams", "max_length", "zero_sum", "reward_is_score", "timed")
    found = {name: (getattr(own, name), getattr(theirs, name)) for name in facts}
    for mine, other in zip(own.kinds, theirs.kinds, strict=False):
        found |= {f"{path} of {mine.name!r}": pair for path, pair in differences(mine, other).items()}
        found[f"the name of kind {mine.name!r}"] = (mine.name, other.name)
    for what, (here, there) in found.items():
        if here != there:
            raise ServerRefused(
                f"the game on the server {server} is not the one here: {what} is {here} here, {there} there"
            )


class RemoteBatch:
    """A `GameBatch` whose tables are on a server. If the server is gone or silent, they are lost until a reset."""

    render: Callable[[int, Seat | None], NDArray[np.uint8]]
    """Only if the game has pictures."""

    def __init__(
        self, access: ServerAccess, game: str, options: Mapping[str, Any], spec: GameSpec, num_tables: int
    ) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self._access, self._game, self._options = access, game, options
        self._shared = messages.SharedView(spec, num_tables)
        self.view: TableView = self._shared.view
        self._garbage = GarbageWatch(spec, self.view)
        self.lost: dict[int, str] = {}
        self._losses = 0
        self._stream: PlayStream | None = None
        try:
            if self._connect().pictures:
                self.render = self._render
        except ServerLost as error:
            raise GameError(str(error)) from error

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        """Raises `GameError` after `MOST_LOSSES` losses in a row."""
        if self._losses >= MOST_LOSSES:
            reason = next(iter(self.lost.values()), "")
            raise GameError(
                f"{self._game or self.spec.name} on the game server {self._access.server} was lost "
                f"{self._losses} times without finishing an episode, at last: {reason}"
            )
        if self._stream is None and not self._reconnect():
            return
        arrays = messages.array_parts([tables.astype(np.int64), seeds.astype(np.uint64)])
        self._ask(messages.Reset(rows=len(tables)), arrays, messages.View, partial(self._take_view, tables))

    def step(self, actions: Actions) -> None:
        self._ask(messages.Step(), messages.action_parts(actions), messages.View, partial(self._take_view, None))
        if self._losses and (self.view.over.any() or self.view.truncated.any()):
            self._losses = 0

    def bot_act(self, bot: str, tables: IntArray, seats: IntArray, seed: int) -> Tree:
        arrays = [tables.astype(np.int64), seats.astype(np.int64), np.array([seed % 2**64], np.uint64)]
        chosen: Tree | None = None
        if len(tables):
            kind = self.spec.seats[int(seats[0])]
            chosen = self._ask(
                messages.Act(bot=bot, rows=len(tables)),
                messages.array_parts(arrays),
                messages.ChosenActions,
                lambda _, body: messages.read_row_actions(self.spec, kind, len(tables), body),
            )
        if chosen is None:  # the tables are lost: the actions have no effect, but must be legal
            return RandomBot().act(self, tables, seats, np.random.default_rng(seed % 2**64))
        return chosen

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        picture = self._ask(messages.Draw(table=table, seat=seat), [], messages.Picture, _read_picture)
        if picture is None:
            raise GameError(f"table {table} cannot be drawn, it was lost: {self.lost.get(table)}")
        return picture

    # --- the server ---

    def _connect(self) -> messages.Welcome:
        self._stream, welcome = greet(self._access, self._game, self._options, self.num_tables)
        try:
            require_same(self.spec, read_spec(welcome, self._access.server), self._access.server)
        except BaseException:
            self.close()
            raise
        return welcome

    def _reconnect(self) -> bool:
        """Whether the server is back. Waits for it up to the timeout, with growing pauses."""
        until = time.monotonic() + self._access.timeout_s
        pause = _BACK_OFF_S
        while True:
            try:
                self._connect()
                return True
            except ServerLost as error:
                reason = str(error)
            if time.monotonic() + pause > until:
                self._lose(reason)
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_BACK_OFF_S)

    def _ask(
        self,
        request: messages.ClientRequest,
        arrays: list[Any],
        kind: type[_Answer],
        read: Callable[[_Answer, memoryview], _Read],
    ) -> _Read | None:
        """The answer as `read` returns it; None if the server is lost."""
        if self._stream is None:
            return None
        try:
            answer, body = self._stream.ask(request, arrays)
            if not isinstance(answer, kind):
                raise WireError(f"{answer.__struct_config__.tag} to {request.__struct_config__.tag}")
            return read(answer, body)
        except ServerLost as error:
            self._lose(str(error))
        except WireError as error:
            self._lose(f"game server {self._access.server} answered nonsense: {error}")
        return None

    def _take_view(self, tables: IntArray | None, shown: messages.View, body: memoryview) -> None:
        """Take the view of the tables that were reset, or after a step that of all tables."""
        if not all(table.isdecimal() and int(table) < self.num_tables for table in shown.lost):
            raise WireError(f"lost tables are 0 to {self.num_tables - 1}, not {[*shown.lost][:5]}")
        told = {int(table): reason for table, reason in shown.lost.items()}
        # Tables that were lost with an earlier connection and have not been reset since.
        fresh = set() if tables is None or not self.lost else set(tables.tolist())
        waiting = {table: reason for table, reason in self.lost.items() if table not in fresh}
        if len(body) or len(told) < self.num_tables:  # there are no arrays if all tables are lost
            if tables is None or np.array_equal(tables, np.arange(self.num_tables)):
                self._shared.take(body)
            else:
                new = messages.read_view(self.spec, len(tables), body).named()
                for name, array in self.view.named().items():
                    array[tables] = new[name]
        self._losses += not told.keys() <= waiting.keys()
        self.lost = waiting | told
        if tables is not None:
            self._garbage.started[tables] = True
        if self.lost:
            self.view.silence([*self.lost])
            self._garbage.started[[*self.lost]] = False
        if (found := self._garbage.find()) is not None:
            raise WireError(found)

    def _lose(self, reason: str) -> None:
        self.close()
        self._losses += 1
        self.lost = dict.fromkeys(range(self.num_tables), reason)
        self.view.silence([*self.lost])


def _read_picture(picture: messages.Picture, body: memoryview) -> NDArray[np.uint8]:
    height, width = picture.height, picture.width
    if min(height, width) < 1 or height * width * 3 != len(body):
        raise WireError(f"a picture of {height} x {width} in {len(body)} bytes")
    return np.frombuffer(body, np.uint8).reshape(height, width, 3)


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
        server = self.server or os.environ.get(SERVER_VARIABLE)
        if not server:
            raise GameError(f"this game is on a game server: say where with {SERVER_VARIABLE}=HOST:PORT")
        return ServerAccess(server=server, token_file=self.token_file, ca_file=self.ca_file, timeout_s=self.timeout_s)

    @cached_property
    def spec(self) -> GameSpec:
        return read_spec(self._welcome, self.access.server) if self.local is None else self.local.spec

    def tables(self, num_tables: int) -> GameBatch:
        return RemoteBatch(self.access, self.game, self.options, self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        names = self._welcome.bots if self.local is None else [*self.local.bots()]
        return hosted_bots(names)

    def tree(self) -> TreeState | None:
        return None if self.local is None else self.local.tree()

    def require_same(self) -> None:
        """Raises `GameError` if the game of the server is another one."""
        require_same(self.spec, read_spec(self._welcome, self.access.server), self.access.server)

    @cached_property
    def _welcome(self) -> messages.Welcome:
        try:
            stream, welcome = greet(self.access, self.game, self.options, tables=0)
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
