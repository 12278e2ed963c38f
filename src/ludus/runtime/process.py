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
from pathlib import Path
from typing import Any

import msgspec

PR_SET_PDEATHSIG = 1


class Launch(msgspec.Struct, frozen=True):
    """What a worker process is told on its command line. Numbers of descriptors are those it inherits."""

    run: str
    role: str
    index: int
    num_actors: int
    attempt: int
    """How often this worker was started: another start, other chances."""
    control_fd: int
    region_fd: int
    signal_fds: tuple[tuple[int, int], ...]
    incarnations: dict[str, int]
    """Learner: the incarnation under which each player goes on."""
    parent: int


class WorkerProcess:
    """A child in a session of its own, so that it and all it starts can be ended together."""

    def __init__(self, name: str, launch: Launch, fds: Sequence[int], control: Connection, log: Path) -> None:
        self.name = name
        self.control = control
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ludus.local", msgspec.json.encode(launch).decode()],
                pass_fds=tuple(fds),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )

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


def control_pair() -> tuple[Connection, socket.socket]:
    """The parent's end, and the socket whose descriptor the child inherits."""
    parent, child = socket.socketpair()
    return Connection(parent.detach()), child


_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """Runs in the child before its program: a worker whose parent is gone has nobody to report to, and the
    kernel ends it too. Where there is no such call, the worker notices when it next talks to its parent."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def settle_in(parent: int) -> None:
    """First thing in a worker: leave signals to the parent, and end if that has ended already."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the parent decides
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


def send(connection: Connection, message: msgspec.Struct) -> None:
    connection.send_bytes(msgspec.json.encode(message))


def receive(connection: Connection, kind: Any) -> Any:
    """The next message, decoded as `kind`. Raises EOFError when the other side is gone."""
    return msgspec.json.decode(connection.recv_bytes(), type=kind)
