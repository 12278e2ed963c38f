"""The learner as a process: trains, tells the controller, does what it asks."""

from __future__ import annotations

import select
import time

import numpy as np

from ludus.assemble import CHECKPOINT, new_learner
from ludus.data.records import ModelId
from ludus.data.trees import IntArray
from ludus.local.shared_parts import WAIT_S, open_parts
from ludus.runtime.messages import (
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
from ludus.runtime.program import StopTraining, wrap
from ludus.runtime.serial import STOPPED
from ludus.workers.learner import Learner


class LearnerProcess:
    """Waits for trajectories and requests alike; `run` never returns."""

    def __init__(self, launch: Launch) -> None:
        self._experiment, folder, self._parts, self._signals, self._control = open_parts(launch)
        self._models = folder.models
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        parts = self._parts
        self.learner: Learner = new_learner(
            self._experiment, parts.pools, parts.board, folder.models, self._give_back, parts.num_actors
        )
        checkpoint = self._checkpoints.load_latest()
        if checkpoint is not None:
            arrays = {
                name.removeprefix("learner/"): array
                for name, array in checkpoint.arrays.items()
                if name.startswith("learner/")
            }
            self.learner.load(arrays, checkpoint.facts["learner"])
        for player, incarnation in launch.incarnations.items():
            trained = self.learner.players[player]
            trained.incarnation = max(trained.incarnation, incarnation)
            self.learner.publish(player)
        self._poll = select.poll()
        self._poll.register(self._signals[-1].fds[0], select.POLLIN)
        self._poll.register(self._control.fileno(), select.POLLIN)

    def run(self) -> None:
        self._tell({})
        train = wrap(self.learner, self._experiment.middleware)
        while True:
            self._parts.hearts[-1] = time.monotonic()
            self._take_in()
            ready = [player for player, buffer in self.learner.buffers.items() if buffer.ready]
            try:
                progress = train() if self.learner.progress < 1.0 else self.learner.discard()
            except StopTraining as request:
                send(self._control, Stopping(str(request) or STOPPED))
                train = self.learner.discard
                continue
            for player in ready:
                self._parts.used[:, self._parts.players.index(player)] += 1
            if ready:
                for signal in self._signals[:-1]:
                    signal.notify()
                self._tell(dict(progress.statistics))
            while self._control.poll(0):
                self._obey(receive(self._control, ToLearner))
            if not ready:
                self._poll.poll(WAIT_S * 1000)
                self._signals[-1].wait(0)

    def _take_in(self) -> None:
        """What the actors have handed over goes into the buffers."""
        for actor, ring in enumerate(self._parts.ready):
            codes = ring.take()
            if not len(codes):
                continue
            cuts = np.nonzero(codes < 0)[0]
            for part, end in zip(np.split(codes, cuts), [None, *cuts.tolist()], strict=True):
                if end is not None:
                    self.learner.buffers[self._parts.players[-1 - int(part[0])]].complete(actor)
                    part = part[1:]
                owners, kinds, slots = self._parts.decode(part)
                for owner in np.unique(owners):
                    for kind in np.unique(kinds[owners == owner]):
                        here = (owners == owner) & (kinds == kind)
                        self.learner.put(self._parts.players[int(owner)], int(kind), slots[here])

    def _give_back(self, kind: int, slots: IntArray) -> None:
        actors = slots // self._parts.slots_per_actor[kind]
        for actor in np.unique(actors):
            self._parts.free[actor].put(self._parts.code(0, kind, slots[actors == actor]))

    def _tell(self, statistics: dict[str, float]) -> None:
        reports = tuple(self.learner.report(player) for player in self.learner.players)
        send(self._control, Learned(reports, statistics))

    def _obey(self, request: ToLearner) -> None:
        if isinstance(request, Publish):
            parent = ModelId.parse(request.parent) if request.parent else None
            send(self._control, Published(self.learner.freeze(request.player, parent)))
            return
        if isinstance(request, Reset):
            start = request.event.model
            self.learner.reset(request.event, self._models.fetch(ModelId.parse(start)) if start else None)
        elif isinstance(request, Save):
            self._save(request.events)
        elif isinstance(request, Forget):
            self._forget(request.actor)
        send(self._control, Done())

    def _save(self, events: int) -> None:
        arrays, facts = self.learner.save()
        named = {f"learner/{name}": array for name, array in arrays.items()}
        self._checkpoints.save(self.learner.decisions, named, {"learner": facts, "events": events})

    def _forget(self, actor: int) -> None:
        self._parts.ready[actor].take()
        for buffer in self.learner.buffers.values():
            buffer.forget(actor, lambda kind, slot: slot // self._parts.slots_per_actor[kind] == actor)
