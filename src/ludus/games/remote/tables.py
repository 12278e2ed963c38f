"""Tables that are elsewhere: behind a game server, or in an engine. Both speak the protocol of docs/game-server.md, and
differ in how their messages travel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec, differences, spec_from_json
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot, require_within_bounds
from ludus.games.game import Actions, Seat, TableView
from ludus.games.isolation.host import GarbageWatch
from ludus.games.remote import messages
from ludus.games.seat_rows import GameError
from ludus.system.arrays import Buffer, WireError

MOST_LOSSES = 20  # losses in a row, without an episode that was finished, after which the game is given up
_Answer = TypeVar("_Answer", bound=messages.AnyAnswer)
_Read = TypeVar("_Read")
_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.1, 5.0


class ServerLost(Exception):  # noqa: N818 - what has happened, as in `CanLoseTables.lost`
    """The server is gone, silent, or has ended the stream. The text says why."""


class StreamEnded(ServerLost):
    """The server has ended the stream in good order."""


class ServerRefused(GameError):  # noqa: N818 - what has happened
    """The server has rejected a request."""


class RequestStream(Protocol):
    """The messages of one set of tables."""

    @property
    def close(self) -> Callable[[], object]: ...

    def ask(
        self, request: messages.ClientRequest, arrays: Sequence[Buffer] = ()
    ) -> tuple[messages.AnyAnswer, memoryview]:
        """The answer; raises `ServerLost`, or `ServerRefused`."""


class TableAccess(Protocol):
    """The way to tables that are elsewhere."""

    @property
    def name(self) -> str:
        """For messages, such as "game server 127.0.0.1:23432"."""

    @property
    def patience_s(self) -> float:
        """How long a reset tries to reach tables that were lost."""

    def greet(self, game: str, options: Mapping[str, Any], tables: int) -> tuple[RequestStream, messages.Welcome]:
        """Open a stream of messages. Raises `ServerRefused` or `ServerLost`."""


def read_frame(name: str, frame: messages.Frame, kind: Any) -> tuple[Any, memoryview]:
    """Header and arrays of a frame; raises `ServerLost` if it is none."""
    try:
        header, body = messages.unpack(frame)
        return messages.read_header(header, kind), body
    except WireError as error:
        raise ServerLost(f"{name} answered nonsense: {error}") from error


def require_welcome(
    name: str, stream: RequestStream, game: str, options: Mapping[str, Any], tables: int
) -> messages.Welcome:
    """Say hello. Raises `ServerRefused` or `ServerLost`."""
    answer, _ = stream.ask(messages.Hello(protocol=messages.PROTOCOL, game=game, options=dict(options), tables=tables))
    if not isinstance(answer, messages.Welcome) or answer.protocol != messages.PROTOCOL:
        raise ServerRefused(f"{name} does not speak protocol {messages.PROTOCOL}")
    return answer


def read_spec(welcome: messages.Welcome, server: str) -> GameSpec:
    """The spec that the server describes. Raises `GameError` if it is none."""
    try:
        spec = spec_from_json(welcome.spec)
        for kind in spec.kinds:
            for name, array in kind.observation.arrays.items():
                if array.dtype.kind not in "biuf" or not array.dtype.isnative:
                    raise ValueError(f"{name!r} holds {array.dtype}, which is no number")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise GameError(f"{server} describes no game: {error}") from error
    return spec


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
            raise ServerRefused(f"the game of the {server} is not the one here: {what} is {here} here, {there} there")


class RemoteBatch:
    """A `GameBatch` whose tables are on a server. If the server is gone or silent, they are lost until a reset."""

    render: Callable[[int, Seat | None], NDArray[np.uint8]]
    """Only if the game has pictures."""

    def __init__(
        self, access: TableAccess, game: str, options: Mapping[str, Any], spec: GameSpec, num_tables: int
    ) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self._access, self._game, self._options = access, game, options
        self._shared = messages.SharedView(spec, num_tables)
        self.view: TableView = self._shared.view
        self._garbage = GarbageWatch(spec, self.view)
        self.lost: dict[int, str] = {}
        self._losses = 0
        self._stream: RequestStream | None = None
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
                f"{self._game or self.spec.name} on the {self._access.name} was lost "
                f"{self._losses} times without finishing an episode, at last: {reason}"
            )
        if self._stream is None and not self._reconnect():
            return
        arrays = messages.array_parts([tables.astype(np.int64), seeds.astype(np.uint64)])
        self._ask(messages.Reset(rows=len(tables)), arrays, messages.View, partial(self._take_view, tables))

    def step(self, actions: Actions) -> None:
        require_within_bounds(self.spec, self.view.to_act, actions)
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
        self._stream, welcome = self._access.greet(self._game, self._options, self.num_tables)
        try:
            require_same(self.spec, read_spec(welcome, self._access.name), self._access.name)
        except BaseException:
            self.close()
            raise
        return welcome

    def _reconnect(self) -> bool:
        """Whether the server is back. Waits for it, with growing pauses."""
        until = time.monotonic() + self._access.patience_s
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
            self._lose(f"{self._access.name} answered nonsense: {error}")
        except ServerRefused:
            raise
        except BaseException:  # such as Ctrl-C: the answer would be taken for that of the next request
            self._lose(f"a request to the {self._access.name} was interrupted")
            raise
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
