"""Settings that change during training (schedules and live fields), and the speed of a counter."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """A linear schedule from `start` to `end` over the budget."""

    start: float
    """At the beginning of the budget."""
    end: float
    """At its end."""

    def at(self, progress: Any) -> Any:
        return self.start + (self.end - self.start) * _within(progress)


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

    def at(self, progress: Any) -> Any:
        return self.start * (self.end / self.start) ** _within(progress)


@dataclass(frozen=True, kw_only=True, slots=True)
class Warmup:
    """Rises in a straight line from 0 to the schedule `then`, and follows it from there on."""

    then: float | Linear | Exponential
    """A number, or a schedule over the whole budget."""
    over: float = 0.01
    """Share of the budget in which it rises."""

    def __post_init__(self) -> None:
        if not 0.0 < self.over <= 1.0:
            raise ValueError(f"Warmup.over is a share of the budget, above 0 and at most 1, got {self.over}")

    def at(self, progress: Any) -> Any:
        return at(self.then, progress) * _within(progress / self.over)


Schedule = float | Linear | Exponential | Warmup


def at(schedule: Schedule, progress: Any) -> Any:
    """The schedule's value when `progress` (0 to 1) of the budget is spent: a float. If progress is a tensor, as in a
    CUDA graph, a value that changes is one too."""
    return float(schedule) if isinstance(schedule, int | float) else schedule.at(progress)


def is_off(weight: Any) -> bool:
    """Whether a weight from `at` is 0 and what it weighs need not be computed. A tensor may change, so it never is."""
    return isinstance(weight, float) and weight == 0.0


def _within(progress: Any) -> Any:
    return progress.clamp(0.0, 1.0) if hasattr(progress, "clamp") else min(max(progress, 0.0), 1.0)


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
