"""Processes as tests look at them from outside, and waiting for something to happen."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def wait_until(happened: Callable[[], object], what: str = "it", most_s: float = 60.0) -> None:
    deadline = time.monotonic() + most_s
    while not happened():
        assert time.monotonic() < deadline, f"waited {most_s:.0f} s for {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Ended, whether or not its parent has noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def descendants(pid: int) -> list[int]:
    """Read from /proc: a thread that started a program for this would lend it the locks of the process for a moment."""
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            children += map(int, file.read_text().split())
    return [*children, *(grandchild for child in children for grandchild in descendants(child))]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def workers(pid: int, role: str) -> list[int]:
    """Worker processes of a controller, by their role."""
    return [child for child in descendants(pid) if f'"role":"{role}"' in command_of(child)]


@contextmanager
def ctrl_c(after_s: float) -> Iterator[None]:
    """A person interrupts what the block waits for."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        with suppress(KeyboardInterrupt):
            yield
            raise AssertionError("it has ended before it was interrupted")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
