"""The launcher of this machine: shared memory for the workers of a run, and their processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from ludus.experiment import Experiment
from ludus.runtime.faults import Heartbeats
from ludus.runtime.settings import with_own_parts
from ludus.runtime.shared_parts import SharedParts
from ludus.store.run_folder import RunFolder
from ludus.system.guard import Guard
from ludus.system.log_keeper import LogKeeper
from ludus.system.process import WorkerProcess, control_pair
from ludus.system.shared_memory import Region, Signal, bytes_needed
from ludus.workers.messages import HostedPlayer, Launch, worker_command
from ludus.workers.policy_worker import InferenceStatistics
from ludus.workers.ranks import LOOPBACK, Rendezvous

LEARNER = "learner"
POLICY_WORKER = "policy-worker"
BUFFER_WORKER = "buffer-worker"
_ROLES = {POLICY_WORKER: "policy", BUFFER_WORKER: "buffer"}


def learner_name(player: str) -> str:
    """The name of the learner of one player."""
    return f"{LEARNER}-{player}"


def rank_name(rank: int) -> str:
    """The name of a rank of the learner."""
    return LEARNER if rank == 0 else f"{LEARNER}-{rank}"


class SpawnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order to start a worker."""

    name: str
    index: int
    attempt: int
    start: int
    sharing: int
    players: dict[str, HostedPlayer]
    spent: int
    learns: str = ""
    """Of a learner: the only player that it trains; "" for all."""
    rendezvous: str = ""
    """Address at which the ranks of the learner find each other; empty: all are on this machine, or there is one."""


