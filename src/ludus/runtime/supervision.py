"""When a worker counts as hung, what is tried again, and when a run is given up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields


class TrainingFailed(RuntimeError):  # noqa: N818
    """The run cannot go on by itself; the message says why and what to look at. What was learned is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervision:
    """What the controller does about workers that fail."""

    hung_after_s: float = 60.0
    """A worker without a sign of life for so long is ended and replaced. One step of the tables, one update
    and one checkpoint must each take less."""
    quarantine_after: int = 3
    """Failures of an actor without a finished match in between, after which it is not started again."""
    back_off_s: float = 0.5
    """Pause before an actor that failed is started again; twice as long after each further failure."""
    most_failures: int = 5
    """Failures of the learner without a checkpoint in between, after which the run ends."""
    most_refused: int = 20
    """Updates in a row that were refused because of a NaN or an infinity, after which the run ends."""
    stop_within_s: float = 20.0
    """How long an asked-for stop waits for the learner to save; then the latest checkpoint has to do."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = 1 if isinstance(field.default, int) else 0
            if not lowest <= value < math.inf:
                raise ValueError(
                    f"supervision.{field.name} must be at least {lowest} and finite, got {value}"
                )


class LearningWatch:
    """Notices a run that plays and plays and learns nothing."""

    def __init__(self, most_refused: int) -> None:
        self._most = most_refused
        self._in_a_row = 0
        self._refused = 0.0
        self._skipped = 0.0
        self._decisions = -1

    def see(self, decisions: int, statistics: Mapping[str, float]) -> None:
        """After every update: the decisions learned from so far, and what the learner has measured."""
        refused = _sum_of(statistics, "/refused")
        skipped = _sum_of(statistics, "/skipped")
        in_vain = (decisions == self._decisions and refused > self._refused) or skipped > self._skipped
        self._in_a_row = self._in_a_row + 1 if in_vain else 0
        self._decisions, self._refused, self._skipped = decisions, refused, skipped
        if self._in_a_row >= self._most:
            raise TrainingFailed(
                f"{self._in_a_row} updates in a row were refused: the game shows or pays NaN or infinity "
                f"({refused:,.0f} decisions so far), or the loss is not finite ({skipped:,.0f} gradient "
                "steps so far). `ludus check GAME` finds the first; a lower learner.learning_rate may help "
                "with the second. What was learned before is saved"
            )


def _sum_of(statistics: Mapping[str, float], name: str) -> float:
    return sum(value for key, value in statistics.items() if key.endswith(name))
