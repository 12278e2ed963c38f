"""The status file of a run, written every few seconds for `ludus status`."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from ludus.data.schedules import WINDOW_S, Speed
from ludus.data.trees import Array
from ludus.experiment import Experiment
from ludus.observe.run_state import find_bottleneck
from ludus.runtime.edits import Orders
from ludus.runtime.faults import WorkerSlot
from ludus.runtime.launcher import BUFFER_WORKER, LEARNER
from ludus.runtime.rounds import FINISHED, TIME_LIMIT
from ludus.runtime.shared_parts import ACTOR_TIMES, BUFFER_TIMES, LEARNER_TIMES
from ludus.runtime.supervisor import WorkerGroup
from ludus.store.run_control import PUBLISH_EVERY_S, Bottleneck, RunStatus, WorkerStatus, write_status
from ludus.store.run_folder import RunFolder
from ludus.system.machine import visible_gpus

END_STATES = (FINISHED, TIME_LIMIT, "failed")
"""Reasons of an end that are states themselves. Any other, such as one that middleware gives, is a stop."""
MEASURED_S = 5.0
"""Shares of a shorter time say nothing about what holds a run up."""


class Watched(Protocol):
    """The part of a training that its status is about."""

    experiment: Experiment
    folder: RunFolder

    def numbers(self) -> dict[str, float]: ...


ServiceStatus = Callable[[], Sequence[WorkerStatus]]
"""The status of the services that run beside the workers."""


def no_services() -> Sequence[WorkerStatus]:
    return ()


class StatusWriter:
    """Writes the status file. `publish` is called in every round and writes when it is time."""

    def __init__(
        self,
        training: Watched,
        orders: Orders,
        look: Callable[[], tuple[Sequence[WorkerStatus], Bottleneck | None]],
        service_status: ServiceStatus = no_services,
    ) -> None:
        """`look` returns the workers and what holds them up; it is called once per file."""
        self._training = training
        self._orders = orders
        self._look = look
        self._service_status = service_status
        self._node = socket.gethostname()
        self._cpu = CpuTime()
        self._started = time.time()
        self._written = -PUBLISH_EVERY_S
        self._speed = Speed()

    def publish(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._written >= PUBLISH_EVERY_S or at_once:
            self._written = now
            workers, bottleneck = self._look()
            state = "paused" if self._orders.paused else "training"
            self._write(state, (*workers, *self._service_status()), bottleneck)

    def end(self, reason: str) -> None:
        """The run has ended: it has no workers any more."""
        self._write(reason if reason in END_STATES else "stopped", (), None)

    def _write(self, state: str, workers: Sequence[WorkerStatus], bottleneck: Bottleneck | None) -> None:
        experiment, numbers = self._training.experiment, self._training.numbers()
        decisions = int(numbers["decisions"])
        status = RunStatus(
            time=time.time(),
            state=state,
            experiment=experiment.name,
            trial=experiment.trial,
            runtime=experiment.runtime,
            node=self._node,
            pid=os.getpid(),
            started=self._started,
            time_limit_h=experiment.time_limit_h,
            decisions=decisions,
            budget=experiment.budget,
            decisions_per_s=self._speed.note(decisions) or 0.0,
            lag={name.removesuffix("/lag"): value for name, value in numbers.items() if name.endswith("/lag")},
            episodes=int(numbers["episodes"]),
            matches=int(numbers["matches"]),
            restarts=int(numbers.get("restarts", 0)),
            workers=tuple(workers),
            bottleneck=bottleneck,
            cpu_s=self._cpu.look(workers, self._node),
        )
        write_status(self._training.folder.status, status)


class CpuTime:
    """Seconds of CPU of this process and its workers. What a worker did since the last look is not in it."""

    def __init__(self) -> None:
        self._workers: dict[int, float] = {}
        self._known = True

    def look(self, workers: Sequence[WorkerStatus], node: str) -> float | None:
        """None where it cannot be known: workers of other machines, or a system without /proc."""
        for one in workers:
            if one.pid is None:
                continue
            self._known &= one.node == node
            with suppress(OSError):
                fields = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
                self._workers[one.pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            self._known &= one.pid in self._workers
        own = os.times()
        return own.user + own.system + sum(self._workers.values()) if self._known else None


class _Moment(NamedTuple):
    at: float
    actors: Array
    """[places, ACTOR_TIMES]"""
    learner: Array
    buffer: Array


class WorkerGroupStatus:
    """The status of worker processes, and the shares of their time over the last seconds."""

    def __init__(self, group: WorkerGroup, experiment: Experiment, folder: RunFolder) -> None:
        self._group = group
        self._experiment = experiment
        self._folder = folder
        self._moments: deque[_Moment] = deque()
        self._node = socket.gethostname()
        self._idle_gpu = experiment.learner.device == "cpu" and bool(visible_gpus())

    def look(self) -> tuple[list[WorkerStatus], Bottleneck | None]:
        self._remember()
        workers = list(self._workers())
        actors = [one.shares for one in workers if one.name.startswith("actor-") and one.shares]
        if self._passed.at < MEASURED_S:
            return workers, None
        bottleneck = find_bottleneck(
            {kind: float(np.mean([one[kind] for one in actors])) for kind in ACTOR_TIMES} if actors else {},
            _busiest([one.shares for one in workers if one.name.startswith(LEARNER) and one.shares]),
            next((one.shares for one in workers if one.name == BUFFER_WORKER), {}),
            num_actors=self._group.sharing,
            schedule=self._experiment.learner.schedule,
            central=self._experiment.actor.inference == "worker",
            run=str(self._folder.path),
            idle_gpu=self._idle_gpu,
        )
        return workers, bottleneck

    def _workers(self) -> Iterator[WorkerStatus]:
        group = self._group
        generations = group.launcher.parts.generations
        learners = [(player, process, channel) for channel, (player, process) in enumerate(group.learners.items())]
        for player, process, channel in (*learners, *(("", follower, -1) for follower in group.followers)):
            yield WorkerStatus(
                name=process.name,
                state="starting" if player and generations[channel] % 2 else "working",
                pid=process.pid,
                node=process.node or self._node,
                started=group.learner_started[player],
                restarts=group.learner_starts[player] - 1,
                shares=_shares(LEARNER_TIMES, self._passed.learner[channel]) if channel >= 0 else {},
            )
        present = group.launcher.parts.present
        for slot in (*group.helpers, *group.actors):
            if not slot.taken and not slot.given_up:
                continue
            is_actor = slot not in group.helpers
            held = slot.process
            yield WorkerStatus(
                name=slot.name,
                state=_state(slot, is_ready=not is_actor or bool(present[slot.index])),
                pid=None if held is None else held.pid,
                node=(None if held is None else held.node) or self._node,
                started=slot.started,
                restarts=max(0, slot.attempts - 1),
                shares=self._shares_of(slot),
            )

    def _shares_of(self, slot: WorkerSlot) -> dict[str, float]:
        if slot is self._group.policy_worker:
            return {}
        if slot is self._group.buffer_worker:
            return _shares(BUFFER_TIMES, self._passed.buffer)
        return _shares(ACTOR_TIMES, self._passed.actors[slot.index])

    @property
    def _passed(self) -> _Moment:
        """How the times have grown over the remembered seconds."""
        then, now = self._moments[0], self._moments[-1]
        times = (now.actors - then.actors, now.learner - then.learner, now.buffer - then.buffer)
        return _Moment(now.at - then.at, *times)

    def _remember(self) -> None:
        parts, moments = self._group.launcher.parts, self._moments
        times = (parts.actor_times, parts.learner_times, parts.buffer_times)
        now = _Moment(time.monotonic(), *(one.copy() for one in times))
        if moments and ((now.actors < moments[-1].actors).any() or (now.learner < moments[-1].learner).any()):
            moments.clear()  # shared memory was laid out anew
        moments.append(now)
        while len(moments) > 2 and moments[1].at <= now.at - WINDOW_S:
            moments.popleft()


def _busiest(learners: Sequence[dict[str, float]]) -> dict[str, float]:
    return max(learners, key=lambda shares: shares["training"], default={})


def _shares(kinds: tuple[str, ...], seconds: Array) -> dict[str, float]:
    total = float(seconds.sum())
    if not total:
        return {}
    return {kind: round(float(one) / total, 4) for kind, one in zip(kinds, seconds, strict=True)}


def _state(slot: WorkerSlot, *, is_ready: bool) -> str:
    if slot.given_up:
        return "quarantined"
    if slot.process is None or not is_ready:
        return "starting"
    return "leaving" if slot.leave_by is not None else "working"
