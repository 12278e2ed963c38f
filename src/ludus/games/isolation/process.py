"""The trainer's end of a host: starts it, talks to it, and leaves nothing of it behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path

import msgspec

from ludus.games import program_guard
from ludus.games.isolation import boot
from ludus.games.isolation.shared import DONE, MESSAGE, FromHost, HostFailed, HostLaunch, ToHost

PATIENCE_S = 0.2
"""How long an answer is waited for before somebody looks how late it is."""
_ENDING_S = 5.0
"""How long the guard may take to end a host and all that it has started."""
_TAIL = 8192
"""Bytes of what a host has printed that are looked at for its last words."""
_LONGEST_LOG = 2**20
_FATAL = "Fatal Python error"


class HostLost(Exception):  # noqa: N818 - what has happened, as in `CanLoseTables.lost`
    """A host has died, hangs, or said that its game cannot go on. The text says why."""


class HostProcess:
    """A process in which a game runs, below a guard that ends it with us, and what it has started with it."""

    def __init__(self, launch: HostLaunch, python: str | None, log: str | None) -> None:
        """`log`: a file that what the game prints is added to."""
        self._log = open(log, "a+b") if log else tempfile.TemporaryFile("a+b")  # noqa: SIM115
        ours, theirs = socket.socketpair()
        limit = struct.pack("ll", int(_ENDING_S), 0)  # for the rest of a message that has begun
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        guarded, self._life = os.pipe()
        self.control = Connection(ours.detach())
        self.fd = self._commands = self.control.fileno()
        """Where its answers are listened to, and where it is told what to do."""
        self._pipes: tuple[int, ...] = ()
        self._listen_to(self.fd)
        guard = [sys.executable, "-I", "-S", program_guard.__file__, str(guarded)]
        # The same interpreter finds what this process finds; another one has libraries of its own.
        folders = [folder or os.getcwd() for folder in sys.path] if python is None else []
        try:
            self._process = subprocess.Popen(
                [*guard, python or sys.executable, boot.__file__, *folders],
                stdin=theirs.fileno(),
                stdout=self._log,
                stderr=self._log,
                pass_fds=(guarded,),
                start_new_session=True,
                env=_environment(python),
            )
        except BaseException:
            os.close(self._life)
            self.control.close()
            self._log.close()
            raise
        finally:
            theirs.close()
            os.close(guarded)
        with suppress(OSError):  # it may be dead already: that shows when it is asked
            self.control.send_bytes(msgspec.msgpack.encode(launch))

    @property
    def pid(self) -> int:
        """Of the guard."""
        return self._process.pid

    def share(self, fd: int) -> None:
        """Let the host see this memory. From now on commands and answers go through pipes: who waits at one
        is woken where the writer runs, which for two that take turns is several times faster."""
        theirs, self._commands = os.pipe()
        self.fd, answers = os.pipe()
        self._pipes = (self._commands, self.fd)
        self._listen_to(self.fd)
        with suppress(OSError):
            for handle in (fd, theirs, answers):
                send_handle(self.control, handle, self._process.pid)
        os.close(theirs)
        os.close(answers)

    def command(self, command: bytes) -> None:
        with suppress(OSError):  # whoever waits for the answer will hear why there is none
            os.write(self._commands, command)

    def send(self, message: ToHost) -> None:
        self.command(MESSAGE)
        with suppress(OSError):
            self.control.send_bytes(msgspec.msgpack.encode(message))

    def listen(self) -> bytes:
        """The first byte of the next answer: `DONE`, mostly. Nothing if the host is gone. Raises
        `BlockingIOError` if it says nothing for `PATIENCE_S`."""
        if not self._poll.poll(PATIENCE_S * 1000):
            raise BlockingIOError
        try:
            return os.read(self.fd, 1)
        except ConnectionError:
            return b""

    def receive(self, told: bytes | None = None) -> FromHost | None:
        """The next answer: a message, or None for a plain `DONE`. Raises `HostLost`. `told`: the byte of it
        that was listened to."""
        try:
            told = self.listen() if told is None else told
            if told == DONE:
                return None
            if told != MESSAGE:
                raise EOFError
            answer: FromHost = msgspec.msgpack.decode(self.control.recv_bytes(), type=FromHost)
        except (OSError, EOFError):
            raise HostLost(self._how_it_ended()) from None
        except msgspec.MsgspecError as error:
            raise HostLost(f"garbage: the host says what is no message: {error}") from None
        if isinstance(answer, HostFailed):
            raise HostLost(f"{answer.kind}: {answer.reason}")
        return answer

    def memory_mb(self) -> float:
        """Resident, of the host and all that it has started."""
        return sum(_resident_bytes(pid) for pid in _below(self._process.pid)) / 2**20

    def trim_log(self) -> None:
        """Forget what it has printed if that is much."""
        if os.fstat(self._log.fileno()).st_size > _LONGEST_LOG:
            os.ftruncate(self._log.fileno(), 0)

    def kill(self) -> None:
        """End it and all that it has started, now."""
        self._end()
        self._log.close()

    def _listen_to(self, fd: int) -> None:
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def _end(self) -> int | None:
        """Its exit code, or 256 minus the signal that ended it; None if it did not end by itself."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
            self.control.close()
            for pipe in self._pipes:
                os.close(pipe)
        try:
            return self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None

    def _how_it_ended(self) -> str:
        code = self._end()
        how = "it closed its connection" if code is None else f"exit code {code}"
        if code is not None and code > 128:
            with suppress(ValueError):
                how = signal.Signals(256 - code).name
        words = self._last_words()
        return f"crashed: {how}" + (f" ({words})" if words else "")

    def _last_words(self) -> str:
        """The last line it has printed, or of a crash inside Python the first line of where it was."""
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
    """One core each; another interpreter must not see what is meant for ours."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if python is not None:
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            found.pop(name, None)
    return found


def _below(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                yield int(child)
                yield from _below(int(child))


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
