"""The host: the process in which an isolated game plays its tables, in shared memory."""

from __future__ import annotations

import faulthandler
import os
import select
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec, length_name, spec_to_json
from ludus.data.trees import Array, put
from ludus.games.catalog import resolve
from ludus.games.game import Bot, GameBatch, GameSource, HasPicture, HasStrategy, TableView
from ludus.games.isolation import protocol
from ludus.games.seat_rows import GameError
from ludus.system.process import ChildProcess
from ludus.system.shared_memory import Region

_SCREEN = "1280x1024x24"
_PATIENCE_S = 15.0


@contextmanager
def display() -> Iterator[None]:
    """Use the screen that DISPLAY names, or a new one for the duration of the context."""
    if os.environ.get("DISPLAY"):
        yield
        return
    program = shutil.which("Xvfb")
    if program is None:
        raise GameError("the game needs a display: DISPLAY is not set and Xvfb is not installed (apt-get install xvfb)")
    chosen, choosing = os.pipe()
    command = [program, "-displayfd", str(choosing), "-screen", "0", _SCREEN, "-nolisten", "tcp", "-noreset"]
    with open(chosen, "rb", buffering=0) as answer:
        server = ChildProcess(command, stdout=1, stderr=2, fds=(choosing,))
        os.close(choosing)
        try:
            ready, _, _ = select.select([answer], [], [], _PATIENCE_S)
            number = answer.read(16).split(b"\n")[0].decode() if ready else ""
            if not number:
                raise GameError("the game needs a display, but Xvfb did not start")
            os.environ["DISPLAY"] = f":{number}"
            yield
        finally:
            os.environ.pop("DISPLAY", None)
            server.end(within_s=2.0)  # in good order: a killed one leaves its lock behind


Seats = slice | list[int]
"""Columns of [tables, seats] that the seats of a kind have."""
_FALSE, _TRUE = b"\x00", b"\x01"
_any = np.logical_or.reduce  # the function behind `array.any`, without its detours


class GarbageWatch:
    """Checks the tables of one view. `started` marks those that have been reset at least once."""

    def __init__(self, spec: GameSpec, view: TableView) -> None:
        self._view = view
        self.started = np.zeros(len(view.over), np.bool_)
        self._odd = int.from_bytes(len(view.over) * b"\xfe", "little")
        """Bits that no flag has, unless it is stored as another byte than 0 or 1."""
        self._paid = {"reward": view.reward, "score": view.score}
        self._paid |= {f"rewards[{kind}]": array for kind, array in enumerate(view.rewards) if array.size}
        self._seen: list[tuple[str, Array, Seats, Array | None]] = []
        self._masks: list[tuple[str, Array, Seats]] = []
        for kind, columns, shown, legal in zip(
            spec.kinds, spec.seats_of_kind, view.observation, view.legal, strict=True
        ):
            # A slice of all columns is not copied.
            seats: Seats = slice(None) if len(columns) == spec.num_seats else list(columns)
            for name, array in shown.items():
                if array.dtype.kind == "f":
                    self._seen.append((name, array, seats, shown.get(length_name(name))))
            for head, mask in legal.items():
                if kind.action.heads[head].when is None:
                    self._masks.append((head, mask, seats))
        self._numbers = [*self._paid.values(), *(array for _, array, _, _ in self._seen)]

    def find(self) -> str | None:
        """The first fault, or None. A NumPy call costs more than its work on a few tables, so flags are compared
        as bits of large integers, and bytes are searched in bytes."""
        view = self._view
        over, truncated, started = _bits(view.over), _bits(view.truncated), _bits(self.started)
        acting = _bits(_any(view.to_act, 1))
        ended = over | truncated
        if over & truncated or ended & self._odd or (acting ^ ended) & started != started:
            found = self._wrong_end()
            if found is not None:
                return found
        for array in self._numbers:
            if _FALSE in np.isfinite(array).tobytes():
                found = self._not_finite()
                if found is not None:
                    return found
        for head, mask, seats in self._masks:
            stuck = view.to_act[:, seats] > _any(mask, -1)
            if _TRUE in stuck.tobytes():
                table, seat = self._first(stuck, seats)
                return f"seat {seat} of table {table} has no legal option for {head!r}"
        return None

    def _wrong_end(self) -> str | None:
        """None if only the flags are stored oddly: every byte but 0 is true."""
        over, truncated, to_act = self._view.over, self._view.truncated, self._view.to_act
        wrong = (over & truncated) | ((to_act.any(1) == (over | truncated)) & self.started)
        if not wrong.any():
            return None
        table = int(wrong.argmax())
        if over[table] and truncated[table]:
            return f"table {table} is both over and truncated"
        if over[table] or truncated[table]:
            return f"table {table} has ended, but seat {int(to_act[table].argmax())} is to act"
        return f"table {table} has not ended, but nobody is to act"

    def _not_finite(self) -> str | None:
        """None if nobody looks at the numbers that are not finite."""
        for name, array in self._paid.items():
            bad = ~np.isfinite(array).reshape(len(array), -1).all(1)
            if bad.any():
                table = int(bad.argmax())
                return f"{name} of table {table} is {array[table].tolist()}"
        for name, array, seats, lengths in self._seen:
            bad = ~np.isfinite(array)
            if lengths is not None:
                bad &= (np.arange(array.shape[2]) < lengths[..., None])[..., None]
            found = bad.reshape(*bad.shape[:2], -1).any(-1) & self._view.to_act[:, seats]
            if found.any():
                table, seat = self._first(found, seats)
                return f"{name!r} that seat {seat} of table {table} sees is not finite"
        return None

    @staticmethod
    def _first(found: NDArray[np.bool_], seats: Seats) -> tuple[int, int]:
        """Table and seat."""
        table, column = divmod(int(found.argmax()), found.shape[1])
        return table, column if isinstance(seats, slice) else seats[column]


