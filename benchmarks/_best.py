"""The best of several windows: what a part costs when nothing else disturbs it."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOWS = 7


def best(work: Callable[[], int], *, clock: Callable[[], float] = time.process_time) -> float:
    """Units per second in the best window; `work` returns how many it did."""
    work()
    rates = []
    for _ in range(WINDOWS):
        before = clock()
        units = work()
        rates.append(units / (clock() - before))
    return max(rates)
