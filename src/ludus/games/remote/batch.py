"""The client's side of tables on a game server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec, differences, spec_from_json
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Seat, TableView
from ludus.games.isolation.host import GarbageWatch
from ludus.games.isolation.shared import named_arrays, silence
from ludus.games.remote.connection import PlayStream, ServerAccess, ServerLost, ServerRefused
from ludus.games.remote.frames import SharedView, action_parts, array_parts, read_row_actions, read_view
from ludus.games.remote.messages import (
    PROTOCOL,
    Act,
    Actions as Chosen,
    AnyAnswer,
    ClientRequest,
    Draw,
    Hello,
    Picture,
    Reset,
    Step,
    View,
    Welcome,
)
from ludus.games.seat_rows import GameError
from ludus.system.arrays import WireError

MOST_LOSSES = 20
"""Losses in a row, without an episode that was finished, after which the game is given up."""
_Answer = TypeVar("_Answer", bound=AnyAnswer)
_Read = TypeVar("_Read")
_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.1, 5.0


def greet(access: ServerAccess, game: str, options: Mapping[str, Any], tables: int) -> tuple[PlayStream, Welcome]:
    """Open a stream of play. Raises `ServerRefused` or `ServerLost`."""
    stream = PlayStream(access)
    try:
        answer, _ = stream.ask(Hello(protocol=PROTOCOL, game=game, options=dict(options), tables=tables))
        if not isinstance(answer, Welcome) or answer.protocol != PROTOCOL:
            raise ServerRefused(f"game server {access.server} does not speak protocol {PROTOCOL}")
        stream.switch(answer.shortcut)
    except BaseException:
        stream.close()
        raise
    return stream, answer


def read_spec(welcome: Welcome, server: str) -> GameSpec:
    """The spec that the server describes. Raises `GameError` if it is none."""
    try:
        spec = spec_from_json(welcome.spec)
        for kind in spec.kinds:
            for name, array in kind.observation.arrays.items():
                if array.dtype.kind not in "biuf" or not array.dtype.isnative:
                    raise ValueError(f"{name!r} holds {array.dtype}, which is no number")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise GameError(f"game server {server} describes no game: {error}") from error
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
            raise ServerRefused(
                f"the game on the server {server} is not the one here: {what} is {here} here, {there} there"
            )


class RemoteBatch:
    """A `GameBatch` whose tables are on a server. If the server is gone, silent or restarted, the tables are lost; a
    reset connects again."""

    render: Callable[[int, Seat | None], NDArray[np.uint8]]
    """Only if the game has pictures."""

    def __init__(
        self, access: ServerAccess, game: str, options: Mapping[str, Any], spec: GameSpec, num_tables: int
    ) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self._access, self._game, self._options = access, game, options
        self._shared = SharedView(spec, num_tables)
        self.view: TableView = self._shared.view
        self._garbage = GarbageWatch(spec, self.view)
        self._lost: dict[int, str] = {}
        self._losses = 0
        self._stream: PlayStream | None = None
        try:
            if self._connect().pictures:
                self.render = self._render
        except ServerLost as error:
            raise GameError(str(error)) from error

    @property
    def lost(self) -> Mapping[int, str]:
        return self._lost

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        """Raises `GameError` after `MOST_LOSSES` losses in a row."""
        if self._losses >= MOST_LOSSES:
            reason = next(iter(self._lost.values()), "")
            raise GameError(
                f"{self._game or self.spec.name} on the game server {self._access.server} was lost "
                f"{self._losses} times without finishing an episode, at last: {reason}"
            )
        if self._stream is None and not self._reconnect():
            return
        arrays = array_parts([tables.astype(np.int64), seeds.astype(np.uint64)])
        self._ask(Reset(rows=len(tables)), arrays, View, partial(self._take_view, tables))

    def step(self, actions: Actions) -> None:
        self._ask(Step(), action_parts(actions), View, partial(self._take_view, None))
        if self._losses and (self.view.over.any() or self.view.truncated.any()):
            self._losses = 0

    def bot_act(self, bot: str, tables: IntArray, seats: IntArray, seed: int) -> Tree:
        arrays = [tables.astype(np.int64), seats.astype(np.int64), np.array([seed % 2**64], np.uint64)]
        chosen: Tree | None = None
        if len(tables):
            kind = self.spec.seats[int(seats[0])]
            chosen = self._ask(
                Act(bot=bot, rows=len(tables)),
                array_parts(arrays),
                Chosen,
                lambda _, body: read_row_actions(self.spec, kind, len(tables), body),
            )
        if chosen is None:  # the tables are lost: the actions have no effect, but must be legal
            return RandomBot().act(self, tables, seats, np.random.default_rng(seed % 2**64))
        return chosen

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        picture = self._ask(Draw(table=table, seat=seat), [], Picture, _read_picture)
        if picture is None:
            raise GameError(f"table {table} cannot be drawn, it was lost: {self._lost.get(table)}")
        return picture

    # --- the server ---

    def _connect(self) -> Welcome:
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
        request: ClientRequest,
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
                raise WireError(f"{type(answer).__name__.lower()} to {type(request).__name__.lower()}")
            return read(answer, body)
        except ServerLost as error:
            self._lose(str(error))
        except WireError as error:
            self._lose(f"game server {self._access.server} answered nonsense: {error}")
        return None

    def _take_view(self, tables: IntArray | None, shown: View, body: memoryview) -> None:
        """Take the view of the tables that were reset, or after a step that of all tables."""
        if not all(table.isdecimal() and int(table) < self.num_tables for table in shown.lost):
            raise WireError(f"lost tables are 0 to {self.num_tables - 1}, not {[*shown.lost][:5]}")
        told = {int(table): reason for table, reason in shown.lost.items()}
        # Tables that were lost with an earlier connection and have not been reset since.
        fresh = set() if tables is None or not self._lost else set(tables.tolist())
        waiting = {table: reason for table, reason in self._lost.items() if table not in fresh}
        if len(body) or len(told) < self.num_tables:  # there are no arrays if all tables are lost
            self._take_arrays(tables, body)
        self._losses += not told.keys() <= waiting.keys()
        self._lost = waiting | told
        self._quiet()
        if tables is not None:
            self._garbage.started[tables] = True
        if self._lost:
            self._garbage.started[[*self._lost]] = False
        if (found := self._garbage.find()) is not None:
            raise WireError(found)

    def _take_arrays(self, tables: IntArray | None, body: memoryview) -> None:
        if tables is None or np.array_equal(tables, np.arange(self.num_tables)):
            self._shared.take(body)
            return
        fresh = named_arrays(read_view(self.spec, len(tables), body))
        for name, array in named_arrays(self.view).items():
            array[tables] = fresh[name]

    def _lose(self, reason: str) -> None:
        self.close()
        self._losses += 1
        self._lost = dict.fromkeys(range(self.num_tables), reason)
        self._quiet()

    def _quiet(self) -> None:
        if self._lost:
            silence(self.view, [*self._lost])


def _read_picture(picture: Picture, body: memoryview) -> NDArray[np.uint8]:
    height, width = picture.height, picture.width
    if min(height, width) < 1 or height * width * 3 != len(body):
        raise WireError(f"a picture of {height} x {width} in {len(body)} bytes")
    return np.frombuffer(body, np.uint8).reshape(height, width, 3)
