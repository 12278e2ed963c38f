"""Hosts of isolated games: the arrays and messages that they share with the trainer, and the trainer's end of one."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.games.game import Actions, NewArray, StrategyView, TableView, allocate_actions
from ludus.games.isolation import boot
from ludus.system.guard import descendants
from ludus.system.process import ENDING_S, GuardedProcess

_TAIL = 8192  # bytes at the end of the log that are searched for the last words
_LONGEST_LOG = 2**20
_FATAL = "Fatal Python error"


@dataclass(frozen=True, kw_only=True)
class SharedTables:
    """All tables of a batch, or a part of them."""

    view: TableView
    actions: Actions
    chosen: Actions
    """Choices of a scripted player of the game."""
    asked: NDArray[np.bool_]
    """[tables, seats]: the seats that it is to choose for."""
    fresh: NDArray[np.bool_]
    """[tables]: those to be reset, with `seeds`."""
    seeds: NDArray[np.uint64]
    strategy: StrategyView | None

    @classmethod
    def allocate(
        cls, spec: GameSpec, num_tables: int, strategy: tuple[int, int, bool] | None, new: NewArray = np.zeros
    ) -> SharedTables:
        """Both sides allocate in the same order from the same memory, and so see the same arrays."""
        seats = (num_tables, spec.num_seats)
        return cls(
            view=TableView.allocate(spec, num_tables, new),
            actions=allocate_actions(spec, num_tables, new),
            chosen=allocate_actions(spec, num_tables, new),
            asked=new(seats, np.dtype(np.bool_)),
            fresh=new((num_tables,), np.dtype(np.bool_)),
            seeds=new((num_tables,), np.dtype(np.uint64)),
            strategy=None
            if strategy is None
            else StrategyView(
                build_order=new((*seats, strategy[0]), np.dtype(np.int16)),
                built=new((*seats, strategy[1]), np.dtype(np.bool_)),
                build_place=new((*seats, strategy[0]), np.dtype(np.int16)) if strategy[2] else None,
            ),
        )

    def part(self, start: int, stop: int) -> SharedTables:
        """The tables from `start` up to `stop`."""
        cut: SharedTables = _cut(self, slice(start, stop))
        return cut


def _cut(value: Any, tables: slice) -> Any:
    """The part of every array in a nest of dataclasses, tuples and trees."""
    if isinstance(value, np.ndarray):
        return value[tables]
    if isinstance(value, tuple):
        return tuple(_cut(item, tables) for item in value)
    if isinstance(value, dict):
        return {name: _cut(item, tables) for name, item in value.items()}
    changes = {} if value is None else {part.name: _cut(getattr(value, part.name), tables) for part in fields(value)}
    return replace(value, **changes) if changes else value


STEP, RESET, MESSAGE, DONE = b"s", b"r", b"m", b"."


class HostLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a host: which game, and which of its tables."""

    game: str
    options: dict[str, Any]
    needs_display: bool
    start: int = 0
    stop: int = 0
    """The host plays the tables from `start` up to `stop` of shared memory; none: it only describes the game."""
    num_tables: int = 0


class HostHello(msgspec.Struct, frozen=True, kw_only=True, tag_field="message", tag="hello"):
    """The first answer: describes the game."""

    spec: dict[str, Any]
    bots: tuple[str, ...]
    has_pictures: bool = False
    strategy: tuple[int, int, bool] | None = None
    """If seats build things: `StrategyView.sizes`."""


class HostFailed(msgspec.Struct, frozen=True, tag_field="message", tag="failed"):
    """The host ends."""

    kind: str
    """`raised`: the game raised an error; `garbage`: its tables are in an impossible state."""
    reason: str


class BotAct(msgspec.Struct, frozen=True, tag_field="message", tag="bot_act"):
    """A scripted player chooses for the rows that shared memory marks."""

    bot: str
    seed: int


class DrawTable(msgspec.Struct, frozen=True, tag_field="message", tag="draw"):
    table: int
    seat: int | None


class TablePicture(msgspec.Struct, frozen=True, tag_field="message", tag="picture"):
    height: int
    width: int
    rgb: bytes


ToHost = BotAct | DrawTable
FromHost = HostHello | HostFailed | TablePicture


class HostLost(Exception):  # noqa: N818 - what has happened, as in `CanLoseTables.lost`
    """A host has died, hangs, or has reported that its game cannot go on. The text says why."""


