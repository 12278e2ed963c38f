"""Keeps the crew of a run as it should be: replaces who dies or hangs, lets actors join and leave."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ludus.runtime.faults import Fault, FaultLog, WorkerSlot, death_of
from ludus.runtime.launcher import BUFFER_WORKER, POLICY_WORKER, Launcher, SpawnOrder, rank_name
from ludus.runtime.learner_client import LearnerGone, RemoteLearner
from ludus.system.process import WorkerProcess
from ludus.workers.controller import Controller
from ludus.workers.messages import Forget, HostedPlayer
from ludus.workers.worker import Supervision, TrainingFailed

LEAST_PLACES = 16


def default_places(num_actors: int) -> int:
    """Places for actors that a run has: a place that nobody takes costs next to nothing."""
    return max(LEAST_PLACES, 2 * num_actors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """What all workers begin with."""

    start: int
    """How often the run was started."""
    players: Mapping[str, HostedPlayer]
    spent: int
    """Decisions of players that have left."""


class WorkerGroup:
    """Has a fixed number of places for actors. How many are taken may change while the others play."""

    def __init__(
        self,
        launcher: Launcher,
        num_places: int,
        *,
        num_ranks: int,
        with_policy_worker: bool,
        with_buffer_worker: bool,
    ) -> None:
        self.launcher = launcher
        self.actors = [WorkerSlot(f"actor-{index}", index) for index in range(num_places)]
        self.policy_worker = WorkerSlot(POLICY_WORKER, num_places, taken=with_policy_worker)
        """Stays empty where actors run the policies themselves."""
        number = num_places + 1 + num_ranks
        self.buffer_worker = WorkerSlot(BUFFER_WORKER, number, taken=with_buffer_worker)
        """Stays empty where nothing is recomputed, or the learner does it."""
        self.learner: WorkerProcess | None = None
        self.followers: list[WorkerProcess] = []
        """The learner's other ranks, if it has several."""
        self.learner_starts = 0
        self.learner_started = 0.0
        """Unix time."""
        self.begin: Begin

    @property
    def all_places(self) -> tuple[WorkerSlot, ...]:
        return (*self.actors, *self.helpers)

    @property
    def helpers(self) -> tuple[WorkerSlot, ...]:
        """Places of workers that hold nothing of their own: they are replaced, and the others go on."""
        return (self.policy_worker, self.buffer_worker)

    @property
    def staying(self) -> list[WorkerSlot]:
        """Places of the actors that share a batch: taken, and nobody is about to leave."""
        return [place for place in self.actors if place.taken and place.leave_by is None]

    @property
    def leaving(self) -> list[WorkerSlot]:
        return [place for place in self.actors if place.taken and place.leave_by is not None]

    @property
    def sharing(self) -> int:
        """Actors that share a batch."""
        return max(1, len(self.staying))

    def free(self, count: int) -> list[WorkerSlot]:
        """Places that so many more actors would take: fewer, if there are no more for now."""
        return [place for place in self.actors if not place.taken and not place.given_up][: max(0, count)]

    # --- processes ---

    def lay_out(self, players: Mapping[str, HostedPlayer]) -> None:
        """Shared memory for all who are here; nobody may be alive. Who was about to leave has left."""
        for place in self.leaving:
            place.empty()
        for place in self.all_places:
            place.start_at = 0.0
        self.launcher.lay_out(players, len(self.actors), [place.index for place in self.staying])

    def start_learner(self) -> WorkerProcess:
        self.learner_starts += 1
        self.learner_started = time.time()
        first, *others = [
            self._spawn(rank_name(rank), worker, self.learner_starts)
            for rank, worker in enumerate(self.launcher.parts.learners)
        ]
        self.learner, self.followers = first, others
        return first

    def start_due(self) -> None:
        """Start the workers whose places are empty and who have waited long enough."""
        now = time.monotonic()
        for place in self.all_places:
            due = place.taken and place.process is None and place.start_at <= now
            if due and self.launcher.has_room(place.index):
                place.attempts += 1
                place.started = time.time()
                place.process = self._spawn(place.name, place.index, place.attempts)

    def _spawn(self, name: str, index: int, attempt: int) -> WorkerProcess:
        begin = self.begin
        return self.launcher.spawn(
            SpawnOrder(
                name=name,
                index=index,
                attempt=attempt,
                start=begin.start,
                sharing=self.sharing,
                players=dict(begin.players),
                spent=begin.spent,
            )
        )

    def end(self, place: WorkerSlot) -> WorkerProcess:
        """End the process at a place, now."""
        process, place.process = place.process, None
        assert process is not None
        process.kill()
        return process

    def kill_all(self) -> None:
        for place in self.all_places:
            if place.process is not None:
                self.end(place)
        for follower in self.followers:
            follower.kill()
        self.followers = []
        if self.learner is not None:
            self.learner.kill()
            self.learner = None

    def working(self) -> Iterator[tuple[WorkerSlot, WorkerProcess]]:
        """Who has a process now, besides the learner."""
        for place in self.all_places:
            if place.process is not None:
                yield place, place.process


