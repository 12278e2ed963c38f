"""A program in a real terminal of a given size, and what a person sees of it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyte
from command_line import LUDUS


class Terminal:
    """The screen of a program; `raw` is all that it has written."""

    def __init__(self, columns: int, rows: int) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._own, self.program = pty.openpty()
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def until(self, seen: Callable[[], bool], within_s: float = 90.0) -> None:
        """Look at what is written until it is what is waited for."""
        end = time.monotonic() + within_s
        while not seen():
            assert time.monotonic() < end, "\n".join(self.lines)
            if select.select([self._own], [], [], 0.1)[0]:
                written = os.read(self._own, 65536)
                self.raw += written
                self._stream.feed(written)

    def close(self) -> None:
        os.close(self.program)
        os.close(self._own)


@contextmanager
def running(
    terminal: Terminal, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`ludus ARGUMENTS` in the terminal; it is ended if it has not ended by itself."""
    outside = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "COLUMNS")}
    given = {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"} | dict(environment or {})
    end = terminal.program
    process = subprocess.Popen([*LUDUS, *arguments], cwd=folder, env=outside | given, stdin=end, stdout=end, stderr=end)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        terminal.close()