class HostProcess(GuardedProcess):
    """A process in which a game runs, below a guard."""

    def __init__(self, launch: HostLaunch, python: str | None, log: str | None) -> None:
        """`log`: the output of the game is appended to this file."""
        self._log = open(log, "a+b") if log else tempfile.TemporaryFile("a+b")  # noqa: SIM115
        ours, theirs = socket.socketpair()
        limit = struct.pack("ll", int(ENDING_S), 0)  # for the rest of a message that has begun
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.control = Connection(ours.detach())
        self.fd = self._commands = self.control.fileno()
        """Descriptors for answers and for commands."""
        self._pipes: tuple[int, ...] = ()
        # The same interpreter finds what this process finds; another one has libraries of its own.
        folders = [folder or os.getcwd() for folder in sys.path] if python is None else []
        try:
            super().__init__(
                [python or sys.executable, boot.__file__, *folders],
                stdin=theirs.fileno(),
                stdout=self._log,
                stderr=self._log,
                environment=_environment(python),
            )
        except BaseException:
            self.control.close()
            self._log.close()
            raise
        finally:
            theirs.close()
        with suppress(OSError):  # it may be dead already: that shows when it is asked
            self.control.send_bytes(msgspec.msgpack.encode(launch))

    def share(self, fd: int) -> None:
        """Share this memory with the host. From now on commands and answers go through pipes: the kernel wakes the
        reader of a pipe on the core of the writer, which is several times faster for two that take turns."""
        theirs, self._commands = os.pipe()
        self.fd, answers = os.pipe()
        self._pipes = (self._commands, self.fd)
        with suppress(OSError):
            for handle in (fd, theirs, answers):
                send_handle(self.control, handle, self.pid)
        os.close(theirs)
        os.close(answers)

    def command(self, command: bytes) -> None:
        with suppress(OSError):  # whoever waits for the answer learns why there is none
            os.write(self._commands, command)

    def send(self, message: ToHost) -> None:
        self.command(MESSAGE)
        with suppress(OSError):
            self.control.send_bytes(msgspec.msgpack.encode(message))

    def receive(self) -> FromHost | None:
        """Read an answer that has begun to arrive: a message, or None for a plain `DONE`. Raises `HostLost`."""
        try:
            told = os.read(self.fd, 1)
            if told == DONE:
                return None
            if told != MESSAGE:
                raise EOFError
            answer: FromHost = msgspec.msgpack.decode(self.control.recv_bytes(), type=FromHost)
        except (OSError, EOFError):
            raise HostLost(self._how_it_ended()) from None
        except msgspec.MsgspecError as error:
            raise HostLost(f"garbage: the host has sent bytes that are no message: {error}") from None
        if isinstance(answer, HostFailed):
            raise HostLost(f"{answer.kind}: {answer.reason}")
        return answer

    def memory_mb(self) -> float:
        """Resident memory of the host and everything that it has started."""
        return sum(_resident_bytes(pid) for pid in descendants(self.pid)) / 2**20

    def trim_log(self) -> None:
        """Empty the log if it is long."""
        if os.fstat(self._log.fileno()).st_size > _LONGEST_LOG:
            os.ftruncate(self._log.fileno(), 0)

    def let_go(self) -> None:
        super().let_go()
        if not self.control.closed:
            self.control.close()
            for pipe in self._pipes:
                os.close(pipe)

    def kill(self) -> None:
        super().kill()
        self._log.close()

    def _how_it_ended(self) -> str:
        code = self.end()
        how = "it closed its connection" if code is None else f"exit code {code}"
        if code is not None and code > 128:
            with suppress(ValueError):
                how = signal.Signals(256 - code).name
        words = self._last_words()
        return f"crashed: {how}" + (f" ({words})" if words else "")

    def _last_words(self) -> str:
        """The last line of the log, or the innermost frame of a crash inside Python."""
        fd = self._log.fileno()
        size = os.fstat(fd).st_size
        text = os.pread(fd, _TAIL, max(0, size - _TAIL)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        fatal = [number for number, line in enumerate(lines) if line.startswith(_FATAL)]
        if not fatal:
            return lines[-1][:200] if lines else ""
        places = [line for line in lines[fatal[-1] :] if line.startswith('File "')]
        return places[0][:200] if places else lines[fatal[-1]]


def _environment(python: str | None) -> dict[str, str]:
    """One thread each; another interpreter must not see the settings of ours."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if python is not None:
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            found.pop(name, None)
    return found


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
