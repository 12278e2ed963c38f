"""Memory and signals that several processes share. They have no names: they are passed on as file descriptors and are
gone with the last process that holds them, however it ends."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import select
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from ludus.data.trees import Array, IntArray
from ludus.system.arrays import ArrayCutter, bytes_of
from ludus.system.machine import memory_info

ALIGNMENT = 64
"""Arrays start on a cache line of their own, so that two writers never share one."""


class Region:
    """A piece of shared memory. Processes that call `new` with the same arguments in the same order see the same
    arrays."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, 0)
        self.new = ArrayCutter(self._memory, ALIGNMENT).new
        """The next array, of a shape and a dtype."""

    @classmethod
    def create(cls, num_bytes: int) -> Region:
        """New memory, all zero. Its pages are reserved now, so that no write can fail later."""
        region = cls.sparse(num_bytes)
        try:
            region._reserve([(0, max(num_bytes, 1))])
        except MemoryError:
            region.close()
            raise
        return region

    @classmethod
    def sparse(cls, num_bytes: int) -> Region:
        """New memory, all zero, without pages: `reserve` the parts that are to be written."""
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, max(num_bytes, 1))
            return cls(fd)
        except (OSError, ValueError, OverflowError) as error:
            os.close(fd)
            raise _too_much(num_bytes, str(error)) from error

    def reserve(self, arrays: Iterable[Array]) -> None:
        """Reserve the pages of these arrays, or of contiguous parts of arrays, so that no write can fail later."""
        begin = np.frombuffer(self._memory, np.uint8, 1).ctypes.data
        self._reserve([(array.ctypes.data - begin, array.nbytes) for array in arrays if array.nbytes])

    def _reserve(self, pieces: list[tuple[int, int]]) -> None:
        num_bytes = sum(size for _, size in pieces)
        available = memory_info().get("MemAvailable", math.inf)
        if num_bytes > available:  # the kernel would hand out pages until it has to kill processes
            raise _too_much(num_bytes, f"{available / 2**20:.0f} MiB are free")
        try:
            for start, size in pieces if hasattr(os, "posix_fallocate") else ():
                os.posix_fallocate(self.fd, start, size)
        except OSError as error:
            raise _too_much(num_bytes, str(error.strerror)) from error

    def close(self) -> None:
        """Close the descriptor; the arrays keep the memory while they live."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def bytes_needed(build: Callable[[Callable[[tuple[int, ...], Any], Array]], object]) -> int:
    """How large a `Region` must be for `build(region.new)`."""
    return bytes_of(build, ALIGNMENT) + ALIGNMENT


def _too_much(num_bytes: int, why: str) -> MemoryError:
    return MemoryError(
        f"cannot reserve {num_bytes / 2**20:.0f} MiB of shared memory ({why}): lower actor.num_tables, "
        "actor.unroll_length or learner.buffer_size, or give the machine more"
    )


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ludus")
    fd, path = tempfile.mkstemp(prefix="ludus")
    os.unlink(path)
    return fd


class Signal:
    """Wakes a waiting process. Signals that nobody waited for are kept, as one. Shared by its descriptors."""

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
        with suppress(BlockingIOError):  # full of signals that nobody has taken: the waiter wakes anyway
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
    """A queue of up to `capacity` numbers from one writer to one reader."""

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


EVERY_S = 10.0
"""Returning free memory takes milliseconds, and memory that is needed again has to be requested again."""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's settings (malloc.h)."""
OWN_PAGES_FROM = 4 << 20
"""Bytes from which an array gets pages of its own, which it returns when it is freed."""
KEPT_AT_THE_TOP = 1 << 30
"""Free bytes at the end of the heap that only `Heap.settle` returns."""


class Heap:
    """Returns free memory of this process to the system. Does nothing without glibc."""

    def __init__(self, *, changing_sizes: bool = False) -> None:
        """`changing_sizes`: the sizes of large arrays change all the time, as those of minibatches do. Freed ones leave
        holes that later ones do not fit, and the heap would grow for hours, so large arrays get pages of their own."""
        libc = ctypes.CDLL(None)
        self._trim = getattr(libc, "malloc_trim", None)
        if changing_sizes and self._trim is not None:
            libc.mallopt(M_MMAP_THRESHOLD, OWN_PAGES_FROM)
            libc.mallopt(M_TRIM_THRESHOLD, KEPT_AT_THE_TOP)
        self._trimmed_at = time.monotonic()

    def settle(self) -> None:
        """Call it in every round, when little memory is in use."""
        now = time.monotonic()
        if self._trim is not None and now - self._trimmed_at >= EVERY_S:
            self._trim(0)
            self._trimmed_at = now
