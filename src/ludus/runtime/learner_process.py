"""The learner as a process: it trains, reports to the controller and answers its requests."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from ludus.algorithms.teacher import TEACHER
from ludus.data.records import ModelId
from ludus.data.trees import IntArray
from ludus.models.policy import gpu_of_rank
from ludus.runtime.assemble import CHECKPOINT, load_learner, new_learner
from ludus.runtime.faults import START_UP_S
from ludus.runtime.rounds import STOPPED
from ludus.runtime.shared_parts import LEARNER_TIMES, WAIT_S, Followers, Leader, SharedParts, WorkerContext, link_ranks
from ludus.store.checkpoints import Checkpoint, decode_tensors, encode_tensors
from ludus.system.process import receive, send
from ludus.system.shared_memory import Heap, Signal
from ludus.workers.buffer_worker import Recomputing
from ludus.workers.learner import Learner
from ludus.workers.messages import (
    Configure,
    Done,
    Forget,
    Launch,
    Learned,
    Publish,
    Published,
    ResetWeights,
    Save,
    Stopping,
    ToLearner,
)
from ludus.workers.ranks import ALONE, Compare, ConnectedRanks, Ranks, ToRank, Train
from ludus.workers.worker import IDLE, StopTraining, wrap


class TrajectoryReader:
    """Reads the trajectories that this rank's actors hand over, and reports to them what has been used."""

    def __init__(self, parts: SharedParts, signals: Sequence[Signal], worker: int, players: Iterable[str]) -> None:
        """`worker`: the number of this learner, or rank of it, among all workers; `players`: those that it trains."""
        self._parts = parts
        self._signals = signals
        self._worker = worker
        self._players = [parts.players.index(player) for player in players]
        first = self._players[0]
        self._channel = parts.channel_of(first)
        self._actors = [actor for actor in range(parts.num_places) if parts.learner_of(actor, first) == worker]
        self.generation = int(parts.generations[first])
        if self.generation % 2:  # the learner before this one is gone
            self.generation += 1
        self._awaited = set(self._actors) if self.generation else set()
        """Actors whose rings still hold what was meant for the learner before this one."""
        self.is_own = np.isin(np.arange(parts.num_places), self._actors)
        """By place: whether its actor plays for this rank."""

    def begin(self) -> None:
        """Tell the actors that there is a learner again."""
        if self.generation:
            self._parts.generations[self._players] = self.generation
            for actor in self._actors:
                self._signals[actor].notify()

    def take_in(self, learner: Learner) -> None:
        """Put the trajectories that actors have handed over into the buffers."""
        for actor in self._actors:
            ring = self._parts.ready[actor][self._channel]
            if not len(ring):
                continue
            codes = self._meant_for_this(actor, ring.take())
            cuts = np.nonzero(codes < 0)[0]
            for part, end in zip(np.split(codes, cuts), [None, *cuts.tolist()], strict=True):
                if end is not None:
                    learner.buffers[self._parts.players[-1 - int(part[0])]].complete(actor)
                    part = part[1:]
                owners, kinds, slots = self._parts.decode(part)
                for owner in np.unique(owners):
                    for kind in np.unique(kinds[owners == owner]):
                        here = (owners == owner) & (kinds == kind)
                        learner.put(self._parts.players[int(owner)], int(kind), slots[here])

    def _meant_for_this(self, actor: int, codes: IntArray) -> IntArray:
        """Without what was handed over to a learner before this one, and without the marks that say so."""
        if actor in self._awaited:
            begins = np.flatnonzero(codes == self._parts.mark(self._players[0], self.generation))
            if not len(begins):
                return codes[:0]
            self._awaited.remove(actor)
            codes = codes[begins[-1] :]
        return codes[codes >= -len(self._parts.players)]

    def settle(self, learner: Learner) -> None:
        """Report to the actors how many of their decisions are used; actors that waited for it continue. Report to
        other learners which actors wait, and how much has been learned."""
        mine = np.ix_(self._actors, self._players)
        buffers = list(learner.buffers.values())
        if self._parts.per_player:
            held_up = np.stack([buffer.held_up() for buffer in buffers], 1)[self._actors]
            self._parts.decisions[self._players] = [trained.decisions for trained in learner.players.values()]
            if not np.array_equal(held_up, self._parts.held_up[mine]):
                self._parts.held_up[mine] = held_up
                for other in self._parts.learners:
                    if other != self._worker:
                        self._signals[other].notify()
        used = np.stack([buffer.consumed for buffer in buffers], 1)[self._actors]
        if not np.array_equal(used, self._parts.used[mine]):
            self._parts.used[mine] = used
            for actor in self._actors:
                self._signals[actor].notify()

    def give_back(self, kind: int, slots: IntArray) -> None:
        """Slots that are free again."""
        actors = slots // self._parts.slots_per_actor[kind]
        for actor in np.unique(actors):
            self._parts.free[actor][self._channel].put(self._parts.code(0, kind, slots[actors == actor]))

    def forget(self, request: Forget, learner: Learner) -> None:
        """Drop the trajectories of an actor that has ended: no other process touches its rings now."""
        actor = request.actor
        if actor in self._actors:
            if request.gone:
                self._parts.present[actor] = False
            self._parts.ready[actor][self._channel].clear()
            self._parts.free[actor][self._channel].clear()
            self._awaited.discard(actor)
        for buffer in learner.buffers.values():
            buffer.forget(actor)


