"""Memory that several processes see. It has no name: it is passed on as a file descriptor and is gone when
the last process that holds it is gone, however it ends."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ludus.data.trees import Array

ALIGNMENT = 64
"""Arrays start on a cache line of their own, so that two writers never share one."""


class Region:
    """One piece of shared memory, cut into arrays in the order in which they are asked for.

    Every process that asks for the same arrays in the same order sees the same ones.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, 0)
        self._used = 0

    @classmethod
    def create(cls, num_bytes: int) -> Region:
        """New memory, all zero. Its pages are reserved now, so that writing to it cannot fail later."""
        fd = _anonymous_file()
        try:
            size = max(num_bytes, 1)
            os.ftruncate(fd, size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
        except OSError as error:
            os.close(fd)
            raise MemoryError(
                f"cannot reserve {num_bytes / 2**20:.0f} MiB of shared memory ({error.strerror}): lower "
                "actor.num_tables, actor.unroll_length or learner.buffer_size, or give the machine more"
            ) from error
        return cls(fd)

    def new(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """The next array."""
        dtype = np.dtype(dtype)
        count = prod(shape)
        array = np.frombuffer(self._memory, dtype, count, self._used).reshape(shape)
        self._used += _aligned(count * dtype.itemsize)
        return array

    def close(self) -> None:
        """Let go of the descriptor; the arrays keep the memory for as long as they live."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def bytes_needed(build: Callable[[Callable[[tuple[int, ...], Any], Array]], object]) -> int:
    """How large a `Region` must be for `build(region.new)`."""
    total = 0

    def count(shape: tuple[int, ...], dtype: Any) -> Array:
        nonlocal total
        total += _aligned(prod(shape) * np.dtype(dtype).itemsize)
        return np.broadcast_to(np.zeros((), dtype), shape)

    build(count)
    return total + ALIGNMENT


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ludus")
    fd, path = tempfile.mkstemp(prefix="ludus")
    os.unlink(path)
    return fd