SCALED_DOWN = "scaled down"
"""Why a match is void whose actor had to leave before its end."""


@dataclass
class Tally:
    """What is counted over all starts of the workers."""

    restarts: int = 0
    episodes: int = 0


class Supervisor:
    """From one start of all workers to the next."""

    def __init__(
        self,
        *,
        crew: WorkerGroup,
        controller: Controller,
        learner: RemoteLearner,
        rules: Supervision,
        faults: FaultLog,
        logs: Path,
        tally: Tally,
    ) -> None:
        self._crew = crew
        self._controller = controller
        self._learner = learner
        self._rules = rules
        self._faults = faults
        self._logs = logs
        self._tally = tally
        self.paused = False

    # --- who dies ---

    def look_after(self) -> None:
        """Replace who has died or shows no life, and end who had to leave and has not."""
        for node, fault in self._crew.launcher.look():
            self._faults.note(fault, node, "sent again when a worker asks for it")
        life = self._crew.launcher.life
        hung = f"no sign of life for {self._rules.hung_after_s:g} s"
        for place, process in self._crew.working():
            is_actor = place not in self._crew.helpers
            if process.exit_code is not None and not process.control.poll(0):
                self.replace(place, death_of(process, "env_crash" if is_actor else "worker_crash"))
            elif life.is_hung(place.index):
                self.replace(place, Fault("env_hang" if is_actor else "worker_hang", hung))
            elif place.leave_by is not None and time.monotonic() > place.leave_by and not self.paused:
                self._end_leaving(place, None)
        self._learner.check()
        silent = [worker for worker in self._crew.launcher.parts.learners if life.is_hung(worker)]
        if silent:
            longest = min(silent, key=life.last_sign)  # other ranks only wait for it
            rank = longest - self._crew.launcher.parts.learners.start
            raise LearnerGone(Fault("worker_hang", f"{rank_name(rank)}: {hung}" if rank else hung))

    def replace(self, place: WorkerSlot, fault: Fault) -> None:
        if place in self._crew.helpers:
            self._replace_helper(place, fault)
        elif place.leave_by is not None:
            self._end_leaving(place, fault)
        else:
            self._replace_actor(place, fault)

    def _replace_actor(self, place: WorkerSlot, fault: Fault) -> None:
        """Void what the actor held, let the learner forget it, and start another, sooner or later."""
        process = self._crew.end(place)
        matches = self._controller.void(place.name, str(fault))
        removed = self._controller.remove_damaged() if fault.kind == "damaged_model" else []
        if fault.own or (fault.kind == "damaged_model" and not removed):  # else only its node cannot read it
            place.failed(self._rules, self._learner.decisions)
        given_up = place.failures >= self._rules.quarantine_after
        then = "quarantined" if given_up else "started again"
        self._faults.note(fault, place.name, then, pid=process.pid, matches=matches)
        for one in removed:
            self._faults.note(Fault("damaged_model", one.reason), one.player, "left the league")
        if given_up:
            self._quarantine(place, fault)
        else:
            self._tally.restarts += 1
        gone = given_up or not self._crew.launcher.has_room(place.index)
        self._learner.ask(Forget(place.index, gone))

    def _quarantine(self, place: WorkerSlot, fault: Fault) -> None:
        """Its game fails again and again: go on without it, if anybody else plays."""
        failed = (
            f"{place.name} failed {place.failures} times without finishing a match, at last with "
            f"{fault.reason} (see {self._logs / f'{place.name}.log'})"
        )
        place.empty()
        place.given_up = True
        if not self._crew.staying:
            raise TrainingFailed(f"no actor is left: {failed}")

    def _replace_helper(self, place: WorkerSlot, fault: Fault) -> None:
        """Start another: it finds what was asked and not answered in shared memory."""
        process = self._crew.end(place)
        if fault.own:
            place.failed(self._rules, self._learner.decisions)
        given_up = place.failures >= self._rules.most_failures
        then = "the run ends" if given_up else "started again"
        self._faults.note(fault, place.name, then, pid=process.pid)
        if given_up:
            raise TrainingFailed(
                f"the {place.name.replace('-', ' ')} failed {place.failures} times without a match being "
                f"finished, at last with {fault.reason} (see {self._logs / f'{place.name}.log'})"
            )
        self._tally.restarts += 1

    # --- who joins and leaves ---

    def resize(self, num_actors: int) -> None:
        """Have so many actors, less those that were given up. Who joins disturbs nobody; who leaves gets no
        more matches and ends those that it has."""
        given_up = sum(place.given_up for place in self._crew.actors)
        staying = self._crew.staying
        wanted = max(1, num_actors - given_up)
        for place in sorted(staying, key=lambda place: place.process is None)[wanted:]:
            if place.process is None:
                place.empty()
                self._learner.ask(Forget(place.index))  # who takes turns with it waits no longer
            else:
                place.leave_by = time.monotonic() + self._rules.leave_within_s
        for place in self._crew.free(wanted - len(staying)):
            try:
                self._crew.launcher.reserve([place.index])
            except MemoryError as error:  # a node has joined, and the learner's has no room for what it sends
                place.given_up = True
                self._faults.note(Fault("no_memory", str(error)), place.name, "the run goes on with fewer")
                break
            if place.attempts:  # what an earlier actor has left here
                self._learner.ask(Forget(place.index))
            place.taken = True

    def require_room(self, num_actors: int) -> None:
        """Get the memory for actors that are to join; `ValueError` if they cannot."""
        places = len(self._crew.actors)
        if num_actors > places:
            raise ValueError(
                f"actors={num_actors}, but this run has {places} places for actors; to have more, stop it "
                f"and go on with `ludus train --resume --actors {num_actors}`"
            )
        joining = self._crew.free(num_actors - len(self._crew.staying))
        try:
            self._crew.launcher.reserve([place.index for place in joining])
        except MemoryError as error:
            raise ValueError(f"no memory for {num_actors} actors: {error}") from None

    def rest(self, paused: bool) -> None:
        """Let all rest, or go on; a rest takes no time from who is about to leave."""
        self._crew.launcher.pause(paused)
        if self.paused and not paused:
            for place in self._crew.leaving:
                place.leave_by = time.monotonic() + self._rules.leave_within_s
        self.paused = paused

    def let_go(self, place: WorkerSlot) -> None:
        """Its actor has ended all its matches. What it has handed over is used as any other's."""
        self._crew.end(place)
        self._crew.launcher.left(place.index)
        place.empty()

    def _end_leaving(self, place: WorkerSlot, fault: Fault | None) -> None:
        """Its actor was to leave, and has died meanwhile or takes too long."""
        process = self._crew.end(place)
        matches = self._controller.void(place.name, SCALED_DOWN if fault is None else str(fault))
        if fault is not None:
            self._faults.note(fault, place.name, "it was leaving", pid=process.pid, matches=matches)
        place.empty()
        self._learner.ask(Forget(place.index))