@dataclass
class Rank:
    """One rank of the learner: most often the only one."""

    context: WorkerContext
    links: Sequence[Connection]
    """Connections of rank 0 to the other ranks, or of another rank to rank 0."""
    learner: Learner
    reader: TrajectoryReader

    def obey(self, order: ToLearner | ToRank) -> None:
        """Do what all ranks do alike."""
        if isinstance(order, ResetWeights):
            self.learner.reset(order.event)
        elif isinstance(order, Configure):
            self.learner.configure(order.player, order.settings)
        elif isinstance(order, Forget):
            self.reader.forget(order, self.learner)
        elif isinstance(order, Train):
            self.learner.train(order.parts)
        elif isinstance(order, Compare):
            self.learner.compare()


def open_rank(launch: Launch) -> Rank:
    """The learner as the latest checkpoint has it, together with all other ranks."""
    context = WorkerContext(launch)
    experiment, parts = context.experiment, context.parts
    hosted = {launch.learns: launch.players[launch.learns]} if launch.learns else launch.players
    reader = TrajectoryReader(parts, context.signals, launch.index, hosted)
    ranks: Ranks = ALONE
    patience_s = START_UP_S + 2 * experiment.supervision.hung_after_s
    if parts.num_ranks > 1:
        ranks = ConnectedRanks(
            launch.rendezvous,
            parts.learners.index(launch.index),
            parts.num_ranks,
            patience_s=patience_s,
            interface=experiment.cluster.network_interface,
            node=f"{socket.gethostname()} {launch.parent} {launch.run}",
            find_gpu=lambda rank: gpu_of_rank(experiment.learner.device, rank),
        )
    links = link_ranks(ranks, launch.rendezvous.rpartition(":")[0], patience_s)
    learner = new_learner(
        experiment,
        hosted,
        parts.pools,
        parts.weights,
        context.models if ranks.rank else experiment.models.open(context.folder),
        reader.give_back,
        parts.num_places,
        launch.spent,
        ranks,
        _way_to_buffer_worker(parts, context.signals),
        device=launch.index - parts.learners.start if launch.learns else None,
    )
    learner.present, learner.own_actors = parts.present, reader.is_own
    load_learner(learner, hosted, _latest_checkpoint(context, ranks))
    if parts.per_player:
        _stand_beside(learner, parts, reader)
    for player in hosted:
        learner.players[player].show_life = context.show_life
    learner.compare()
    return Rank(context, links, learner, reader)


