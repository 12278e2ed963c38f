"""A small process that ends what workers have started, should the controller be killed before it can.

The kernel ends workers with the controller, but not the programs that a game has started. Run as a file, it
reads process groups from its input (`+123`, `-123`); the input ends when the controller does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress


class Guard:
    """The controller's way to the guard process."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process = _start()

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
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
        except BrokenPipeError:  # it was killed itself: another takes over
            self.close()
            self._process = _start()
            assert self._process.stdin is not None
            for group in self._groups:
                self._process.stdin.write(f"+{group}\n".encode())


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )


def _keep_guard() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _keep_guard()
