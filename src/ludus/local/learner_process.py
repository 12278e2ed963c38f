"""The learner as a process: trains, tells the controller, does what it asks."""

from __future__ import annotations

import select
import time

import numpy as np

from ludus.assemble import CHECKPOINT, load_learner, new_learner
from ludus.data.records import ModelId
from ludus.data.trees import IntArray
from ludus.local.shared_parts import WAIT_S, open_parts
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
from ludus.runtime.program import StopTraining, wrap
from ludus.runtime.serial import STOPPED
from ludus.workers.learner import Learner


class LearnerProcess:
    """Waits for trajectories and requests alike; `run` never returns."""

    def __init__(self, launch: Launch) -> None:
        self._experiment, folder, self._parts, self._signals, self._control = open_parts(launch)
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        parts = self._parts
        self.learner: Learner = new_learner(
            self._experiment,
            launch.players,
            parts.pools,
            parts.board,
            folder.models,
            self._give_back,
            parts.num_actors,
            launch.spent,
        )
        load_learner(self.learner, launch.players, self._checkpoints.load_latest())
        for player, hosted in launch.players.items():
            trained = self.learner.players[player]
            trained.incarnation = max(trained.incarnation, hosted.incarnation)
            trained.after_gradient_step = self._show_life
            self.learner.publish(player)
        self._waited = 0.0
        """Seconds since the last update."""
        self._looked_at = (time.monotonic(), float(self._parts.waited.mean()))
        """When the last update ended, and how long actors had waited by then."""
        self._poll = select.poll()
        self._poll.register(self._signals[-1].fds[0], select.POLLIN)
        self._poll.register(self._control.fileno(), select.POLLIN)

    def run(self) -> None:
        self._tell({})
        train = wrap(self.learner, self._experiment.middleware)
        heap = Heap()
        while True:
            self._show_life()
            heap.settle()
            self._take_in()
            batches = self.learner.batches
            try:
                progress = train() if self.learner.progress < 1.0 else self.learner.discard()
            except StopTraining as request:
                send(self._control, Stopping(str(request) or STOPPED))
                train = self.learner.discard
                continue
            self._settle()
            idle = self.learner.batches == batches  # middleware may say what it likes
            if not idle:
                self._tell({**progress.statistics, **self._waits()})
            while self._control.poll(0):
                self._obey(receive(self._control, ToLearner))
            if idle:
                began = time.monotonic()
                self._poll.poll(WAIT_S * 1000)
                self._signals[-1].wait(0)
                self._waited += time.monotonic() - began

    def _show_life(self) -> None:
        self._parts.hearts[-1] = time.monotonic()

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

    def _settle(self) -> None:
        """Tell the actors how much of what they have handed over is used; who waited for it goes on."""
        used = np.stack([self.learner.buffers[player].consumed for player in self._parts.players], 1)
        if not np.array_equal(used, self._parts.used):
            self._parts.used[...] = used
            for signal in self._signals[:-1]:
                signal.notify()

    def _waits(self) -> dict[str, float]:
        """Since the last update: seconds that the learner waited for trajectories, and the share of the time
        that actors waited for the learner."""
        now, actors = time.monotonic(), float(self._parts.waited.mean())
        began, before = self._looked_at
        share = min((actors - before) / max(now - began, 1e-9), 1.0)  # a wait may have begun before
        waits = {"queue_wait": self._waited, "actor_wait": share}
        self._waited, self._looked_at = 0.0, (now, actors)
        return waits

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
            self.learner.reset(request.event)
            self._tell({})  # its step and incarnation are others now
        elif isinstance(request, Configure):
            self.learner.configure(request.player, request.settings)
        elif isinstance(request, Save):
            self._save(request.events)
        elif isinstance(request, Forget):
            self._forget(request.actor)
        self._settle()
        send(self._control, Done())

    def _save(self, events: int) -> None:
        arrays, facts = self.learner.save()
        named = {f"learner/{name}": array for name, array in arrays.items()}
        self._checkpoints.save(self.learner.decisions, named, {"learner": facts, "events": events})

    def _forget(self, actor: int) -> None:
        """It is gone, so that nobody else touches its rings now."""
        self._parts.ready[actor].clear()
        self._parts.free[actor].clear()
        for buffer in self.learner.buffers.values():
            buffer.forget(actor)
