"""Supervision of worker processes: replaces those that die or hang, and scales the number of actors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from ludus.runtime.faults import Fault, FaultLog, WorkerSlot, death_of
from ludus.runtime.launcher import (
    BUFFER_WORKER,
    LEARNER,
    POLICY_WORKER,
    LocalLauncher,
    SpawnOrder,
    learner_name,
    rank_name,
)
from ludus.runtime.learner_client import AnyLearner, LearnerGone
from ludus.system.process import WorkerProcess
from ludus.workers.config import Supervision
from ludus.workers.controller import Controller
from ludus.workers.messages import Forget, HostedPlayer
from ludus.workers.worker import TrainingFailed

MIN_SLOTS = 16
SCALED_DOWN = "scaled down"
"""Why a match is void whose actor had to leave before its end."""


def default_slots(num_actors: int) -> int:
    """Slots for actors of a run: a slot that is not taken costs next to nothing."""
    return max(MIN_SLOTS, 2 * num_actors)


class WorkerGroup:
    """The processes of a run. The number of slots for actors is fixed; actors may take and leave them while
    others play."""

    def __init__(
        self,
        launcher: LocalLauncher,
        num_slots: int,
        *,
        num_ranks: int,
        with_policy_worker: bool,
        with_buffer_worker: bool,
    ) -> None:
        self.launcher = launcher
        self.actors = [WorkerSlot(f"actor-{index}", index) for index in range(num_slots)]
        self.policy_worker = WorkerSlot(POLICY_WORKER, num_slots, taken=with_policy_worker)
        """Stays empty where actors run the policies themselves."""
        number = num_slots + 1 + num_ranks
        self.buffer_worker = WorkerSlot(BUFFER_WORKER, number, taken=with_buffer_worker)
        """Stays empty where nothing is recomputed, or the learner does it."""
        self.learners: dict[str, WorkerProcess] = {}
        """By player that they train alone; "" for the learner of all."""
        self.followers: list[WorkerProcess] = []
        """The learner's other ranks, if it has several."""
        self.learner_starts: Counter[str] = Counter()
        self.learner_started: dict[str, float] = {}
        """Unix time."""
        self._players: Mapping[str, HostedPlayer] = {}
        self._start = self._spent = 0

    @property
    def learner(self) -> WorkerProcess | None:
        """The learner of all players, or that of the first."""
        return next(iter(self.learners.values()), None)

    @property
    def slots(self) -> tuple[WorkerSlot, ...]:
        return (*self.actors, *self.helpers)

    @property
    def helpers(self) -> tuple[WorkerSlot, ...]:
        """Slots of workers without state of their own: they are replaced while the others go on."""
        return (self.policy_worker, self.buffer_worker)

    @property
    def staying(self) -> list[WorkerSlot]:
        """Slots of the actors that share a batch: taken, and not about to leave."""
        return [slot for slot in self.actors if slot.taken and slot.leave_by is None]

    @property
    def leaving(self) -> list[WorkerSlot]:
        return [slot for slot in self.actors if slot.taken and slot.leave_by is not None]

    @property
    def sharing(self) -> int:
        """Actors that share a batch."""
        return max(1, len(self.staying))

    def free(self, count: int) -> list[WorkerSlot]:
        """At most `count` slots that further actors can take now."""
        return [slot for slot in self.actors if not slot.taken and not slot.given_up][: max(0, count)]

    # --- processes ---

    def prepare(self, players: Mapping[str, HostedPlayer], roles: Mapping[str, Any], *, start: int, spent: int) -> None:
        """Lay out shared memory for the next generation of workers; no worker may be alive. Actors that were
        about to leave have left. `roles`: what they have of their own."""
        for slot in self.leaving:
            slot.clear()
        for slot in self.slots:
            slot.start_at = 0.0
        self._players, self._start, self._spent = players, start, spent
        self.launcher.lay_out(players, len(self.actors), [slot.index for slot in self.staying], roles)
        self.buffer_worker.index = self.launcher.parts.buffer_worker

    def start_learners(self) -> None:
        """Start the learner of all players with its ranks, or one learner for each player."""
        parts = self.launcher.parts
        for player in parts.players if parts.per_player else ("",):
            self._start_learner(player)
        others = () if parts.per_player else enumerate(parts.learners[1:], 1)
        self.followers = [self._spawn(rank_name(rank), worker, self.learner_starts[""]) for rank, worker in others]

    def restart_learner(self, player: str, hosted: HostedPlayer) -> None:
        """Start the learner of one player again; the others go on."""
        self.learners[player].kill()
        self.launcher.lose_learner(player)
        self._players = {**self._players, player: hosted}
        self._start_learner(player)

    def _start_learner(self, player: str) -> None:
        self.learner_starts[player] += 1
        self.learner_started[player] = time.time()
        parts = self.launcher.parts
        index = parts.learners[parts.players.index(player) if player else 0]
        name = learner_name(player) if player else LEARNER
        self.learners[player] = self._spawn(name, index, self.learner_starts[player], player)

    def start_due(self, not_yet: Container[int] = ()) -> None:
        """Start the workers of empty slots whose back-off is over, but for these."""
        now = time.monotonic()
        for slot in self.slots:
            due = slot.taken and slot.process is None and slot.start_at <= now and slot.index not in not_yet
            if due and self.launcher.has_room(slot.index):
                slot.attempts += 1
                slot.started = time.time()
                slot.process = self._spawn(slot.name, slot.index, slot.attempts)

    def _spawn(self, name: str, index: int, attempt: int, learns: str = "") -> WorkerProcess:
        return self.launcher.spawn(
            SpawnOrder(
                name=name,
                index=index,
                attempt=attempt,
                start=self._start,
                sharing=self.sharing,
                players=dict(self._players),
                spent=self._spent,
                learns=learns,
            )
        )

    def end(self, slot: WorkerSlot) -> WorkerProcess:
        """End the process of a slot now."""
        process, slot.process = slot.process, None
        assert process is not None
        process.kill()
        return process

    def kill_all(self) -> None:
        for slot in self.slots:
            if slot.process is not None:
                self.end(slot)
        for follower in self.followers:
            follower.kill()
        self.followers = []
        for learner in self.learners.values():
            learner.kill()
        self.learners = {}

    def working(self) -> Iterator[tuple[WorkerSlot, WorkerProcess]]:
        """Slots with a process; the learner has none."""
        for slot in self.slots:
            if slot.process is not None:
                yield slot, slot.process