def _latest_checkpoint(context: WorkerContext, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint that rank 0 finds: nodes of other ranks may not see the run folder."""
    found = context.folder.checkpoints(CHECKPOINT).load_latest() if ranks.rank == 0 else None
    if ranks.count == 1:
        return found
    content = b"" if found is None else encode_tensors(found.arrays, {"facts": json.dumps([found.step, found.facts])})
    content = ranks.share(content)
    if not content or found is not None:
        return found
    arrays, described = decode_tensors(content)
    step, facts = json.loads(described["facts"])
    return Checkpoint(step=step, arrays=arrays, facts=facts)


def _stand_beside(learner: Learner, parts: SharedParts, reader: TrajectoryReader) -> None:
    """Connect the learner of one player with those of the others."""
    [(player, trained)] = learner.players.items()
    number = parts.players.index(player)
    learner.decisions_elsewhere = lambda: int(parts.decisions.sum() - parts.decisions[number])
    others = [other for other in range(len(parts.players)) if other != number]
    learner.waiting_elsewhere = lambda: np.logical_or.reduce(parts.held_up[:, others], axis=1)
    newest = parts.weights.newest(player) if reader.generation else None
    if newest is not None:  # what actors have played with the weights of the learner before this one is too old
        trained.step = max(trained.step, newest.step + 1 + trained.config.lag)
    if parts.recomputing is not None:
        parts.recomputing.continue_numbers()


def _way_to_buffer_worker(parts: SharedParts, signals: Sequence[Signal]) -> Callable[[str], Recomputing] | None:
    """None: there is none."""
    requests = parts.recomputing
    if requests is None:
        return None
    wake = signals[parts.buffer_worker].notify
    return lambda player: Recomputing(requests, parts.players.index(player), wake)


class LearnerProcess:
    """Waits for trajectories and requests alike; `run` never returns. It is rank 0, and leads the others."""

    def __init__(self, launch: Launch) -> None:
        self._rank = rank = open_rank(launch)
        self._context = context = rank.context
        self._parts, self._control = context.parts, context.control
        self.learner, self._reader = rank.learner, rank.reader
        self._checkpoints = context.folder.checkpoints(CHECKPOINT)
        if launch.learns:
            self._checkpoints = context.folder.checkpoints(part_of_checkpoint(launch.learns), keep=1)
        self._followers = Followers(rank.links, context.experiment.supervision.hung_after_s)
        self.learner.others = self._followers
        for player in self.learner.players:
            self.learner.publish(player)
        if self._parts.recomputing is not None and TEACHER in context.experiment.learner.recompute:
            self.learner.publish_teachers()
        self._reader.begin()
        self._times = self._parts.learner_times[self._parts.channel_of(launch.index - self._parts.learners.start)]
        self._waited = 0.0
        """Seconds since the last update."""
        self._noted = time.monotonic()
        self._looked_at = (time.monotonic(), self._parts.waited.copy())
        """When the last update ended, and how long each actor had waited by then."""
        self._poll = select.poll()
        links = [link.fileno() for link in self._followers.links]
        for descriptor in (context.woken.fds[0], self._control.fileno(), *links):
            self._poll.register(descriptor, select.POLLIN)

    def run(self) -> None:
        self._tell({})
        train = wrap(self.learner, self._context.experiment.middleware)
        training, other, waiting = range(len(LEARNER_TIMES))
        self._note_time(other)
        heap = Heap(changing_sizes=True)
        while True:
            self._context.show_life()
            heap.settle()
            self._reader.take_in(self.learner)
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
            self._reader.settle(self.learner)
            idle = self.learner.batches == batches  # middleware may say what it likes
            self._note_time(other if idle else training)
            if not idle:
                self._tell({**progress.statistics, **self._waits()})
            while self._control.poll(0):
                self._obey(receive(self._control, ToLearner))
            if idle:
                self._note_time(other)
                self._poll.poll(WAIT_S * 1000)
                self._context.woken.wait(0)
                self._waited += self._note_time(None if self._parts.paused[0] else waiting)

    def _note_time(self, kind: int | None) -> float:
        """Note how the time since the last note was spent, of `LEARNER_TIMES`; None: paused. Returns its seconds."""
        before, self._noted = self._noted, time.monotonic()
        if kind is not None:
            self._times[kind] += self._noted - before
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
        if isinstance(request, Save):
            self._save(request)
        else:
            self._followers.order(request)
            self._rank.obey(request)
        if isinstance(request, ResetWeights):
            self._tell({})  # its step and incarnation are others now
        self._reader.settle(self.learner)
        self._followers.wait()
        send(self._control, Done())

    def _save(self, request: Save) -> None:
        self._followers.order(Compare())
        self.learner.compare()
        arrays, facts = self.learner.save()
        named = {f"learner/{name}": array for name, array in arrays.items()}
        ledger = {"events": request.events, "chain": request.chain}
        self._checkpoints.save(self.learner.decisions, named, {"learner": facts, **ledger})


def part_of_checkpoint(player: str) -> str:
    """Name of the checkpoints of a learner for one player; the controller joins them to that of the run."""
    return f"{CHECKPOINT}-{player}"


def run_follower(launch: Launch) -> None:
    """The main loop: say what waits here, and do what rank 0 says."""
    rank = open_rank(launch)
    context, learner, reader = rank.context, rank.learner, rank.reader
    for player in launch.players:
        learner.publish(player)
    leader = Leader(rank.links[0])
    poll = select.poll()
    for descriptor in (context.woken.fds[0], leader.link.fileno(), context.control.fileno()):
        poll.register(descriptor, select.POLLIN)

    heap = Heap(changing_sizes=True)
    while True:
        context.show_life()
        heap.settle()
        reader.take_in(learner)
        if learner.progress >= 1.0:
            learner.discard()
        reader.settle(learner)
        leader.tell(learner.buffer_status())
        poll.poll(WAIT_S * 1000)
        context.woken.wait(0)
        context.require_controller()
        while (order := leader.next_order()) is not None:
            rank.obey(order)
            context.show_life()
