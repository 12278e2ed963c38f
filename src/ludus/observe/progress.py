"""The progress of a training as numbers and as lines of text, for `ludus train` and `ludus.train`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol, Self

FIRST_S, EVERY_S = 1.0, 5.0
"""Seconds until the first line of progress, and between two lines."""
NOT_FINITE = (("refused", "decisions"), ("skipped", "updates"))
NEAR_ZERO = 1e-3
"""Entropy (nats) of a policy that always does the same."""
MANY_VOIDS_IN_A_ROW = 10


class Trained(Protocol):
    """A training, as far as its progress is concerned."""

    @property
    def experiment(self) -> Any: ...

    def numbers(self) -> Mapping[str, float]: ...


class Pace:
    """The rate of a count: over the last minute, or over the last few steps where those take longer."""

    WINDOW_S = 60.0
    STEPS = 3

    def __init__(self, now: float, count: float) -> None:
        self._seen = deque([(now, count)])

    def __call__(self, now: float, count: float) -> float:
        """Per second. Falls while nothing happens."""
        if count != self._seen[-1][1]:
            self._seen.append((now, count))
        while len(self._seen) > self.STEPS and now - self._seen[1][0] > self.WINDOW_S:
            self._seen.popleft()
        began, first = self._seen[0]
        return (count - first) / max(now - began, 1e-9)


class TrainingProgress:
    """The numbers of a training, with its share of the budget, its speed and the time left."""

    def __init__(self, training: Trained) -> None:
        self._training = training
        self._pace = Pace(time.monotonic(), training.numbers()["decisions"])

    def numbers(self, now: float) -> dict[str, float]:
        numbers, budget = self._training.numbers(), self._training.experiment.budget
        rate = self._pace(now, numbers["decisions"])
        left = max(budget - numbers["decisions"], 0)
        return {
            "progress": min(numbers["decisions"] / budget, 1.0),
            "decisions_per_s": rate,
            **({"left_s": left / rate} if rate else {}),
            **numbers,
        }

    def line(self, now: float) -> str:
        numbers = self.numbers(now)
        entropy = next((value for name, value in numbers.items() if name.endswith("/entropy")), None)
        return (
            f"{numbers['progress']:6.1%}  {numbers['decisions']:>12,.0f} decisions  "
            f"{numbers['decisions_per_s']:>8,.0f}/s  {numbers['matches']:>6,.0f} matches  "
            + (f"entropy {entropy:.3f}  " if entropy is not None else "")
            + "  ".join([time_left(numbers), *troubles(numbers)])
        )


class ProgressLines:
    """Prints a line about a training every few seconds; call it after every round."""

    def __init__(self, training: Trained, *, quiet: bool = False) -> None:
        self._progress = TrainingProgress(training)
        self._quiet = quiet
        self._due = time.monotonic() + FIRST_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to release."""

    def __call__(self, training: Trained) -> None:
        now = time.monotonic()
        if not self._quiet and now >= self._due:
            self._due = now + EVERY_S
            print(self._progress.line(now), flush=True)


def troubles(numbers: Mapping[str, float]) -> list[str]:
    """Warnings for a line of progress: a run that learns nothing must not look like a slow one."""
    shown = [
        f"{name.removesuffix('/entropy')} always does the same (entropy near 0)!"
        for name, entropy in numbers.items()
        if name.endswith("/entropy") and entropy < NEAR_ZERO
    ]
    if (void := numbers.get("void_in_a_row", 0)) >= MANY_VOIDS_IN_A_ROW:
        shown.append(f"{void:,.0f} matches in a row void!")
    for what, things in NOT_FINITE:
        count = sum(value for name, value in numbers.items() if name.endswith(f"/{what}"))
        if count:
            shown.append(f"{count:,.0f} {things} not finite!")
    if lost := numbers.get("metrics_lost"):
        shown.append(f"{lost:,.0f} rows of metrics not written!")
    return shown


def time_left(numbers: Mapping[str, float]) -> str:
    if "left_s" not in numbers:
        return "? left"
    minutes, rest = divmod(int(numbers["left_s"]), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m left" if hours else f"{minutes}m {rest:02d}s left"
