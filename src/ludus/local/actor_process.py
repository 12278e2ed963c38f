"""The actor as a process: plays, unless the learner is too far behind."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ludus.assemble import build_policies, draws_per_row
from ludus.data.records import Match, ModelId, Result
from ludus.data.trees import IntArray, Tree
from ludus.local.shared_parts import WAIT_S, SharedParts, open_parts
from ludus.runtime.channel import Signal
from ludus.runtime.messages import (
    FindFrozen,
    FromActor,
    FrozenFound,
    MatchFound,
    NextMatch,
    Report,
    Stopping,
    ToActor,
)
from ludus.runtime.process import Launch, receive, send
from ludus.runtime.program import StopTraining, wrap
from ludus.runtime.serial import STOPPED
from ludus.store.model_pool import ModelPool
from ludus.workers.actor import Actor
from ludus.workers.inline_inference import InlineInference
from ludus.workers.shelf import Shelf


class RingDesk:
    """An actor's way to the learner: slot numbers through a ring."""

    def __init__(self, parts: SharedParts, actor: int, wake_learner: Signal) -> None:
        self._parts = parts
        self._actor = actor
        self._wake_learner = wake_learner
        self._handed_over = [0] * len(parts.players)

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        number = self._parts.players.index(player)
        self._parts.ready[self._actor].put(self._parts.code(number, kind, slots))

    def complete(self, player: str) -> None:
        number = self._parts.players.index(player)
        self._parts.ready[self._actor].put(np.array([-1 - number]))
        self._handed_over[number] += 1
        self._wake_learner.notify()

    def ahead(self) -> int:
        """Hand-overs that the learner has not used yet, of the player that has most."""
        used = self._parts.used[self._actor].tolist()
        return max(mine - int(done) for mine, done in zip(self._handed_over, used, strict=True))


class ControlDesk:
    """An actor's way to the controller: asks and waits for the answer."""

    def __init__(self, control: Connection, models: ModelPool) -> None:
        self._control = control
        self._models = models

    def next_match(self, tables: int) -> Match:
        answer = self._ask(NextMatch(tables))
        assert isinstance(answer, MatchFound)
        return answer.match

    def report(self, result: Result) -> None:
        self._ask(Report(result))

    def fetch_frozen(self, player: str) -> tuple[ModelId, Tree]:
        answer = self._ask(FindFrozen(player))
        assert isinstance(answer, FrozenFound)
        model = ModelId.parse(answer.model)
        return model, self._models.fetch(model, "average" if answer.variant == "average" else "live")

    def _ask(self, request: FromActor) -> Any:
        send(self._control, request)
        return receive(self._control, ToActor)


def run_actor(launch: Launch) -> None:
    """The main loop of an actor process: play, unless the learner is too far behind."""
    experiment, folder, parts, signals, control = open_parts(launch)
    desk = ControlDesk(control, folder.models)
    ring = RingDesk(parts, launch.index, wake_learner=signals[-1])
    shelf = Shelf(
        build=lambda: build_policies(experiment, experiment.seed),
        board=parts.board,
        frozen=desk,
        bots=experiment.game.bots(),
        capacity=experiment.actor.models_in_memory,
    )
    actor = Actor(
        name=f"actor-{launch.index}",
        game=experiment.game.tables(experiment.actor.num_tables),
        config=experiment.actor,
        desk=desk,
        inference=InlineInference(shelf, draws_per_row(experiment)),
        pools=parts.pools,
        trajectories=ring,
        hand_over_after=max(1, experiment.learner.batch_size // launch.num_actors),
        seed=int(
            np.random.SeedSequence([experiment.seed, launch.index, launch.attempt]).generate_state(1)[0]
        ),
        slots=parts.slots_of(launch.index),
    )
    step = wrap(actor, experiment.middleware)
    while True:
        _, kinds, slots = parts.decode(parts.free[launch.index].take())
        for kind in range(len(parts.pools)):
            actor.free(kind, slots[kinds == kind])
        parts.hearts[launch.index] = time.monotonic()
        if control.poll(0):
            raise EOFError  # nothing is said without being asked: the controller is gone
        if ring.ahead() > experiment.learner.max_lag:
            signals[launch.index].wait(WAIT_S)
            continue
        try:
            step()
        except StopTraining as request:
            send(control, Stopping(str(request) or STOPPED))
            receive(control, ToActor)  # nothing but the end comes now
