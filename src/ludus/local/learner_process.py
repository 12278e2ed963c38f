"""The learner as a process: trains, tells the controller, does what it asks."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from ludus.algorithms.teacher import TEACHER
from ludus.assemble import CHECKPOINT, load_learner, new_learner
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.local.intake import Intake
from ludus.local.rank_links import Followers
from ludus.local.shared_parts import LEARNER_TIMES, WAIT_S, SharedParts, open_parts
from ludus.local.supervisor import START_UP_S
from ludus.runtime.channel import Signal
from ludus.runtime.heap import Heap
from ludus.runtime.messages import (
    Configure,
    Done,
    Forget,
    Learned,
    Publish,
    Published,
    Reset,
    Save,
    Stopping,
    ToLearner,
)
from ludus.runtime.process import Launch, receive, send
from ludus.runtime.program import IDLE, StopTraining, wrap
from ludus.runtime.rank_messages import Compare
from ludus.runtime.serial import STOPPED
from ludus.store.run_folder import RunFolder
from ludus.workers.buffer_requests import Recomputing
from ludus.workers.devices import has_gpu_each
from ludus.workers.learner import Learner
from ludus.workers.ranks import ALONE, ConnectedRanks, Ranks


@dataclass
class Rank:
    """One rank of the learner: most often the only one."""

    experiment: Experiment
    folder: RunFolder
    parts: SharedParts
    signals: Sequence[Signal]
    control: Connection
    links: Sequence[Connection]
    """To the other ranks, or to rank 0."""
    learner: Learner
    intake: Intake
    show_life: Callable[[], None]


def open_rank(launch: Launch) -> Rank:
    """The learner as the latest checkpoint has it, together with all other ranks."""
    experiment, folder, parts, signals, control = open_parts(launch)
    intake = Intake(parts, signals, launch.index)

    def show_life() -> None:
        parts.hearts[launch.index] = time.monotonic()

    ranks: Ranks = ALONE
    if parts.num_ranks > 1:
        ranks = ConnectedRanks(
            launch.rendezvous,
            parts.learners.index(launch.index),
            parts.num_ranks,
            patience_s=START_UP_S + 2 * experiment.supervision.hung_after_s,
            interface=experiment.cluster.network_interface,
            gpu_each=has_gpu_each(experiment.learner.device, parts.num_ranks),
        )
    learner = new_learner(
        experiment,
        launch.players,
        parts.pools,
        parts.board,
        experiment.models.open(folder),
        intake.give_back,
        parts.num_places,
        launch.spent,
        ranks,
        _way_to_buffer_worker(parts, signals),
    )
    learner.present = parts.present
    load_learner(learner, launch.players, folder.checkpoints(CHECKPOINT).load_latest())
    for player, hosted in launch.players.items():
        trained = learner.players[player]
        trained.incarnation = max(trained.incarnation, hosted.incarnation)
        trained.after_gradient_step = show_life
    learner.compare()
    links = [Connection(fd) for fd in launch.rank_fds]
    return Rank(experiment, folder, parts, signals, control, links, learner, intake, show_life)


def _way_to_buffer_worker(
    parts: SharedParts, signals: Sequence[Signal]
) -> Callable[[str], Recomputing] | None:
    """None: there is none."""
    requests = parts.recomputing
    if requests is None:
        return None
    wake = signals[parts.buffer_worker].notify
    return lambda player: Recomputing(requests, parts.players.index(player), wake)


class LearnerProcess:
    """Waits for trajectories and requests alike; `run` never returns. It is rank 0, and leads the others."""

    def __init__(self, launch: Launch) -> None:
        rank = open_rank(launch)
        self._experiment, self._parts, self._control = rank.experiment, rank.parts, rank.control
        self.learner, self._intake, self._show_life = rank.learner, rank.intake, rank.show_life
        self._checkpoints = rank.folder.checkpoints(CHECKPOINT)
        self._followers = Followers(rank.links, rank.experiment.supervision.hung_after_s)
        self.learner.others = self._followers
        for player in launch.players:
            self.learner.publish(player)
        if rank.parts.recomputing is not None and TEACHER in rank.experiment.learner.recompute:
            self.learner.publish_teachers()
        self._waited = 0.0
        """Seconds since the last update."""
        self._noted = time.monotonic()
        self._looked_at = (time.monotonic(), self._parts.waited.copy())
        """When the last update ended, and how long each actor had waited by then."""
        self._poll = select.poll()
        self._woken = rank.signals[launch.index]
        links = [link.fileno() for link in self._followers.links]
        for descriptor in (self._woken.fds[0], self._control.fileno(), *links):
            self._poll.register(descriptor, select.POLLIN)

    def run(self) -> None:
        self._tell({})
        train = wrap(self.learner, self._experiment.middleware)
        training, other, waiting = range(len(LEARNER_TIMES))
        self._note_time(other)
        heap = Heap()
        while True:
            self._show_life()
            heap.settle()
            self._intake.take_in(self.learner)
            self._followers.take_in()
            batches = self.learner.batches
            self._note_time(other)
            try:
                if self._parts.paused[0]:
                    progress = IDLE
                else:
                    progress = train() if self.learner.progress < 1.0 else self.learner.discard()
            except StopTraining as request:
                send(self._control, Stopping(str(request) or STOPPED))
                train = self.learner.discard
                continue
            self._intake.settle(self.learner)
            idle = self.learner.batches == batches  # middleware may say what it likes
            self._note_time(other if idle else training)
            if not idle:
                self._tell({**progress.statistics, **self._waits()})
            while self._control.poll(0):
                self._obey(receive(self._control, ToLearner))
            if idle:
                self._note_time(other)
                self._poll.poll(WAIT_S * 1000)
                self._woken.wait(0)
                self._waited += self._note_time(None if self._parts.paused[0] else waiting)

    def _note_time(self, kind: int | None) -> float:
        """What was done since the last note, of `LEARNER_TIMES`; None: all rested. Says how long it took."""
        before, self._noted = self._noted, time.monotonic()
        if kind is not None:
            self._parts.learner_times[kind] += self._noted - before
        return self._noted - before

    def _waits(self) -> dict[str, float]:
        """Since the last update: seconds that the learner waited for trajectories, and the share of the time
        that actors waited for the learner."""
        now, actors = time.monotonic(), self._parts.waited.copy()
        began, before = self._looked_at
        waited = (actors - before)[self._parts.present]
        share = min(float(waited.mean()) / max(now - began, 1e-9), 1.0) if len(waited) else 0.0
        waits = {"queue_wait": self._waited, "actor_wait": share}
        self._waited, self._looked_at = 0.0, (now, actors)
        return waits

    def _tell(self, statistics: dict[str, float]) -> None:
        reports = tuple(self.learner.report(player) for player in self.learner.players)
        send(self._control, Learned(reports, statistics))

    def _obey(self, request: ToLearner) -> None:
        if isinstance(request, Publish):
            parent = ModelId.parse(request.parent) if request.parent else None
            send(self._control, Published(self.learner.freeze(request.player, parent)))
            return
        if not isinstance(request, Save):
            self._followers.order(request)
        if isinstance(request, Reset):
            self.learner.reset(request.event)
            self._tell({})  # its step and incarnation are others now
        elif isinstance(request, Configure):
            self.learner.configure(request.player, request.settings)
        elif isinstance(request, Save):
            self._save(request.events)
        elif isinstance(request, Forget):
            self._intake.forget(request, self.learner)
        self._intake.settle(self.learner)
        self._followers.wait()
        send(self._control, Done())

    def _save(self, events: int) -> None:
        self._followers.order(Compare())
        self.learner.compare()
        arrays, facts = self.learner.save()
        named = {f"learner/{name}": array for name, array in arrays.items()}
        self._checkpoints.save(self.learner.decisions, named, {"learner": facts, "events": events})
