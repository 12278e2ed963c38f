"""Shared memory for the workers of a run, and the processes that are started on it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ludus.data.shared_memory import Region, bytes_needed
from ludus.experiment import Experiment
from ludus.local.shared_parts import SharedParts
from ludus.local.supervisor import SignsOfLife
from ludus.runtime.channel import Signal
from ludus.runtime.guard import Guard
from ludus.runtime.process import HostedPlayer, Launch, WorkerProcess, control_pair
from ludus.store.run_folder import RunFolder
from ludus.workers.policy_worker import InferenceStatistics

LEARNER = "learner"
POLICY_WORKER = "policy-worker"
ROLES = {LEARNER: "learner", POLICY_WORKER: "policy"}
"""By the name of a process; all others are actors."""


class Launcher:
    """Numbers of workers: the actors from 0 on, then the policy worker, then the learner."""

    parts: SharedParts
    inference: InferenceStatistics
    life: SignsOfLife

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        self._experiment = experiment
        self._folder = folder
        self._guard = Guard()
        self._region: Region | None = None
        self._signals: list[Signal] = []
        self._laid_out_for: tuple[list[str], int] | None = None

    def lay_out(self, players: Mapping[str, HostedPlayer], num_actors: int) -> None:
        """Shared memory for these players and actors, as if nobody had used it; no worker may be alive."""
        wanted = (list(players), num_actors)
        if self._laid_out_for == wanted:
            for ring in (*self.parts.ready, *self.parts.free):
                ring.clear()
            self.parts.used[...] = 0
            return
        self._close_shared()
        size = bytes_needed(lambda new: SharedParts(self._experiment, *wanted, new))
        self._region = Region.create(size)
        self.parts = SharedParts(self._experiment, *wanted, self._region.new)
        self.inference = InferenceStatistics(self.parts.inference_counters)
        self.life = SignsOfLife(self.parts.hearts, self._experiment.supervision.hung_after_s)
        self._signals = [Signal.create() for _ in range(num_actors + 2)]
        self._laid_out_for = wanted

    def spawn(
        self,
        name: str,
        index: int,
        *,
        attempt: int,
        start: int,
        players: Mapping[str, HostedPlayer],
        spent: int,
    ) -> WorkerProcess:
        assert self._region is not None
        control, child = control_pair()
        launch = Launch(
            run=str(self._folder.path),
            role=ROLES.get(name, "actor"),
            index=index,
            num_actors=self.parts.num_actors,
            attempt=attempt,
            start=start,
            control_fd=child.fileno(),
            region_fd=self._region.fd,
            signal_fds=tuple(signal.fds for signal in self._signals),
            players=dict(players),
            spent=spent,
            parent=os.getpid(),
        )
        fds = {child.fileno(), self._region.fd, *(fd for signal in self._signals for fd in signal.fds)}
        self.life.started(index)
        log = self._folder.logs / f"{name}.log"
        process = WorkerProcess(name, launch, sorted(fds), control, log, self._guard)
        child.close()
        return process

    def close(self) -> None:
        self._guard.close()
        self._close_shared()

    def _close_shared(self) -> None:
        self._laid_out_for = None
        if self._region is not None:
            self._region.close()
            self._region = None
        for signal in self._signals:
            signal.close()
        self._signals = []
