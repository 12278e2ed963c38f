"""What a run says about itself every few seconds, for `ludus status`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ludus.data.speed import Speed
from ludus.experiment import Experiment
from ludus.live.orders import Orders
from ludus.runtime.serial import FINISHED, INTERRUPTED
from ludus.store.run_folder import RunFolder
from ludus.store.run_status import (
    PUBLISH_EVERY_S,
    Bottleneck,
    RunStatus,
    WorkerStatus,
    write_status,
)

STATES = {FINISHED: "finished", INTERRUPTED: "stopped"}
"""By why it ended; other reasons are states themselves."""


class Watched(Protocol):
    """The part of a training that is looked at."""

    experiment: Experiment
    folder: RunFolder

    def numbers(self) -> dict[str, float]: ...


Beside = Callable[[], Sequence[WorkerStatus]]
"""How the processes are that run beside the workers: services."""


def nobody() -> Sequence[WorkerStatus]:
    return ()


class StatusWriter:
    """Call `publish` in every round; it writes when it is time."""

    def __init__(
        self,
        training: Watched,
        orders: Orders,
        look: Callable[[], tuple[Sequence[WorkerStatus], Bottleneck | None]],
        beside: Beside = nobody,
    ) -> None:
        """`look` is called once for every time that something is written: who works, and what holds them
        up."""
        self._training = training
        self._orders = orders
        self._look = look
        self._beside = beside
        self._started = time.time()
        self._written = -PUBLISH_EVERY_S
        self._speed = Speed()

    def publish(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._written >= PUBLISH_EVERY_S or at_once:
            self._written = now
            workers, bottleneck = self._look()
            state = "paused" if self._orders.paused else "training"
            self._write(state, (*workers, *self._beside()), bottleneck)

    def end(self, reason: str) -> None:
        """The run has ended: nobody works any more."""
        self._write(STATES.get(reason, reason), (), None)

    def _write(self, state: str, workers: Sequence[WorkerStatus], bottleneck: Bottleneck | None) -> None:
        experiment, numbers = self._training.experiment, self._training.numbers()
        decisions = int(numbers["decisions"])
        status = RunStatus(
            time=time.time(),
            state=state,
            experiment=experiment.name,
            trial=experiment.trial,
            runtime=experiment.runtime,
            node=socket.gethostname(),
            pid=os.getpid(),
            started=self._started,
            time_limit_h=experiment.time_limit_h,
            decisions=decisions,
            budget=experiment.budget,
            decisions_per_s=self._speed.note(decisions) or 0.0,
            lag={
                name.removesuffix("/lag"): value for name, value in numbers.items() if name.endswith("/lag")
            },
            episodes=int(numbers["episodes"]),
            matches=int(numbers["matches"]),
            restarts=int(numbers.get("restarts", 0)),
            workers=tuple(workers),
            bottleneck=bottleneck,
        )
        write_status(self._training.folder.status, status)
