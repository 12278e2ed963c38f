"""Worker processes of one machine: started with the descriptors they need, ended with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import msgspec

from ludus.system.guard import Guard

PR_SET_PDEATHSIG = 1


SURROUNDINGS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512"}
"""For workers, unless the user has set it. oneDNN keeps its code for each shape that it has seen, 1,024 of
them by default. What actors ask for has few shapes (`few_sizes`), and all of them have room here. Minibatches
of a learner have others in each update; it keeps no more than this."""


class PeerGone(EOFError):  # noqa: N818
    """The process at the other end has died."""


class BadMessage(ValueError):  # noqa: N818
    """The process at the other end says something that is no message."""


class WorkerProcess:
    """A child in a session of its own, so that it and all it starts can be ended together."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        fds: Sequence[int],
        control: Connection,
        output: int,
        guard: Guard,
    ) -> None:
        """`output`: the descriptor that it prints to."""
        self.name = name
        self.control = control
        self.node: str | None = None
        """None: this one."""
        self.lost: str | None = None
        """Why it has ended, if that was with its node."""
        self._guard = guard
        self._process = subprocess.Popen(
            list(command),
            pass_fds=tuple(fds),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent,
            env={
                **SURROUNDINGS,
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
            },
        )
        guard.watch(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self._process.poll()

    def kill(self) -> None:
        """End it and everything it has started, now."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.control.close()
        self._guard.forget(self._process.pid)

    def wait_end(self, most_s: float) -> int | None:
        """Its exit code, once it has ended; None if that takes longer."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(most_s)
        return self.exit_code


def control_pair() -> tuple[Connection, socket.socket]:
    """The parent's end, and the socket whose descriptor the child inherits."""
    parent, child = socket.socketpair()
    return Connection(parent.detach()), child


_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent() -> None:
    """Runs in the child before its program: a worker whose parent is gone has nobody to report to, and the
    kernel ends it too. Where there is no such call, the worker notices when it next talks to its parent."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def settle_in(parent: int) -> None:
    """First thing in a worker: leave signals to the parent, and end if that has ended already."""
    for number in (signal.SIGINT, signal.SIGTERM):  # these go to all processes; the parent decides
        signal.signal(number, _leave_to_parent)
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


def _leave_to_parent(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN: that would be passed on to the programs that a game starts."""


def send(connection: Connection, message: msgspec.Struct) -> None:
    """Raises `PeerGone` when the other side is gone."""
    try:
        # Not JSON, which has no word for a score that is no number.
        connection.send_bytes(msgspec.msgpack.encode(message))
    except OSError as error:
        raise PeerGone(str(error)) from error


def receive(connection: Connection, kind: Any) -> Any:
    """The next message, decoded as `kind`. Raises `PeerGone` when the other side is gone, be it in the middle
    of a message, and `BadMessage` for what is none of them."""
    try:
        content = connection.recv_bytes()
    except (OSError, EOFError) as error:
        raise PeerGone(str(error)) from error
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadMessage(f"{content[:80]!r} is no message: {error}") from error
