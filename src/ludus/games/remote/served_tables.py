"""The tables of one client on a game server, and the errors of its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import grpc
import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import IntArray
from ludus.games.bots import RandomBot, act_among
from ludus.games.game import CanLoseTables, GameBatch, GameSource, HasPicture
from ludus.games.remote import messages
from ludus.games.remote.matches import MatchRefused, UnknownServerMatch
from ludus.system.arrays import WireError
from ludus.system.machine import installed_version


class ServedTables:
    """The tables of one stream. If the game raises, the client loses them with the reason; `reset` makes new ones."""

    def __init__(self, source: GameSource, num_tables: int, tell: Callable[[str], None] = lambda line: None) -> None:
        """`tell` gets the reasons for lost tables."""
        self._tell = tell
        self._told: set[str] = set()
        self._source = source
        self._spec = source.spec
        self._num_tables = num_tables
        self._bots = source.bots()
        self._actions = messages.SharedActions(source.spec, num_tables)
        self._rng = np.random.default_rng(0)
        self._lost: dict[int, str] = {}
        self._batch: GameBatch | None = None
        self._open()

    @property
    def has_pictures(self) -> bool:
        return isinstance(self._batch, HasPicture)

    def answer(self, request: messages.AnyRequest, body: memoryview) -> bytes:
        """Raises `WireError` for a wrong request."""
        if isinstance(request, messages.Step):
            self._step(body)
            return self._view(None)
        if isinstance(request, messages.Reset):
            if not 0 <= request.rows <= self._num_tables:
                raise WireError(f"reset of {request.rows} tables; there are {self._num_tables}")
            tables, seeds = messages.read_integers(body, tables=request.rows, seeds=request.rows)
            self._require_tables(tables)
            self._reset(tables, seeds.astype(np.uint64))
            return self._view(tables)
        if isinstance(request, messages.Act):
            return self._act(request, body)
        if isinstance(request, messages.Draw):
            return self._draw(request)
        raise WireError(f"{type(request).__name__.lower()} comes first or not at all")

    def close(self) -> None:
        if self._batch is not None:
            with suppress(Exception):  # the game is given up in any case
                self._batch.close()
            self._batch = None

    def _open(self) -> None:
        self._batch = self._source.tables(self._num_tables)
        self._losing = self._batch if isinstance(self._batch, CanLoseTables) else None
        self._begun = False
        arrays = self._batch.view.named().values()
        self._whole = messages.array_parts(arrays) if all(array.flags.c_contiguous for array in arrays) else None
        """The parts of a frame with all tables; None if the arrays must be copied."""
        self._parked = np.ones(self._num_tables, np.bool_)
        """Tables that the client has not reset since the batch was made. They are played at random."""

    def _reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        try:
            if self._batch is None:
                self._open()
            assert self._batch is not None
            if not self._begun:
                rest = np.setdiff1d(np.arange(self._num_tables), tables)
                if len(rest):
                    self._batch.reset(rest, np.zeros(len(rest), np.uint64))
                self._begun = True
            self._batch.reset(tables, seeds)
        except Exception as error:
            self._fail(error)
            return
        self._parked[tables] = False
        for table in tables.tolist():
            self._lost.pop(table, None)

    def _step(self, body: memoryview) -> None:
        self._actions.take(body)
        if self._batch is None or not self._begun:
            return
        try:
            if self._parked.any():
                act_among(RandomBot(), self._batch, self._parked[:, None], self._rng, self._actions.actions)
            self._batch.step(self._actions.actions)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.close()
        reason = f"raised: {type(error).__name__}: {' '.join(str(error).split())}"
        self._lost = dict.fromkeys(range(self._num_tables), reason)

    def _view(self, tables: IntArray | None) -> bytes:
        lost: Mapping[int, str] = self._lost
        if self._losing is not None and self._batch is not None and self._losing.lost:
            lost = {**lost, **self._losing.lost}
        if lost and (news := set(lost.values()) - self._told):
            for reason in news:
                self._tell(f"lost tables: {reason}")
        self._told = set(lost.values()) if lost else set()
        shown = messages.View(lost={str(table): reason for table, reason in lost.items()})
        if self._batch is None:
            return messages.pack(shown)
        if tables is None and self._whole is not None:
            return messages.pack(shown, self._whole)
        return messages.pack(shown, messages.view_parts(self._batch.view, tables))

    def _act(self, request: messages.Act, body: memoryview) -> bytes:
        bot = self._bots.get(request.bot)
        if bot is None:
            raise WireError(f"there is no bot {request.bot!r}; there are {', '.join(sorted(self._bots))}")
        most = self._num_tables * self._spec.num_seats
        if not 1 <= request.rows <= most:
            raise WireError(f"a bot acts for 1 to {most} rows, not {request.rows}")
        tables, seats, seeds = messages.read_integers(body, tables=request.rows, seats=request.rows, seeds=1)
        self._require_tables(tables)
        if seats.min() < 0 or seats.max() >= self._spec.num_seats:
            raise WireError(f"seats are 0 to {self._spec.num_seats - 1}")
        kinds = {self._spec.seats[seat] for seat in seats.tolist()}
        if len(kinds) > 1:
            raise WireError("a bot acts for seats of one kind at a time")
        if self._batch is None:
            raise WireError("the tables are lost: reset them first")
        chosen = bot.act(self._batch, tables, seats, np.random.default_rng(int(seeds[0])))
        arrays = self._spec.kinds[kinds.pop()].action.arrays
        ordered = (chosen[head].astype(array.dtype, copy=False) for head, array in arrays.items())
        return messages.pack(messages.ChosenActions(), messages.array_parts(ordered))

    def _draw(self, request: messages.Draw) -> bytes:
        batch: object = self._batch
        if not isinstance(batch, HasPicture):
            raise WireError("the tables of this game cannot be drawn now")
        seats = [None, *range(self._spec.num_seats)]
        if not 0 <= request.table < self._num_tables or request.seat not in seats:
            raise WireError(f"there is no table {request.table} with a seat {request.seat}")
        picture = np.ascontiguousarray(batch.render(request.table, request.seat), np.uint8)
        return messages.pack(messages.Picture(height=picture.shape[0], width=picture.shape[1]), [picture.reshape(-1)])

    def _require_tables(self, tables: IntArray) -> None:
        if len(tables) and (tables.min() < 0 or tables.max() >= self._num_tables):
            raise WireError(f"tables are 0 to {self._num_tables - 1}")


SERVER = f"ludus {installed_version()}"
_LONGEST_REASON = 1_000  # gRPC limits the metadata of an answer to a few thousand bytes


_CODES = {
    UnknownServerMatch: grpc.StatusCode.NOT_FOUND,
    MatchRefused: grpc.StatusCode.FAILED_PRECONDITION,
    messages.TooLongError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    WireError: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Status of an error: that of the first class that fits."""


class RequestRefused(Exception):  # noqa: N818 - no error of ours
    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def require_protocol(spoken: int) -> None:
    if spoken != messages.PROTOCOL:
        raise RequestRefused(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"this server speaks protocol {messages.PROTOCOL} ({SERVER}), the client {spoken}: "
            "use the same version of ludus on both sides",
        )


def abort(context: Any, error: Exception) -> NoReturn:
    """End the call with the reason, and reveal nothing else of the server."""
    reason = " ".join(str(error).split())
    found = (code for kind, code in _CODES.items() if isinstance(error, kind))
    code = error.code if isinstance(error, RequestRefused) else next(found, None)
    if code is None:
        code, reason = grpc.StatusCode.ABORTED, f"{type(error).__name__}: {reason}"
    context.abort(code, reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} ...")
    raise error
