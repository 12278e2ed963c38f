"""Runs a program and leaves nothing of it behind: neither it nor what it has started outlives its owner.

Run as a file: `program_guard.py FD COMMAND...`. The end of the pipe FD means that the owner is gone. Standard
input and output are the program's own.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CHILD_SUBREAPER = 36
_PARENT_DEATH_SIGNAL = 1
NOT_FOUND = 127
_PATIENCE_S = 1.0
"""How long a program that was asked to stop may take before it is killed."""


def _ask_kernel(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _descendants() -> Iterator[int]:
    """Processes below this one; those whose parent has died have become children of this one."""
    waiting = [os.getpid()]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}/task")
        try:
            children = [int(pid) for task in folder.iterdir() for pid in (task / "children").read_text().split()]
        except OSError:
            continue
        yield from children
        waiting += children


def _end_all(program: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        program.wait(_PATIENCE_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGKILL)
    while left := list(_descendants()):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _watch(owner: int, command: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _ask_kernel(_CHILD_SUBREAPER, 1)
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
    return program.returncode if program.returncode is not None else 0


def _prepare() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _ask_kernel(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(_watch(int(sys.argv[1]), sys.argv[2:]) & 0xFF)
