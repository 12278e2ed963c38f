"""What every runtime runs: workers that do one bounded piece of work at a time, and middleware."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
