"""How processes tell each other things: a signal that wakes, a ring of numbers in shared memory, messages.

The hot path uses rings and signals: numbers of slots travel, arrays stay where they are. Nobody spins.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from ludus.data.trees import Array, IntArray


class Signal:
    """Wakes whoever waits. Signals that nobody waited for are kept, as one. Shared by its descriptors."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.fds = (read_fd, write_fd)
        self._poll = select.poll()
        self._poll.register(read_fd, select.POLLIN)

    @classmethod
    def create(cls) -> Signal:
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_NONBLOCK)
            return cls(fd, fd)
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        return cls(read_fd, write_fd)

    def notify(self) -> None:
        with suppress(BlockingIOError):  # full of signals that nobody has taken: the waiter will wake anyhow
            os.write(self.fds[1], (1).to_bytes(8, "little"))

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once there was a signal since the last wait; False when the time is up."""
        if not self._poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)):
            return False
        try:
            os.read(self.fds[0], 4096)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        for fd in set(self.fds):
            os.close(fd)


class Ring:
    """Numbers from one writer to one reader, in order. Holds `capacity`; the writer must not exceed it."""

    def __init__(self, new: Callable[[tuple[int, ...], Any], Array], capacity: int) -> None:
        self._capacity = capacity
        self._items = new((capacity,), np.int64)
        self._written = new((1,), np.int64)
        self._read = new((1,), np.int64)

    def __len__(self) -> int:
        return int(self._written[0] - self._read[0])

    def put(self, numbers: IntArray) -> None:
        start = int(self._written[0])
        if start + len(numbers) - int(self._read[0]) > self._capacity:
            raise OverflowError(f"{len(numbers)} more numbers do not fit a ring of {self._capacity}")
        self._items[(start + np.arange(len(numbers))) % self._capacity] = numbers
        self._written[0] = start + len(numbers)  # last, so that a reader never sees a number half written

    def take(self) -> IntArray:
        """All that is there."""
        start, end = int(self._read[0]), int(self._written[0])
        numbers: IntArray = self._items[np.arange(start, end) % self._capacity].copy()
        self._read[0] = end
        return numbers

    def clear(self) -> None:
        """Empty it; only while neither side runs."""
        self._read[0] = self._written[0] = 0
