"""Workers, which do one bounded piece of work at a time, and middleware around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The result of one step of a worker."""

    count: int = 0
    """Work done, in the worker's own unit (decisions acted, decisions learned, events recorded); 0: idle."""
    statistics: Mapping[str, float] = field(default_factory=dict)


IDLE = Progress()


class Worker(Protocol):
    """An actor, a learner, a controller and so on. A worker does not know which runtime runs it."""

    @property
    def name(self) -> str: ...
    def step(self) -> Progress:
        """Do one bounded piece of work."""

    def close(self) -> None: ...


class StopTraining(Exception):  # noqa: N818 - a request, not an error
    """Raised by middleware or a worker to end the run after saving its state."""


class Middleware(Protocol):
    """User code around every step of every worker, to log, change or stop (`StopTraining`) it."""

    def __call__(self, worker: Worker, step: Callable[[], Progress]) -> Progress:
        """Call `step` (or not) and return its progress (or another)."""


def wrap(worker: Worker, middleware: Sequence[Middleware]) -> Callable[[], Progress]:
    """The worker's step wrapped in all middleware; the first is the outermost."""
    step = worker.step
    for layer in reversed(middleware):
        step = partial(layer, worker, step)
    return step


class TrainingFailed(RuntimeError):  # noqa: N818
    """The run cannot continue. The message says why and what to look at; trained weights are kept."""


class Diverged(TrainingFailed):
    """Training has spoilt the weights of a player. They are neither published nor saved: the latest checkpoint and all
    snapshots are from before."""


class LearningWatch:
    """Ends a run that plays but whose updates are all refused."""

    def __init__(self, most_refused: int) -> None:
        self._most = most_refused
        self._in_a_row: Counter[str] = Counter()

    def see(self, statistics: Mapping[str, float]) -> None:
        """Check the statistics of an update of any number of players, named PLAYER/STATISTIC."""
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
