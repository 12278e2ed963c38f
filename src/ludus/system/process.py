"""Child processes: started in a session of their own, watched, and ended with everything that they have started.

`ChildProcess` is the base of every program that Ludus starts. Three things end a child whose parent was killed: the
kernel (`with_parent`), a `Guard` that knows its process group, or a guard process above it (`GuardedProcess`).
The second half of the module is the messages between a worker and its parent.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import IO, Any, cast

import msgspec

from ludus.system.guard import MARK, Guard, end_with_parent, guard_command, kill_marked

PIPE = subprocess.PIPE
ENDING_S = 5.0
"""How long a guard may take to end a program and everything that it has started."""
LONGEST_LINE = 2**16
"""Bytes of a printed line; a longer one counts as several."""
WORKER_ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512", "JAX_PLATFORMS": "cpu"}
"""Default environment of workers. oneDNN keeps its code for each shape that it has seen, by default for
1,024 shapes. An actor asks for few shapes, which all fit. A learner's minibatches have new shapes in each update,
and it keeps no more than this. Games in JAX are played on the CPU: each process would take a part of the GPU."""


class ChildProcess:
    """A program in a session of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.STDOUT,
        fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        with_parent: bool = False,
        guard: Guard | None = None,
    ) -> None:
        """`fds`: descriptors that it inherits. `with_parent`: the kernel ends it with the thread that starts it;
        not for a process with several threads, because Python code runs between fork and exec."""
        self._guard = guard
        self._process = subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(fds),
            env=environment,
            cwd=folder,
            start_new_session=True,  # Ctrl-C is for the parent, which decides what ends
            preexec_fn=end_with_parent if with_parent else None,
        )
        self.stdin, self.stdout, self.stderr = (
            cast("IO[bytes]", pipe) for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        """Only those that are a `PIPE`."""
        if guard is not None:
            guard.watch(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self._process.poll()

    def wait_end(self, most_s: float) -> int | None:
        """The exit code once it has ended; None if that takes longer."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(most_s)
        return self.exit_code

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, unless it has ended."""
        self._process.send_signal(number)

    def end(self, within_s: float) -> int | None:
        """Ask it to end with SIGTERM, and kill it if it takes longer than `within_s`. Returns its exit code."""
        self._process.terminate()
        self.wait_end(within_s)
        self.kill()
        return self.exit_code

    def kill(self) -> None:
        """Kill it and its process group now."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._guard is not None:
            self._guard.forget(self._process.pid)


class GuardedProcess(ChildProcess):
    """A program below a guard process of its own, which ends it and all its descendants, also those in other
    sessions, when it ends, when `end` is called or when this process is gone. `pid` is the guard's."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.STDOUT,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> None:
        guarded, self._life = os.pipe()
        environment = {**(os.environ if environment is None else environment)}
        environment.pop(MARK, None)  # its guard ends it and what it has started, and must not be killed before
        try:
            super().__init__(
                guard_command("program", str(guarded), *command),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                fds=(guarded,),
                environment=environment,
                folder=folder,
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(guarded)

    def let_go(self) -> None:
        """Tell the guard to end everything; does not wait."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1

    def end(self, within_s: float = ENDING_S) -> int | None:
        """Returns the exit code of the program, 256 minus the signal that ended it, or None if the guard did not
        end within the time and was killed."""
        self.let_go()
        code = self.wait_end(within_s)
        if code is None:
            super().kill()
        return code

    def kill(self) -> None:
        self.end()


class OutputReader:
    """Reads what a child prints in a thread of its own, so that the child never waits for a reader."""

    def __init__(
        self, output: IO[bytes], take: Callable[[bytes], None], keep: int, at_end: Callable[[], None] = lambda: None
    ) -> None:
        """`take` gets each line; the last `keep` lines that are not blank are in `last_words`."""
        self.last_words: deque[str] = deque(maxlen=keep)
        self._output = output
        self._take = take
        self._at_end = at_end
        self._thread = threading.Thread(target=self._read, name="output of a child", daemon=True)
        self._thread.start()

    def join(self, most_s: float = ENDING_S) -> None:
        """Wait for the end of the output."""
        self._thread.join(most_s)

    def _read(self) -> None:
        with self._output:
            while line := self._output.readline(LONGEST_LINE):
                if text := line.decode(errors="replace").rstrip():
                    self.last_words.append(text)
                self._take(line)
        self._at_end()


class WorkerProcess(ChildProcess):
    """A worker of a run, with a connection to its parent."""

    def __init__(
        self, name: str, command: Sequence[str], fds: Sequence[int], control: Connection, output: int, guard: Guard
    ) -> None:
        """`output`: the descriptor that it prints to."""
        self.name = name
        self.control = control
        self.node: str | None = None
        """None: this one."""
        self.lost: str | None = None
        """Why it has ended, if that was with its node."""
        self._mark = guard.new_mark()
        environment = {**WORKER_ENVIRONMENT, **os.environ, "PYTHONUNBUFFERED": "1", MARK: self._mark}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        super().__init__(
            command, stdout=output, stderr=output, fds=fds, environment=environment, with_parent=True, guard=guard
        )

    def kill(self) -> None:
        """Kill it and everything that it has started, also daemons."""
        super().kill()
        kill_marked(f"{self._mark}\0")
        self.control.close()


def control_pair() -> tuple[Connection, socket.socket]:
    """The parent's end, and the socket whose descriptor the child inherits."""
    parent, child = socket.socketpair()
    return Connection(parent.detach()), child


def settle_in(parent: int) -> None:
    """A worker calls it first: signals are left to the parent, and the worker ends if the parent has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal sends them to all processes
        signal.signal(number, _leave_to_parent)
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


def _leave_to_parent(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN: that would be passed on to the programs that a game starts."""


class PeerGone(EOFError):  # noqa: N818
    """The process at the other end has died."""


class BadMessage(ValueError):  # noqa: N818
    """The process at the other end has sent bytes that are no message."""


def send(connection: Connection, message: msgspec.Struct) -> None:
    """Raises `PeerGone` when the other side is gone."""
    try:
        # Not JSON, which has no word for a score that is no number.
        connection.send_bytes(msgspec.msgpack.encode(message))
    except OSError as error:
        raise PeerGone(str(error)) from error


def receive(connection: Connection, kind: Any) -> Any:
    """The next message, decoded as `kind`. Raises `PeerGone` when the other side is gone, also in the middle of a
    message, and `BadMessage` for anything else."""
    try:
        content = connection.recv_bytes()
    except (OSError, EOFError) as error:
        raise PeerGone(str(error)) from error
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadMessage(f"{content[:80]!r} is no message: {error}") from error
