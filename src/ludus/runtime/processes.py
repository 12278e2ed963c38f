"""Workers as processes: actors and the learner are children of the coordinator, here or on nodes of a cluster.

An actor that dies is replaced and its matches are void. When the learner dies, the coordinator starts everything
again from the latest checkpoint; one that trains a single player is started again alone.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.runtime.assemble import CHECKPOINT, num_learners, smallest_batch
from ludus.runtime.coordinator import Coordinator, Update
from ludus.runtime.faults import START_UP_S, Fault, FaultLog, WorkerSlot, death_of
from ludus.runtime.launcher import LocalLauncher
from ludus.runtime.learner_client import AnyLearner, RemoteLearner, RemoteLearners
from ludus.runtime.learner_process import part_of_checkpoint
from ludus.runtime.settings import own_parts
from ludus.runtime.shared_parts import WAIT_S
from ludus.runtime.status import ServiceStatus, WorkerGroupStatus, no_services
from ludus.runtime.supervisor import Supervisor, WorkerGroup, default_slots
from ludus.services.resources import cpus_of
from ludus.store.checkpoints import Arrays, Checkpoint
from ludus.store.run_control import Bottleneck, WorkerStatus
from ludus.store.run_folder import RunFolder
from ludus.system.machine import usable_cores
from ludus.system.process import BadMessage, PeerGone, WorkerProcess, receive, send
from ludus.workers.controller import Controller
from ludus.workers.messages import (
    Done,
    FindFrozen,
    FromActor,
    FromHelper,
    FrozenFound,
    HostedPlayer,
    Leaving,
    MatchFound,
    NextMatch,
    ReportResult,
    Save,
    Stopping,
    VoidMatch,
)
from ludus.workers.worker import StopTraining

STEPS_PER_SHARE = 4
"""Steps of its tables that an actor should make at least for its share of a batch."""


class ProcessWorkers:
    """A learner, actors and their helpers as processes. Requests that cannot be answered are faults of their
    senders."""

    saves_tables = False

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        faults: FaultLog,
        launcher: LocalLauncher,
        *,
        num_actors: int,
        num_slots: int | None = None,
    ) -> None:
        """`num_actors`: where the experiment does not say; `num_slots`: how many actors there may be."""
        self._experiment = experiment
        self._faults = faults
        self._launcher = launcher
        self._num_actors = num_actors
        self.group = WorkerGroup(
            launcher,
            num_slots or default_slots(self._wanted_actors),
            num_ranks=experiment.learner.ranks,
            with_policy_worker=experiment.actor.inference == "worker",
            with_buffer_worker=experiment.learner.buffer_worker,
        )
        for slot in self.group.free(self._wanted_actors):
            slot.taken = True
        self._supervisor = Supervisor(self.group, faults, folder.logs)
        self._status = WorkerGroupStatus(self.group, experiment, folder)
        self._folder = folder
        self.learner: AnyLearner

    @property
    def restarts(self) -> int:
        return self._supervisor.restarts

    @property
    def paused(self) -> bool:
        return self._supervisor.paused

    @property
    def _wanted_actors(self) -> int:
        """As many as there is room for now: nodes of a cluster come and go."""
        return max(1, min(self._experiment.actors or self._num_actors, self._launcher.room))

    # --- starting ---

    def can_continue(self, checkpoint: Checkpoint) -> bool:
        return False

    def start_learner(
        self,
        experiment: Experiment,
        players: Mapping[str, HostedPlayer],
        *,
        start: int,
        spent: int,
        checkpoint: Checkpoint | None,
    ) -> None:
        """The process loads the checkpoint itself."""
        self._remove_parts(players if experiment.learner.placement == "per_player" else ())
        self.group.prepare(players, own_parts(experiment), start=start, spent=spent)
        self.group.start_learners()
        if experiment.learner.placement == "per_player":
            self.learner = RemoteLearners({player: self._client_of(player) for player in players}, spent)
        else:
            assert self.group.learner is not None
            is_hung = self._is_hung(self._launcher.parts.learners.start)
            self.learner = RemoteLearner(self.group.learner, is_hung, spent, self.group.followers)

    def _client_of(self, player: str) -> RemoteLearner:
        """The client of a learner that trains one player alone."""
        parts = self._launcher.parts
        is_hung = self._is_hung(parts.learners.start + parts.players.index(player))
        return RemoteLearner(self.group.learners[player], is_hung, player=player)

    def _is_hung(self, worker: int) -> Callable[[], bool]:
        def look() -> bool:
            heartbeats = self._launcher.heartbeats
            heartbeats.look()
            return heartbeats.is_hung(worker)

        return look

    def can_replace(self, player: str) -> bool:
        return isinstance(self.learner, RemoteLearners) and self._launcher.can_restart_learner(player)

    def replace_learner(self, player: str, hosted: HostedPlayer, resume: Callable[[], None]) -> None:
        assert isinstance(self.learner, RemoteLearners)
        self.group.restart_learner(player, hosted)
        self.learner.replace(player, self._client_of(player), resume)

    def wait_for_learner(self, stopped: Callable[[], bool]) -> None:
        self.learner.wait_until_ready(START_UP_S, stopped)

    def start_actors(self, controller: Controller, experiment: Experiment, tables: Checkpoint | None) -> None:
        self._experiment = experiment
        self._controller = controller
        self._supervisor.supervise(controller, self.learner, experiment.supervision)
        controller.step()
        self.group.start_due()

    # --- running ---

    def run_round(self, finished: Callable[[], bool], *, training: bool) -> Sequence[Update]:
        """Answer the workers that ask, and replace those that have failed."""
        if self.learner.stopping is not None:
            raise StopTraining(self.learner.stopping)
        self._supervisor.resize(self._wanted_actors)
        self.group.start_due(self.learner.unforgotten)
        slots = {process.control: slot for slot, process in self.group.working()}
        learners = [process.control for process in self.group.learners.values()]
        for ready in wait([*slots, *learners], timeout=WAIT_S):
            assert isinstance(ready, Connection)
            slot = slots.get(ready)
            if slot is not None and slot.process is not None and slot.process.control is ready:
                self._serve(slot, slot.process)
        if self.learner.take_news():
            self._controller.step()
        self._supervisor.replace_failed()
        updates, self.learner.updates = self.learner.updates, []
        if updates:
            self._launcher.inference.update()
        return [Update(decisions, statistics) for decisions, statistics in updates]

    def configure(self, experiment: Experiment) -> None:
        before, self._experiment = self._wanted_actors, experiment
        if self._wanted_actors != before:
            for slot in self.group.actors:  # another chance
                slot.given_up = False

    def require_room(self, experiment: Experiment) -> None:
        self._supervisor.require_room(experiment.actors or self._num_actors)

    def pause(self, paused: bool) -> None:
        self._supervisor.pause(paused)

    # --- requests of workers ---

    def _serve(self, slot: WorkerSlot, process: WorkerProcess) -> None:
        """Take the next message of a worker and answer it."""
        is_actor = slot not in self.group.helpers
        try:
            if is_actor:
                self._serve_actor(slot, process)
            else:
                self._serve_any(slot, process, receive(process.control, FromHelper))
        except PeerGone:
            self._supervisor.replace(slot, death_of(process, "env_crash" if is_actor else "worker_crash"))
        except BadMessage as error:
            self._supervisor.replace(slot, Fault("worker_crash", str(error)))

    def _serve_actor(self, slot: WorkerSlot, process: WorkerProcess) -> None:
        request = receive(process.control, FromActor)
        if isinstance(request, NextMatch):
            leaves = slot.leave_by is not None
            match = None if leaves else self._controller.next_match(request.tables, slot.name)
            send(process.control, MatchFound(match, self.group.sharing))
        elif isinstance(request, ReportResult | VoidMatch):
            if self._end_match(slot, request):
                send(process.control, Done())
        elif isinstance(request, Leaving):
            self._supervisor.release(slot)
        else:
            self._serve_any(slot, process, request)

    def _serve_any(self, slot: WorkerSlot, process: WorkerProcess, request: FromHelper) -> None:
        if isinstance(request, FindFrozen):
            league = self._controller.league
            player = league.players[request.player]
            role = None if player.model is None else league.role_of(ModelId.parse(player.model).player)
            send(process.control, FrozenFound(player.model or "", player.weights, role))
        elif isinstance(request, Stopping):
            raise StopTraining(request.reason)
        else:
            self._supervisor.replace(slot, Fault(request.kind, request.reason))

    def _end_match(self, slot: WorkerSlot, request: ReportResult | VoidMatch) -> bool:
        """Record a result, or that a game was lost and its actor continues. A result that cannot be true, or of a
        match that the actor does not have, is refused, and its sender is replaced."""
        try:
            if isinstance(request, ReportResult):
                self._controller.report(request.result)
            else:
                sides = self._controller.league.matches.find(request.match_id).match.sides
                by_game = request.kind != "models_unreachable"
                self._controller.void_match(request.match_id, request.reason, by_game=by_game)
        except (ValueError, LookupError) as error:
            self._supervisor.replace(slot, Fault("bad_result", str(error)))
            return False
        if isinstance(request, ReportResult):
            for working in (slot, *self.group.helpers):
                working.forgive(self.learner.decisions)
        else:
            fault = Fault(request.kind, request.reason)
            self._faults.note(fault, slot.name, "the match is void", matches=[request.match_id])
            if request.kind == "models_unreachable":  # its node cannot tell whether the pool has lost them
                self._faults.note_frozen(self._controller.check_frozen({one for side in sides for one in side.players}))
        return True

    # --- saving and ending ---

    @property
    def can_save(self) -> bool:
        """Checkpoints have all players; one whose learner is being started again would be waited for."""
        return self.group.learner is not None and self.learner.is_ready

    def save(self, num_events: int, chain: str, *, clean: bool, patience_s: float | None) -> None:
        """The learner writes the checkpoint. Without one (a run stopped while it started again) the latest
        checkpoint stays."""
        if self.group.learner is None:
            return
        self.learner.ask(Save(num_events, chain), patience_s)
        if isinstance(self.learner, RemoteLearners):
            self._join_checkpoints(num_events, chain)

    def _join_checkpoints(self, num_events: int, chain: str) -> None:
        """Learners of single players have each written their part: make the same checkpoint of them as one learner
        for all writes, so that a run can go on with either placement."""
        arrays: Arrays = {}
        facts: dict[str, Any] = {}
        for player in self.learner.reports:
            part = self._folder.checkpoints(part_of_checkpoint(player), keep=1).load_latest()
            assert part is not None
            arrays |= part.arrays
            facts |= part.facts["learner"]
        checkpoints = self._folder.checkpoints(CHECKPOINT)
        checkpoints.save(self.learner.decisions, arrays, {"learner": facts, "events": num_events, "chain": chain})

    def _remove_parts(self, players: Container[str]) -> None:
        """Remove the parts of checkpoints of other players: they have left, or one learner trains all again."""
        for part in self._folder.checkpoints(CHECKPOINT).folder.parent.glob(part_of_checkpoint("*")):
            if part.name.removeprefix(part_of_checkpoint("")) not in players:
                shutil.rmtree(part)

    def end(self) -> None:
        self.group.kill_all()

    def close(self) -> None:
        self.end()
        self._launcher.close()

    # --- for observers ---

    def numbers(self) -> dict[str, float]:
        return {
            "updates": sum(report.step for report in self.learner.reports.values()),
            "dropped_reward": float(self._launcher.parts.dropped_reward.sum()),
            **self._launcher.inference.latest,
        }

    def status(self) -> tuple[Sequence[WorkerStatus], Bottleneck | None]:
        return self._status.look()

    @property
    def learner_pid(self) -> int:
        assert self.group.learner is not None
        return self.group.learner.pid

    @property
    def policy_worker_pid(self) -> int | None:
        """None where actors run the policies themselves, and while it is being started again."""
        process = self.group.policy_worker.process
        return None if process is None else process.pid

    @property
    def buffer_worker_pid(self) -> int | None:
        """None where there is none, and while it is being started again."""
        process = self.group.buffer_worker.process
        return None if process is None else process.pid

    @property
    def actor_pids(self) -> list[int]:
        return [slot.process.pid for slot in self.group.actors if slot.process is not None]


def local_training(
    experiment: Experiment,
    folder: RunFolder,
    num_actors: int,
    *,
    num_slots: int | None = None,
    launcher: LocalLauncher | None = None,
    service_status: ServiceStatus = no_services,
) -> Coordinator[ProcessWorkers]:
    """A training in processes of this machine, or of the machines of `launcher`."""

    def new_workers(now: Experiment, faults: FaultLog) -> ProcessWorkers:
        start = launcher or LocalLauncher(experiment, folder)
        return ProcessWorkers(now, folder, faults, start, num_actors=num_actors, num_slots=num_slots)

    return Coordinator(experiment, folder, new_workers, service_status=service_status)


def default_actors(experiment: Experiment) -> int:
    """One for each usable core except those of the learner, the buffer worker and the services, as long as
    each actor's share of a batch is several steps of its tables: with smaller shares much of what is played is
    too old before it is used. At least one for each rank of the learner."""
    worth = smallest_batch(experiment) // (STEPS_PER_SHARE * experiment.actor.num_tables)
    ranks = experiment.learner.ranks
    others = num_learners(experiment) + experiment.learner.buffer_worker + math.ceil(cpus_of(experiment.services))
    return max(ranks, min(int(usable_cores()) - others, worth))
