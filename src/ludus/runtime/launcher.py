"""Launchers: shared memory for the workers of a run, and the processes that are started on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from ludus.experiment import Experiment
from ludus.runtime.faults import Fault, Heartbeats
from ludus.runtime.shared_parts import RankWires, SharedParts
from ludus.store.run_folder import RunFolder
from ludus.system.guard import Guard
from ludus.system.log_keeper import LogKeeper
from ludus.system.process import WorkerProcess, control_pair
from ludus.system.shared_memory import Region, Signal, bytes_needed
from ludus.workers.messages import HostedPlayer, Launch, worker_command
from ludus.workers.policy_worker import InferenceStatistics

LEARNER = "learner"
POLICY_WORKER = "policy-worker"
BUFFER_WORKER = "buffer-worker"


_ROLES = {POLICY_WORKER: "policy", BUFFER_WORKER: "buffer"}


def rank_name(rank: int) -> str:
    """The name of a rank of the learner."""
    return LEARNER if rank == 0 else f"{LEARNER}-{rank}"


class SpawnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a launcher needs to start a worker."""

    name: str
    index: int
    attempt: int
    start: int
    sharing: int
    players: dict[str, HostedPlayer]
    spent: int


class Launcher(Protocol):
    """Starts workers on memory that they share: on this machine, or on the nodes of a cluster.

    Workers are numbered: the slots of the actors from 0 on, then the policy worker, then the ranks of the
    learner, of which rank 0 is started first, then the buffer worker.
    """

    parts: SharedParts
    inference: InferenceStatistics
    heartbeats: Heartbeats

    def lay_out(self, players: Mapping[str, HostedPlayer], num_slots: int, taken: Collection[int]) -> None:
        """Lay out shared memory for these players and slots for actors, as if it had never been used; no
        worker may be alive. Of the slots only those that are `taken` take up memory."""

    @property
    def room(self) -> int:
        """How many actors there can be at present, on all machines together."""

    def has_room(self, index: int) -> bool:
        """Whether the worker of this number can be started now: on a cluster it may have to wait."""

    def reserve(self, slots: Iterable[int]) -> None:
        """Get memory for these slots too; `MemoryError` if there is not enough."""

    def spawn(self, order: SpawnOrder) -> WorkerProcess: ...

    def pause(self, paused: bool) -> None:
        """Pause or continue all workers."""

    def left(self, index: int) -> None:
        """The actor of this slot has ended in good order."""

    def look(self) -> Sequence[tuple[str, Fault]]:
        """Called in every round. Returns faults of nodes, by their names, that have ended no worker."""

    def close(self) -> None: ...


class LocalLauncher:
    """A `Launcher` of processes of this machine."""

    parts: SharedParts
    inference: InferenceStatistics
    heartbeats: Heartbeats

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        self._experiment = experiment
        self._folder = folder
        self._guard = Guard()
        self._logs = LogKeeper(folder.logs, folder.path.absolute().name)
        self._rank_wires = RankWires(1)
        self._region: Region | None = None
        self._signals: list[Signal] = []
        self._laid_out_for: tuple[list[str], int] | None = None
        self._reserved: set[int] = set()
        """Slots that have their memory."""

    def lay_out(self, players: Mapping[str, HostedPlayer], num_slots: int, taken: Collection[int]) -> None:
        wanted = (list(players), num_slots)
        if self._laid_out_for == wanted:
            self.reserve(taken)
            for slot in self._reserved:
                self.parts.ready[slot].clear()
                self.parts.free[slot].clear()
            self.parts.used[...] = 0
            if self.parts.recomputing is not None:
                self.parts.recomputing.clear()
            self.parts.present[...] = False
            self.parts.present[list(taken)] = True
            self.parts.paused[...] = False
            return
        self._close_shared()
        size = bytes_needed(lambda new: SharedParts(self._experiment, *wanted, new))
        self._region = Region.sparse(size)
        self.parts = SharedParts(self._experiment, *wanted, self._region.new)
        self._region.reserve(self.parts.memory(taken))
        self._reserved = set(taken)
        self.parts.present[list(taken)] = True  # they begin together: the learner waits for all of them
        self.inference = InferenceStatistics(self.parts.inference_counters)
        self.heartbeats = Heartbeats(self.parts.heartbeats, self._experiment.supervision.hung_after_s)
        self._signals = [Signal.create() for _ in self.parts.heartbeats]
        self._laid_out_for = wanted

    @property
    def signals(self) -> Sequence[Signal]:
        """The signal that wakes each worker, by its number."""
        return self._signals

    @property
    def room(self) -> int:
        return sys.maxsize

    def has_room(self, index: int) -> bool:
        return True

    def reserve(self, slots: Iterable[int]) -> None:
        assert self._region is not None
        for slot in sorted({*slots} - self._reserved):
            self._region.reserve(self.parts.for_place[slot])
            self._reserved.add(slot)

    def left(self, index: int) -> None:
        """Here the actor has said so in shared memory itself."""

    def pause(self, paused: bool) -> None:
        self.parts.paused[...] = paused
        for signal in self._signals:
            signal.notify()

    def spawn(self, order: SpawnOrder) -> WorkerProcess:
        assert self._region is not None
        control, child = control_pair()
        index = order.index
        rank = index - self.parts.learners.start if index in self.parts.learners else -1
        if rank == 0:
            self._rank_wires.close()
            self._rank_wires = RankWires(self.parts.num_ranks)
        links = self._rank_wires.of(rank) if rank >= 0 else ()
        launch = Launch(
            run=str(self._folder.path),
            role="learner" if rank >= 0 else _ROLES.get(order.name, "actor"),
            index=index,
            num_places=self.parts.num_places,
            sharing=order.sharing,
            attempt=order.attempt,
            start=order.start,
            control_fd=child.fileno(),
            region_fd=self._region.fd,
            signal_fds=tuple(signal.fds for signal in self._signals),
            players=order.players,
            spent=order.spent,
            parent=os.getpid(),
            rendezvous=self._rank_wires.address if rank >= 0 else "",
            rank_fds=links,
        )
        fds = {child.fileno(), self._region.fd, *links, *(fd for signal in self._signals for fd in signal.fds)}
        self.heartbeats.started(index)
        with child, self._logs.output(order.name) as output:
            process = WorkerProcess(order.name, worker_command(launch), sorted(fds), control, output, self._guard)
        if rank >= 0:
            self._rank_wires.handed_over(rank)
        return process

    def look(self) -> Sequence[tuple[str, Fault]]:
        self.heartbeats.look()
        self._logs.look()
        return ()

    def close(self) -> None:
        self._guard.close()
        self._logs.close()
        self._close_shared()

    def _close_shared(self) -> None:
        self._rank_wires.close()
        self._laid_out_for = None
        self._reserved = set()
        if self._region is not None:
            self._region.close()
            self._region = None
        for signal in self._signals:
            signal.close()
        self._signals = []
