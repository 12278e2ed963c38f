"""Memory that a worker has freed goes back to the system now and then.

Tensors of many sizes leave gaps in the heap that are reused only in part, so that a process would take more
and more of the machine without anything in it growing.
"""

from __future__ import annotations

import ctypes
import time

EVERY_S = 10.0
"""Giving the gaps back takes milliseconds, and what is needed again has to be asked for again."""


class Heap:
    """Of this process. Does nothing where the C library has no way to do it (that is, without glibc)."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._trimmed_at = time.monotonic()

    def settle(self) -> None:
        """Call it in every round, at a moment when little is in use."""
        now = time.monotonic()
        if self._trim is not None and now - self._trimmed_at >= EVERY_S:
            self._trim(0)
            self._trimmed_at = now
