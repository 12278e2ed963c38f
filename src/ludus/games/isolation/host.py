"""The process in which a game runs: plays the tables it is told to, in shared memory."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import msgspec
import numpy as np

from ludus.data.kind_json import spec_to_json
from ludus.data.shared_memory import Region
from ludus.data.trees import put
from ludus.games.catalog import resolve
from ludus.games.game import Bot, GameBatch, GameSource, HasPicture, HasStrategy
from ludus.games.isolation.display import display
from ludus.games.isolation.garbage import GarbageWatch
from ludus.games.isolation.messages import (
    DONE,
    MESSAGE,
    RESET,
    STEP,
    Draw,
    Failed,
    FromHost,
    Hello,
    Launch,
    Picture,
    ToHost,
)
from ludus.games.isolation.shared_tables import SharedTables, named_arrays
from ludus.games.seat_rows import GameError

_OURS = os.path.dirname(__file__)


def main() -> None:
    """Until the trainer says no more. Standard input is the connection to it; the game gets none."""
    line = Line(Connection(os.dup(0)))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.pop("LUDUS_GAME_SERVER", None)  # the game runs here
    faulthandler.enable()
    launch = line.hear(Launch)
    try:
        with ExitStack() as resources:
            _serve(launch, line, resources)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        kind = "garbage" if isinstance(error, GameError) else "raised"
        with suppress(OSError):  # the trainer may be gone
            line.say(Failed(kind, _in_one_line(error)))
        raise SystemExit(1) from None


class Line:
    """The host's end: single bytes go through pipes once there are some, messages through the connection."""

    def __init__(self, control: Connection) -> None:
        self._control = control
        self._commands = self._answers = control.fileno()

    def take_memory(self) -> Region:
        """What the trainer shares, and with it the pipes."""
        region = Region(self._take())
        self._commands, self._answers = self._take(), self._take()
        return region

    def next_command(self) -> bytes:
        """Empty once the trainer is gone, or has no more use for the game."""
        try:
            return os.read(self._commands, 1)
        except ConnectionError:
            return b""

    def done(self) -> None:
        os.write(self._answers, DONE)

    def say(self, message: FromHost) -> None:
        os.write(self._answers, MESSAGE)
        self._control.send_bytes(msgspec.msgpack.encode(message))

    def hear(self, kind: Any) -> Any:
        return msgspec.msgpack.decode(self._control.recv_bytes(), type=kind)

    def _take(self) -> int:
        fd: int = recv_handle(self._control)
        os.set_inheritable(fd, False)
        return fd


def _serve(launch: Launch, line: Line, resources: ExitStack) -> None:
    if launch.needs_display:
        resources.enter_context(display())
    source = resolve(launch.game, **{name: _tuples(value) for name, value in launch.options.items()})
    if not launch.needs_display and getattr(source, "needs_display", False):
        resources.enter_context(display())
    if launch.start == launch.stop:
        line.say(Hello(spec=spec_to_json(source.spec), bots=tuple(source.bots())))
        return
    batch = source.tables(launch.stop - launch.start)
    resources.callback(batch.close)
    tables = HostedTables(source, batch)
    line.say(tables.hello)
    region = line.take_memory()
    whole = SharedTables.allocate(source.spec, launch.num_tables, tables.hello.strategy, region.new)
    region.close()
    tables.share(whole.part(launch.start, launch.stop))
    tables.run(line)


class HostedTables:
    """The game's own tables, and their copies in shared memory."""

    def __init__(self, source: GameSource, batch: GameBatch) -> None:
        self._batch = batch
        self._spec = source.spec
        self._bots: Mapping[str, Bot] = source.bots()
        strategy = batch.strategy if isinstance(batch, HasStrategy) else None
        self.hello = Hello(
            spec=spec_to_json(source.spec),
            bots=tuple(self._bots),
            has_pictures=isinstance(batch, HasPicture),
            strategy=None if strategy is None else (strategy.build_order.shape[-1], strategy.built.shape[-1]),
        )
        self._watch = GarbageWatch(source.spec, batch.view)
        self._columns = np.array(source.spec.column_of_seat)

    def share(self, shared: SharedTables) -> None:
        self._shared = shared
        own, theirs = named_arrays(self._batch.view), named_arrays(shared.view)
        for name, array in theirs.items():
            given = own.get(name)
            if given is None or (given.shape, given.dtype) != (array.shape, array.dtype):
                what = "nothing" if given is None else f"{given.dtype}{list(given.shape)}"
                raise GameError(f"the view's {name} is {what}, not {array.dtype}{list(array.shape)}")
        self._copies = [(theirs[name], own[name]) for name, array in theirs.items() if array.size]
        if shared.strategy is not None:
            assert isinstance(self._batch, HasStrategy)
            strategy = self._batch.strategy
            self._copies.append((shared.strategy.build_order, strategy.build_order))
            self._copies.append((shared.strategy.built, strategy.built))

    def run(self, line: Line) -> None:
        batch, shared = self._batch, self._shared
        while True:
            command = line.next_command()
            if command == STEP:
                batch.step(shared.actions)
            elif command == RESET:
                tables = np.flatnonzero(shared.fresh)
                batch.reset(tables, shared.seeds[tables])
                self._watch.started[tables] = True
            elif command == MESSAGE:
                self._answer(line.hear(ToHost), line)
                continue
            else:
                return
            self._show()
            line.done()

    def _show(self) -> None:
        wrong = self._watch.find()
        if wrong is not None:
            raise GameError(wrong)
        for target, source in self._copies:
            target[...] = source

    def _answer(self, request: ToHost, line: Line) -> None:
        if isinstance(request, Draw):
            assert isinstance(self._batch, HasPicture)
            picture = np.ascontiguousarray(self._batch.render(request.table, request.seat))
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise GameError(
                    f"render gives {picture.dtype}{list(picture.shape)}, not uint8[height, width, 3]"
                )
            line.say(Picture(picture.shape[0], picture.shape[1], picture.tobytes()))
            return
        tables, seats = np.nonzero(self._shared.asked)
        kind = self._spec.seats[int(seats[0])]
        rng = np.random.default_rng(request.seed)
        chosen = self._bots[request.bot].act(self._batch, tables, seats, rng)
        put(self._shared.chosen[kind], (tables, self._columns[seats]), chosen)
        line.done()


def _tuples(value: Any) -> Any:
    """Options are written down as lists, but games that can be compared hold tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return {key: _tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def _in_one_line(error: BaseException) -> str:
    """What was raised, and where in the game's own code."""
    text = " ".join(str(error).split())
    if isinstance(error, GameError):
        return text
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)
    ]
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"
