"""How fast a counter goes up, measured over the last seconds."""

from __future__ import annotations

import time
from collections import deque

WINDOW_S = 10.0
"""What is measured "of late" is measured over so long."""
LEAST_S = 0.5
"""Over less time nothing is measured."""


class Speed:
    """Tell it the counter now and then; it says how much it grew per second of late, once it can."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, count: float) -> float | None:
        seen, now = self._seen, time.monotonic()
        if seen and seen[-1][1] > count:
            seen.clear()  # it has fallen back to a checkpoint
        seen.append((now, count))
        while len(seen) > 2 and seen[1][0] <= now - WINDOW_S:
            seen.popleft()
        then, before = seen[0]
        return (count - before) / (now - then) if now - then >= LEAST_S else None