class Supervisor:
    """Keeps a worker group running and at its size."""

    _controller: Controller
    _learner: AnyLearner
    _rules: Supervision

    def __init__(self, group: WorkerGroup, faults: FaultLog, logs: Path) -> None:
        self._group = group
        self._faults = faults
        self._logs = logs
        self.paused = False
        self.restarts = 0

    def supervise(self, controller: Controller, learner: AnyLearner, rules: Supervision) -> None:
        """Take over a new generation of workers."""
        self._controller = controller
        self._learner = learner
        self._rules = rules
        self.paused = False

    # --- failures ---

    def replace_failed(self) -> None:
        """Replace workers that have died or hang, and end actors that had to leave and have not."""
        self._group.launcher.look()
        heartbeats = self._group.launcher.heartbeats
        hung = f"no sign of life for {self._rules.hung_after_s:g} s"
        for slot, process in self._group.working():
            is_actor = slot not in self._group.helpers
            if process.exit_code is not None and not process.control.poll(0):
                self.replace(slot, death_of(process, "env_crash" if is_actor else "worker_crash"))
            elif heartbeats.is_hung(slot.index):
                self.replace(slot, Fault("env_hang" if is_actor else "worker_hang", hung))
            elif slot.leave_by is not None and time.monotonic() > slot.leave_by and not self.paused:
                self._end_leaving(slot, None)
        self._learner.check()
        parts = self._group.launcher.parts
        silent = [worker for worker in parts.learners if heartbeats.is_hung(worker)]
        if silent:
            longest = min(silent, key=heartbeats.last)  # other ranks only wait for it
            rank = longest - parts.learners.start
            if parts.per_player:
                player = parts.players[rank]
                raise LearnerGone(Fault("worker_hang", hung), self._group.learners[player].pid, player)
            reason = f"{rank_name(rank)}: {hung}" if rank else hung
            raise LearnerGone(Fault("worker_hang", reason), self._learner.pid)

    def replace(self, slot: WorkerSlot, fault: Fault) -> None:
        if slot in self._group.helpers:
            self._replace_helper(slot, fault)
        elif slot.leave_by is not None:
            self._end_leaving(slot, fault)
        else:
            self._replace_actor(slot, fault)

    def _replace_actor(self, slot: WorkerSlot, fault: Fault) -> None:
        """Void the actor's matches, let the learner forget it, and start another after the back-off."""
        process = self._group.end(slot)
        matches = self._controller.void(slot.name, str(fault))
        changed = self._controller.check_frozen() if fault.kind == "damaged_model" else []
        if fault.own or (fault.kind == "damaged_model" and not changed):  # else only its node cannot read it
            slot.failed(self._rules, self._learner.decisions)
        given_up = slot.failures >= self._rules.quarantine_after
        then = "quarantined" if given_up else "started again"
        self._faults.note(fault, slot.name, then, pid=process.pid, matches=matches)
        self._faults.note_frozen(changed)
        if given_up:
            self._quarantine(slot, fault)
        else:
            self.restarts += 1
        gone = given_up or not self._group.launcher.has_room(slot.index)
        self._learner.ask(Forget(slot.index, gone))

    def _quarantine(self, slot: WorkerSlot, fault: Fault) -> None:
        """Its game fails again and again: continue without it, if another actor is left."""
        failed = (
            f"{slot.name} failed {slot.failures} times without finishing a match, at last with "
            f"{fault.reason} (see {self._logs / f'{slot.name}.log'})"
        )
        slot.clear()
        slot.given_up = True
        if not self._group.staying:
            raise TrainingFailed(f"no actor is left: {failed}")

    def _replace_helper(self, slot: WorkerSlot, fault: Fault) -> None:
        """Start another: it finds the unanswered requests in shared memory."""
        process = self._group.end(slot)
        if fault.own:
            slot.failed(self._rules, self._learner.decisions)
        given_up = slot.failures >= self._rules.most_failures
        then = "the run ends" if given_up else "started again"
        self._faults.note(fault, slot.name, then, pid=process.pid)
        if given_up:
            raise TrainingFailed(
                f"the {slot.name.replace('-', ' ')} failed {slot.failures} times without a match being "
                f"finished, at last with {fault.reason} (see {self._logs / f'{slot.name}.log'})"
            )
        self.restarts += 1

    # --- scaling ---

    def resize(self, num_actors: int) -> None:
        """Scale to `num_actors`, not counting actors that were abandoned. New actors disturb no other; actors
        that leave get no more matches and finish those that they have."""
        given_up = sum(slot.given_up for slot in self._group.actors)
        staying = self._group.staying
        wanted = max(1, num_actors - given_up)
        for slot in sorted(staying, key=lambda slot: slot.process is None)[wanted:]:
            if slot.process is None:
                slot.clear()
                self._learner.ask(Forget(slot.index))  # actors that take turns with it wait no longer
            else:
                slot.leave_by = time.monotonic() + self._rules.leave_within_s
        for slot in self._group.free(wanted - len(staying)):
            try:
                self._group.launcher.reserve([slot.index])
            except MemoryError as error:  # a node has joined, and the learner's has no room for what it sends
                slot.given_up = True
                self._faults.note(Fault("no_memory", str(error)), slot.name, "the run goes on with fewer")
                break
            if slot.attempts:  # what an earlier actor has left here
                self._learner.ask(Forget(slot.index))
            slot.taken = True

    def require_room(self, num_actors: int) -> None:
        """Reserve memory for actors that are to join; `ValueError` if there is none."""
        num_slots = len(self._group.actors)
        if num_actors > num_slots:
            raise ValueError(
                f"actors={num_actors}, but this run has {num_slots} places for actors; to have more, stop it "
                f"and go on with `ludus train --resume --actors {num_actors}`"
            )
        joining = self._group.free(num_actors - len(self._group.staying))
        try:
            self._group.launcher.reserve([slot.index for slot in joining])
        except MemoryError as error:
            raise ValueError(f"no memory for {num_actors} actors: {error}") from None

    def pause(self, paused: bool) -> None:
        """Pause or continue all workers; a pause takes no time from actors that are about to leave."""
        self._group.launcher.pause(paused)
        if self.paused and not paused:
            for slot in self._group.leaving:
                slot.leave_by = time.monotonic() + self._rules.leave_within_s
        self.paused = paused

    def release(self, slot: WorkerSlot) -> None:
        """Its actor has finished all its matches. What it has handed over is used as any other's."""
        self._group.end(slot)
        self._group.launcher.left(slot.index)
        slot.clear()

    def _end_leaving(self, slot: WorkerSlot, fault: Fault | None) -> None:
        """End an actor that was to leave, and has died meanwhile or takes too long."""
        process = self._group.end(slot)
        matches = self._controller.void(slot.name, SCALED_DOWN if fault is None else str(fault))
        if fault is not None:
            self._faults.note(fault, slot.name, "it was leaving", pid=process.pid, matches=matches)
        slot.clear()
        self._learner.ask(Forget(slot.index))
