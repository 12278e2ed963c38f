"""What every runtime runs: workers that do one bounded piece of work at a time, and middleware."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What one step of a worker got done."""

    count: int = 0
    """In the worker's own unit (decisions acted, decisions learned, events recorded); 0 means idle."""
    statistics: Mapping[str, float] = field(default_factory=dict)


IDLE = Progress()


class Worker(Protocol):
    """An actor, a learner, an evaluator, a controller. It never knows which runtime it is in."""

    @property
    def name(self) -> str: ...
    def step(self) -> Progress:
        """Do one bounded piece of work."""

    def close(self) -> None: ...


class StopTraining(Exception):  # noqa: N818 - a request, not an error
    """Raised by middleware or a worker to end the run in good order; the state is saved."""


class Middleware(Protocol):
    """User code around every step of every worker: to log, to change, or to stop (`StopTraining`)."""

    def __call__(self, worker: Worker, step: Callable[[], Progress]) -> Progress:
        """Call `step` (or not) and return its progress (or another)."""


def wrap(worker: Worker, middleware: Sequence[Middleware]) -> Callable[[], Progress]:
    """The worker's step inside all middleware, the first one outermost."""
    step = worker.step
    for layer in reversed(middleware):
        step = partial(layer, worker, step)
    return step


class TrainingFailed(RuntimeError):  # noqa: N818
    """The run cannot go on by itself; the message says why and what to look at. What was learned is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervision:
    """What the controller does about workers that fail."""

    hung_after_s: float = 60.0
    """A worker without a sign of life for so long is ended and replaced. One step of the tables, one
    gradient step and one checkpoint must each take less."""
    quarantine_after: int = 3
    """Failures of an actor without more being learned in between, after which it is not started again."""
    back_off_s: float = 0.5
    """Pause before an actor that failed is started again; twice as long after each further failure."""
    most_failures: int = 5
    """Failures of the learner without a checkpoint in between, or of the policy worker without more being
    learned, after which the run ends."""
    most_refused: int = 20
    """Updates in a row that were refused because of a NaN or an infinity, after which the run ends."""
    stop_within_s: float = 20.0
    """How long an asked-for stop waits for the learner to save; then the latest checkpoint has to do."""
    leave_within_s: float = 60.0
    """How long an actor that has to leave may play its open matches to their end; then they are void."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            lowest = 1 if isinstance(setting.default, int) else 0
            if not lowest <= value < math.inf:
                raise ValueError(f"supervision.{setting.name} must be at least {lowest} and finite, got {value}")


class LearningWatch:
    """Notices a run that plays and plays and learns nothing."""

    def __init__(self, most_refused: int) -> None:
        self._most = most_refused
        self._in_a_row: Counter[str] = Counter()

    def see(self, statistics: Mapping[str, float]) -> None:
        """After every update: what the learner has measured, of each player that it trained."""
        for name, steps in statistics.items():
            player, _, what = name.rpartition("/")
            if what != "gradient_steps":
                continue
            refused, skipped = (statistics.get(f"{player}/{kind}", 0.0) for kind in ("refused", "skipped"))
            self._in_a_row[player] = 0 if steps or not (refused or skipped) else self._in_a_row[player] + 1
            if self._in_a_row[player] >= self._most:
                raise TrainingFailed(
                    f"{self._in_a_row[player]} updates in a row of {player} were refused: the game shows or "
                    f"pays NaN or infinity ({refused:,.0f} decisions so far), or the loss is not finite "
                    f"({skipped:,.0f} gradient steps so far). `ludus check GAME` finds the first; a lower "
                    "learner.learning_rate may help with the second. What was learned before is saved"
                )