def _bits(flags: NDArray[np.bool_]) -> int:
    return int.from_bytes(flags.tobytes(), "little")


_OURS = os.path.dirname(__file__)


def main() -> None:
    """Serve until the trainer is gone. Standard input is the connection to the trainer; the game gets none."""
    trainer = HostConnection(Connection(os.dup(0)))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.pop("LUDUS_GAME_SERVER", None)  # the game runs here
    faulthandler.enable()
    launch = trainer.hear(protocol.HostLaunch)
    try:
        with ExitStack() as resources:
            _serve(launch, trainer, resources)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        kind = "garbage" if isinstance(error, GameError) else "raised"
        with suppress(OSError):  # the trainer may be gone
            trainer.say(protocol.HostFailed(kind, _in_one_line(error)))
        raise SystemExit(1) from None


class HostConnection:
    """The host's end of the connection to the trainer: a socket for messages, and later pipes for single bytes."""

    def __init__(self, control: Connection) -> None:
        self._control = control
        self._commands = self._answers = control.fileno()

    def take_memory(self) -> Region:
        """Receive the shared memory and the pipes."""
        region = Region(self._take())
        self._commands, self._answers = self._take(), self._take()
        return region

    def next_command(self) -> bytes:
        """Empty once the trainer is gone or has closed the connection."""
        try:
            return os.read(self._commands, 1)
        except ConnectionError:
            return b""

    def done(self) -> None:
        os.write(self._answers, protocol.DONE)

    def say(self, message: protocol.FromHost) -> None:
        os.write(self._answers, protocol.MESSAGE)
        self._control.send_bytes(msgspec.msgpack.encode(message))

    def hear(self, kind: Any) -> Any:
        return msgspec.msgpack.decode(self._control.recv_bytes(), type=kind)

    def _take(self) -> int:
        fd: int = recv_handle(self._control)
        os.set_inheritable(fd, False)
        return fd


def _serve(launch: protocol.HostLaunch, trainer: HostConnection, resources: ExitStack) -> None:
    if launch.needs_display:
        resources.enter_context(display())
    source = resolve(launch.game, **{name: _tuples(value) for name, value in launch.options.items()})
    if not launch.needs_display and getattr(source, "needs_display", False):
        resources.enter_context(display())
    if launch.start == launch.stop:
        trainer.say(protocol.HostHello(spec=spec_to_json(source.spec), bots=tuple(source.bots())))
        return
    batch = source.tables(launch.stop - launch.start)
    resources.callback(batch.close)
    tables = HostedTables(source, batch)
    trainer.say(tables.hello)
    region = trainer.take_memory()
    whole = protocol.SharedTables.allocate(source.spec, launch.num_tables, tables.hello.strategy, region.new)
    region.close()
    tables.share(whole.part(launch.start, launch.stop))
    tables.run(trainer)


class HostedTables:
    """The tables of the game, and their copies in shared memory."""

    def __init__(self, source: GameSource, batch: GameBatch) -> None:
        self._batch = batch
        self._spec = source.spec
        self._bots: Mapping[str, Bot] = source.bots()
        strategy = batch.strategy if isinstance(batch, HasStrategy) else None
        self.hello = protocol.HostHello(
            spec=spec_to_json(source.spec),
            bots=tuple(self._bots),
            has_pictures=isinstance(batch, HasPicture),
            strategy=None if strategy is None else strategy.sizes,
        )
        self._watch = GarbageWatch(source.spec, batch.view)
        self._columns = np.array(source.spec.column_of_seat)

    def share(self, shared: protocol.SharedTables) -> None:
        self._shared = shared
        own, theirs = self._batch.view.named(), shared.view.named()
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
            if shared.strategy.build_place is not None and strategy.build_place is not None:
                self._copies.append((shared.strategy.build_place, strategy.build_place))

    def run(self, trainer: HostConnection) -> None:
        batch, shared = self._batch, self._shared
        while True:
            command = trainer.next_command()
            if command == protocol.STEP:
                batch.step(shared.actions)
            elif command == protocol.RESET:
                tables = np.flatnonzero(shared.fresh)
                batch.reset(tables, shared.seeds[tables])
                self._watch.started[tables] = True
            elif command == protocol.MESSAGE:
                self._answer(trainer.hear(protocol.ToHost), trainer)
                continue
            else:
                return
            if (wrong := self._watch.find()) is not None:
                raise GameError(wrong)
            for target, source in self._copies:
                target[...] = source
            trainer.done()

    def _answer(self, request: protocol.ToHost, trainer: HostConnection) -> None:
        if isinstance(request, protocol.DrawTable):
            assert isinstance(self._batch, HasPicture)
            picture = np.ascontiguousarray(self._batch.render(request.table, request.seat))
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise GameError(f"render gives {picture.dtype}{list(picture.shape)}, not uint8[height, width, 3]")
            trainer.say(protocol.TablePicture(picture.shape[0], picture.shape[1], picture.tobytes()))
            return
        tables, seats = np.nonzero(self._shared.asked)
        kind = self._spec.seats[int(seats[0])]
        rng = np.random.default_rng(request.seed)
        chosen = self._bots[request.bot].act(self._batch, tables, seats, rng)
        put(self._shared.chosen[kind], (tables, self._columns[seats]), chosen)
        trainer.done()


def _tuples(value: Any) -> Any:
    """Options arrive as lists, but games that can be compared hold tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return {key: _tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def _in_one_line(error: BaseException) -> str:
    """The error, and the line of the game that raised it."""
    text = " ".join(str(error).split())
    if isinstance(error, GameError):
        return text
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"
