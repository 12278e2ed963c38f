"""Between the actors of one rank of the learner and its buffers: slot numbers in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ludus.data.trees import IntArray
from ludus.local.shared_parts import SharedParts
from ludus.runtime.channel import Signal
from ludus.runtime.messages import Forget
from ludus.workers.learner import Learner


class Intake:
    """Takes in what this rank's actors hand over and tells them what has been used."""

    def __init__(self, parts: SharedParts, signals: Sequence[Signal], worker: int) -> None:
        """`worker`: the number of this rank among all workers."""
        self._parts = parts
        self._signals = signals
        self._actors = [actor for actor in range(parts.num_places) if parts.learner_of(actor) == worker]

    def take_in(self, learner: Learner) -> None:
        """What the actors have handed over goes into the buffers."""
        for actor in self._actors:
            ring = self._parts.ready[actor]
            if not len(ring):
                continue
            codes = ring.take()
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

    def settle(self, learner: Learner) -> None:
        """Tell the actors how much of what they have handed over is used; who waited for it goes on."""
        mine = self._actors
        used = np.stack([learner.buffers[player].consumed[mine] for player in self._parts.players], 1)
        if not np.array_equal(used, self._parts.used[mine]):
            self._parts.used[mine] = used
            for actor in mine:
                self._signals[actor].notify()

    def give_back(self, kind: int, slots: IntArray) -> None:
        """Slots that are free again."""
        actors = slots // self._parts.slots_per_actor[kind]
        for actor in np.unique(actors):
            self._parts.free[actor].put(self._parts.code(0, kind, slots[actors == actor]))

    def forget(self, request: Forget, learner: Learner) -> None:
        """The actor has ended, so that nobody else touches its rings now."""
        actor = request.actor
        if actor in self._actors:
            if request.gone:
                self._parts.present[actor] = False
            self._parts.ready[actor].clear()
            self._parts.free[actor].clear()
        for buffer in learner.buffers.values():
            buffer.forget(actor)
