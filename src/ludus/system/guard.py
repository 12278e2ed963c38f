"""The guard: a small process that ends what a dead process has left behind.

The kernel ends a child with its parent, but not the programs that the child has started. This file runs as a
script with `python -I -S`, needs nothing of Ludus and takes one of three jobs:

    guard.py groups MARK                 kill the process groups read from standard input (`+123`, `-123`) when it ends,
                                         and all processes with this mark
    guard.py program FD COMMAND...       run a program; end it and all its descendants when the pipe FD ends
    guard.py become PARENT COMMAND...    become the program (same process number); the kernel ends it with PARENT
"""

from __future__ import annotations

import ctypes
import itertools
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_FOUND = 127
"""Exit code of the job `program` if the program cannot be started."""
_PATIENCE_S = 1.0
"""How long a program may take after SIGTERM before it is killed."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_libc = ctypes.CDLL(None, use_errno=True)  # loaded here, because a child must not load it between fork and exec


def guard_command(*words: str) -> list[str]:
    return [sys.executable, "-I", "-S", __file__, *words]


def ended_with_this_process(command: Sequence[str]) -> list[str]:
    """A command that becomes `command`, which the kernel then ends with this process. For libraries that start
    programs themselves; elsewhere `ChildProcess` does it."""
    return guard_command("become", str(os.getpid()), *command)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies. Elsewhere than on Linux a worker notices it when it
    next talks to its parent."""
    _ask_kernel(PR_SET_PDEATHSIG, signal.SIGKILL)


MARK = "LUDUS_WORKER"
"""Environment variable that names the worker which has started a process, directly or not. It also finds daemons, which
have left its process group and its session."""


class Guard:
    """The owner's end of a guard of process groups. A guard that is killed is replaced."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._mark = secrets.token_hex(8)
        self._marks = itertools.count()
        self._start()

    def new_mark(self) -> str:
        """For the environment of another process that this guard watches."""
        return f"{self._mark}-{next(self._marks)}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Kill the groups that are still watched."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            guard_command("groups", self._mark),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def look(self) -> None:
        """Replace a guard that was killed; call it now and then."""
        if self._process.poll() is not None:
            self._replace()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
        except BrokenPipeError:
            self._replace()

    def _replace(self) -> None:
        self.close()
        self._start()
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"+{group}\n" for group in self._groups).encode())


def _ask_kernel(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc.prctl(option, value, 0, 0, 0)


def _kill_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_marked(mark: str) -> None:
    """Kill all processes whose mark is or begins with this one. One that has emptied its environment is not found."""
    wanted = f"\0{MARK}={mark}".encode()
    seen: set[int] = set()
    while found := set(_marked(wanted)) - seen:  # they may have started others meanwhile
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        seen |= found


def _marked(wanted: bytes) -> Iterator[int]:
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if wanted in b"\0" + environment.read_bytes():
                yield int(environment.parent.name)


def _guard_groups(mark: str) -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        _kill_group(group, signal.SIGKILL)
    kill_marked(f"{mark}-")


def _guard_program(owner: int, command: list[str]) -> int:
    """Run the program until it ends or the pipe `owner` does. Standard input and output are the program's own.
    Returns its exit code, or 256 minus the signal that ended it."""
    _ask_kernel(PR_SET_CHILD_SUBREAPER, 1)
    died, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        program = subprocess.Popen(command, start_new_session=True, preexec_fn=_prepare)
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND
    for stream in (0, 1):  # only the program holds its ends, so that their end says that it is gone
        os.close(stream)
    while program.poll() is None:
        ready, _, _ = select.select([owner, died], [], [])
        if owner in ready:
            break
        os.read(died, 4096)
    _end_all(program)
    return (program.returncode or 0) & 0xFF


def _prepare() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()


def _end_all(program: subprocess.Popen[bytes]) -> None:
    _kill_group(program.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        program.wait(_PATIENCE_S)
    _kill_group(program.pid, signal.SIGKILL)
    while left := list(descendants(os.getpid())):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def descendants(pid: int) -> Iterator[int]:
    """Processes below this one. Below a guard, those whose parents have died too: they are its children now."""
    waiting = [pid]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}/task")
        try:
            children = [int(pid) for task in folder.iterdir() for pid in (task / "children").read_text().split()]
        except OSError:
            continue
        yield from children
        waiting += children


def _become(parent: int, command: list[str]) -> None:
    end_with_parent()
    if sys.platform == "linux" and os.getppid() != parent:  # it ended before the kernel was told
        sys.exit("the process that wanted the program has ended")
    os.execv(command[0], command)


def main() -> None:
    job, *words = sys.argv[1:]
    if job == "become":
        _become(int(words[0]), words[1:])
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if job == "program":
        sys.exit(_guard_program(int(words[0]), words[1:]))
    _guard_groups(words[0])


if __name__ == "__main__":
    main()