class LocalLauncher:
    """Starts workers as processes of this machine, on memory that they share. `ClusterLauncher` does the same on the
    nodes of a cluster.

    Workers are numbered: the slots of the actors from 0 on, then the policy worker, then the ranks of the
    learner, of which rank 0 is started first, then the buffer worker.
    """

    parts: SharedParts
    inference: InferenceStatistics
    heartbeats: Heartbeats

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        self._experiment = experiment
        self._folder = folder
        self._guard = Guard()
        self._logs = LogKeeper(folder.logs, folder.path.absolute().name)
        self._rendezvous: Rendezvous | None = None
        self.models = ""
        """The address of the run's models, if this machine does not see the run folder."""
        self._region: Region | None = None
        self.signals: list[Signal] = []
        """The signal that wakes each worker, by its number."""
        self._laid_out_for: tuple[dict[str, str], int, dict[str, Any]] | None = None
        self._roles: dict[str, Any] = {}
        self._reserved: set[int] = set()
        """Slots that have their memory."""

    def lay_out(
        self,
        players: Mapping[str, HostedPlayer],
        num_slots: int,
        taken: Collection[int],
        roles: Mapping[str, Any] | None = None,
    ) -> None:
        """Lay out shared memory for these players and slots for actors, as if it had never been used; no worker may
        be alive. Only the slots that are `taken` use memory. `roles`: what they have of their own (`own_parts`)."""
        wanted = ({player: hosted.role for player, hosted in players.items()}, num_slots)
        self._roles = dict(roles or {})
        if self._laid_out_for == (*wanted, self._roles):  # the memory of a role's network is part of every row
            self.reserve(taken)
            for slot in self._reserved:
                for ring in (*self.parts.ready[slot], *self.parts.free[slot]):
                    ring.clear()
            for array in (self.parts.used, self.parts.decisions, self.parts.held_up, self.parts.generations):
                array[...] = 0
            if self.parts.recomputing is not None:
                self.parts.recomputing.clear()
            self.parts.present[...] = False
            self.parts.present[list(taken)] = True
            self.parts.paused[...] = False
            return
        self._close_shared()
        experiment = with_own_parts(self._experiment, self._roles)
        size = bytes_needed(lambda new: SharedParts(experiment, *wanted, new))
        self._region = Region.sparse(size)
        self.parts = SharedParts(experiment, *wanted, self._region.new)
        self._region.reserve(self.parts.memory(taken))
        self._reserved = set(taken)
        self.parts.present[list(taken)] = True  # they begin together: the learner waits for all of them
        self.inference = InferenceStatistics(self.parts.inference_counters)
        self.heartbeats = Heartbeats(self.parts.heartbeats, self._experiment.supervision.hung_after_s)
        self.signals = [Signal.create() for _ in self.parts.heartbeats]
        self._laid_out_for = (*wanted, self._roles)

    @property
    def room(self) -> int:
        """How many actors there can be at present, on all machines together."""
        return sys.maxsize

    def has_room(self, index: int) -> bool:
        """Whether the worker of this number can be started now."""
        return True

    def reserve(self, slots: Iterable[int]) -> None:
        """Get memory for these slots too; raises `MemoryError` if there is not enough."""
        assert self._region is not None
        for slot in sorted({*slots} - self._reserved):
            self._region.reserve(self.parts.for_place[slot])
            self._reserved.add(slot)

    def lose_learner(self, player: str) -> None:
        """The learner of this player alone has ended: actors go on without it until there is another one."""
        number = self.parts.players.index(player)
        self.parts.generations[number] += 1 - self.parts.generations[number] % 2
        self.parts.used[:, number] = 0
        self.parts.held_up[:, number] = False
        for signal in self.signals:
            signal.notify()

    def can_restart_learner(self, player: str) -> bool:
        """Whether the learner of this player can start again where it was."""
        return True

    def left(self, index: int) -> None:
        """The actor of this slot has ended in good order. Here it has noted that in shared memory itself."""

    def pause(self, paused: bool) -> None:
        self.parts.paused[...] = paused
        for signal in self.signals:
            signal.notify()

    def spawn(self, order: SpawnOrder) -> WorkerProcess:
        assert self._region is not None
        control, child = control_pair()
        index = order.index
        rank = index - self.parts.learners.start if index in self.parts.learners else -1
        rank = 0 if order.learns else rank
        if rank == 0 and not order.rendezvous and self.parts.num_ranks > 1:
            self.open_rendezvous()
        if rank >= 0 and not order.rendezvous and self._rendezvous is not None:
            order = msgspec.structs.replace(order, rendezvous=self._rendezvous.address)
        launch = Launch(
            run=str(self._folder.path),
            role="learner" if rank >= 0 else _ROLES.get(order.name, "actor"),
            num_places=self.parts.num_places,
            control_fd=child.fileno(),
            region_fd=self._region.fd,
            signal_fds=tuple(signal.fds for signal in self.signals),
            parent=os.getpid(),
            roles=self._roles,
            models=self.models,
            **{name: value for name, value in msgspec.structs.asdict(order).items() if name != "name"},
        )
        fds = {child.fileno(), self._region.fd, *(fd for signal in self.signals for fd in signal.fds)}
        self.heartbeats.started(index)
        with child, self._logs.output(order.name) as output:
            process = WorkerProcess(order.name, worker_command(launch), sorted(fds), control, output, self._guard)
        self.heartbeats.runs_as(index, process.pid)
        return process

    def open_rendezvous(self, host: str = LOOPBACK) -> str:
        """Let the ranks of the next learner find each other at this address of this machine; returns it with a port."""
        self._rendezvous = Rendezvous(host)
        return self._rendezvous.address

    def look(self) -> None:
        """Called in every round."""
        self.heartbeats.look()
        self._guard.look()
        self._logs.look()

    def close(self) -> None:
        self._guard.close()
        self._logs.close()
        self._close_shared()

    def _close_shared(self) -> None:
        self._rendezvous = None
        self._laid_out_for = None
        self._reserved = set()
        if self._region is not None:
            self._region.close()
            self._region = None
        for signal in self.signals:
            signal.close()
        self.signals = []
