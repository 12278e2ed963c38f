"""Tables on a game server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.kind_json import differences, spec_from_json
from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Seat, TableView
from ludus.games.isolation.shared_tables import named_arrays
from ludus.games.remote.frames import WireError
from ludus.games.remote.layout import SharedView, action_parts, in_order, read_row_actions, read_view
from ludus.games.remote.link import Access, PlayStream, Refused, ServerLost
from ludus.games.remote.messages import (
    PROTOCOL,
    Act,
    AnyAnswer,
    Draw,
    Hello,
    Picture,
    Request,
    Reset,
    Step,
    View,
    Welcome,
)
from ludus.games.remote.messages import Actions as Chosen
from ludus.games.seat_rows import GameError

MOST_LOSSES = 20
"""Losses in a row, without an episode that was finished, after which the game is given up."""
_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.1, 5.0


def greet(access: Access, game: str, options: Mapping[str, Any], tables: int) -> tuple[PlayStream, Welcome]:
    """A stream of play that has begun; raises `Refused` or `ServerLost`."""
    stream = PlayStream(access)
    try:
        answer, _ = stream.ask(Hello(protocol=PROTOCOL, game=game, options=dict(options), tables=tables))
        if not isinstance(answer, Welcome) or answer.protocol != PROTOCOL:
            raise Refused(f"game server {access.server} does not speak protocol {PROTOCOL}")
    except BaseException:
        stream.close()
        raise
    return stream, answer


def read_spec(welcome: Welcome, server: str) -> GameSpec:
    """What the server says that its game is like; raises `GameError` if that is no game."""
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
    """Raises `Refused` with the first difference."""
    if own == theirs:
        return
    facts = ("name", "seats", "teams", "max_length", "zero_sum", "reward_is_score", "timed")
    found = {name: (getattr(own, name), getattr(theirs, name)) for name in facts}
    for mine, other in zip(own.kinds, theirs.kinds, strict=False):
        found |= {f"{path} of {mine.name!r}": pair for path, pair in differences(mine, other).items()}
        found[f"the name of kind {mine.name!r}"] = (mine.name, other.name)
    for what, (here, there) in found.items():
        if here != there:
            raise Refused(
                f"the game on the server {server} is not the one here: {what} is {here} here, {there} there"
            )


class RemoteBatch:
    """A `GameBatch` whose tables are on a server. If that is gone, silent or started anew, its tables are
    lost; a reset connects again."""

    render: Callable[[int, Seat | None], NDArray[np.uint8]]
    """Only if the game has pictures."""

    def __init__(
        self, access: Access, game: str, options: Mapping[str, Any], spec: GameSpec, num_tables: int
    ) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self._access, self._game, self._options = access, game, options
        self._shared = SharedView(spec, num_tables)
        self.view: TableView = self._shared.view
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
        """Raises `GameError` if the game or its server is lost again and again."""
        if self._losses >= MOST_LOSSES:
            reason = next(iter(self._lost.values()), "")
            raise GameError(
                f"{self._game or self.spec.name} on the game server {self._access.server} was lost "
                f"{self._losses} times without finishing an episode, at last: {reason}"
            )
        if self._stream is None and not self._reconnect():
            return
        arrays = in_order([tables.astype(np.int64), seeds.astype(np.uint64)])
        body = self._view_after(Reset(rows=len(tables)), arrays)
        if body is None:
            return
        if len(tables) == self.num_tables and np.array_equal(tables, np.arange(self.num_tables)):
            self._shared.take(body)
        else:
            fresh = named_arrays(read_view(self.spec, len(tables), body))
            for name, array in named_arrays(self.view).items():
                array[tables] = fresh[name]
        self._quiet()

    def step(self, actions: Actions) -> None:
        if self._stream is None:
            return
        body = self._view_after(Step(), action_parts(actions))
        if body is None:
            return
        self._shared.take(body)
        self._quiet()
        if self._losses and (self.view.over.any() or self.view.truncated.any()):
            self._losses = 0

    def bot_act(self, bot: str, tables: IntArray, seats: IntArray, seed: int) -> Tree:
        arrays = [tables.astype(np.int64), seats.astype(np.int64), np.array([seed % 2**64], np.uint64)]
        answered = (
            self._ask(Act(bot=bot, rows=len(tables)), in_order(arrays), Chosen) if len(tables) else None
        )
        if answered is None:  # nothing comes of it at tables that are lost, but it must be legal
            return RandomBot().act(self, tables, seats, np.random.default_rng(seed % 2**64))
        return read_row_actions(self.spec, self.spec.seats[int(seats[0])], len(tables), answered[1])

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        answered = self._ask(Draw(table=table, seat=seat), [], Picture)
        if answered is None:
            raise GameError(f"table {table} cannot be drawn, it was lost: {self._lost.get(table)}")
        picture, body = answered
        assert isinstance(picture, Picture)
        return np.frombuffer(body, np.uint8).reshape(picture.height, picture.width, 3)

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
        """Whether the server is back; waits for it as long as for an answer, with growing pauses."""
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
        self, request: Request, arrays: list[Any], kind: type[AnyAnswer]
    ) -> tuple[AnyAnswer, memoryview] | None:
        """None if the server was lost over it."""
        if self._stream is None:
            return None
        try:
            answer, body = self._stream.ask(request, arrays)
            if not isinstance(answer, kind):
                raise ServerLost(f"game server {self._access.server} answered {type(answer).__name__}")
            return answer, body
        except ServerLost as error:
            self._lose(str(error))
        except WireError as error:
            self._lose(f"game server {self._access.server} answered nonsense: {error}")
        return None

    def _view_after(self, request: Request, arrays: list[Any]) -> memoryview | None:
        """The arrays of the answered view; None if there are none because all tables are lost."""
        answered = self._ask(request, arrays, View)
        if answered is None:
            return None
        view, body = answered
        assert isinstance(view, View)
        waiting = self._waiting(request, arrays)
        told = {int(table): reason for table, reason in view.lost.items()}
        self._losses += not told.keys() <= waiting.keys()
        self._lost = waiting | told
        if not len(body):
            self._quiet()
            return None
        return body

    def _waiting(self, request: Request, arrays: list[Any]) -> dict[int, str]:
        """Tables that were lost with an earlier connection and have not been reset since."""
        if not self._lost:
            return {}
        fresh = set(arrays[0].tolist()) if isinstance(request, Reset) and arrays else set()
        return {table: reason for table, reason in self._lost.items() if table not in fresh}

    def _lose(self, reason: str) -> None:
        self.close()
        self._losses += 1
        self._lost = dict.fromkeys(range(self.num_tables), reason)
        self._quiet()

    def _quiet(self) -> None:
        """At tables that are lost nobody acts and nothing happens, whatever was written there last."""
        if not self._lost:
            return
        view, tables = self.view, [*self._lost]
        view.to_act[tables] = view.over[tables] = view.truncated[tables] = False
        for reward in (view.reward, *view.rewards):
            reward[tables] = 0.0
