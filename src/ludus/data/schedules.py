"""Settings that change during training (schedules and live fields), and the speed of a counter."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Annotated, TypeVar


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """A linear schedule from `start` to `end` over the budget."""

    start: float
    """At the beginning of the budget."""
    end: float
    """At its end."""

    def at(self, progress: float) -> float:
        return self.start + (self.end - self.start) * min(max(progress, 0.0), 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exponential:
    """An exponential schedule from `start` to `end` over the budget; both above zero."""

    start: float
    """At the beginning of the budget."""
    end: float
    """At its end."""

    def __post_init__(self) -> None:
        if self.start <= 0 or self.end <= 0:
            raise ValueError(f"Exponential needs start and end above 0, got {self.start} and {self.end}")

    def at(self, progress: float) -> float:
        return float(self.start * (self.end / self.start) ** min(max(progress, 0.0), 1.0))


Schedule = float | Linear | Exponential


def at(schedule: Schedule, progress: float) -> float:
    """The schedule's value when `progress` (0 to 1) of the budget is spent."""
    return float(schedule) if isinstance(schedule, int | float) else schedule.at(progress)


LIVE = "live"

_T = TypeVar("_T")
LiveField = Annotated[_T, LIVE]
"""Marks the type of a live setting: it and everything inside it may change while a run trains."""


WINDOW_S = 10.0  # seconds over which speed is measured
LEAST_S = 0.5  # fewest seconds that give a speed


class Speed:
    """Growth per second of a counter over the last `WINDOW_S`; `note` returns None until it can tell."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, count: float) -> float | None:
        seen, now = self._seen, time.monotonic()
        if seen and seen[-1][1] > count:
            seen.clear()  # the run went back to a checkpoint
        seen.append((now, count))
        while len(seen) > 2 and seen[1][0] <= now - WINDOW_S:
            seen.popleft()
        then, before = seen[0]
        return (count - before) / (now - then) if now - then >= LEAST_S else None
