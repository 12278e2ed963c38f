"""Numbers that change over training, as functions of the share of the budget that is spent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """From `start` to `end` in a straight line."""

    start: float
    """At the beginning of the budget."""
    end: float
    """At its end."""

    def at(self, progress: float) -> float:
        return self.start + (self.end - self.start) * min(max(progress, 0.0), 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exponential:
    """From `start` to `end` by a constant factor; both above zero."""

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
