"""The actor as a process: it plays, unless the learner is too far behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from msgspec.structs import replace

from ludus.data.records import Match, ModelId, Result
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.game import Bot
from ludus.models.policy import Policy
from ludus.runtime.assemble import inline_inference, new_actor, shares_of_batch
from ludus.runtime.networks import Networks
from ludus.runtime.shared_parts import WAIT_S, SharedParts, WorkerContext
from ludus.store.model_pool import ModelPool, ModelPoolError, Variant
from ludus.store.model_storage import ModelCache
from ludus.system.process import receive, send
from ludus.system.shared_memory import Heap, Ring, Signal
from ludus.workers.actor import StepTimes
from ludus.workers.buffer import ActorLead
from ludus.workers.inference import ActingRows, Inference, InferenceResult
from ludus.workers.messages import (
    FindFrozen,
    FromActor,
    FrozenFound,
    Launch,
    Leaving,
    MatchFound,
    NextMatch,
    ReportResult,
    ToActor,
    VoidMatch,
)
from ludus.workers.player_cache import WeightStore
from ludus.workers.policy_worker import RequestArea
from ludus.workers.worker import StopTraining, wrap

NAMES_IN_MEMORY = 1024
"""Frozen players whose model ids are remembered."""


class RemoteInference:
    """An `Inference` that asks the policy worker and sleeps until the answer is there."""

    def __init__(
        self,
        area: RequestArea,
        *,
        weights: WeightStore,
        learning: Sequence[str],
        bots: Mapping[str, Bot],
        draws: Sequence[int],
        find_frozen: Callable[[str], str],
        wake_worker: Signal,
        woken: Signal,
        show_life: Callable[[], None],
    ) -> None:
        """`find_frozen`: player -> id of its pinned weights; `draws`: per kind of seat, the uniform numbers
        that one row uses up; `show_life` is called now and then while it waits."""
        self._area = area
        self._weights = weights
        self._learning = learning
        self._bots = bots
        self._draws = draws
        self._find_frozen = lru_cache(NAMES_IN_MEMORY)(find_frozen)
        self._wake_worker = wake_worker
        self._woken = woken
        self._show_life = show_life
        self._models: dict[str, ModelId] = {}
        """The weights that the learning players decide with."""

    def bot(self, player: str) -> Bot | None:
        return self._bots.get(player)

    def num_draws(self, kind: int) -> int:
        return self._draws[kind]

    def refresh(self) -> None:
        """The policy worker renews the weights; here only their names change."""
        for player in self._learning:
            newest = self._weights.newest(player)
            if newest is not None:
                self._models[player] = newest

    def model_name(self, player: str) -> str:
        if player in self._bots:
            return ""
        model = self._models.get(player)
        return self._find_frozen(player) if model is None else str(model)

    def act_all(self, requests: Sequence[ActingRows]) -> Sequence[InferenceResult]:
        """One round trip; the answers stay where they are, in shared memory."""
        self._wait()  # a predecessor that died may have left a request, and it is being answered now
        self._area.ask(requests)
        self._wake_worker.notify()
        self._wait()
        answers = self._area.answers(requests)
        for rows in requests:
            versions = self._area.kinds[rows.kind].versions(len(rows.groups))
            for group, (incarnation, step) in zip(rows.groups, versions, strict=True):
                if group.player in self._learning:
                    self._models[group.player] = ModelId(group.player, incarnation, step)
        return answers

    def _wait(self) -> None:
        while self._area.is_waiting:
            self._woken.wait(WAIT_S)
            self._show_life()


PASTIME = -1
"""The id of a match that is played only because a table cannot stand still."""


class RingTrajectoryClient:
    """Sends an actor's trajectories to the learner: slot numbers through a ring in shared memory."""

    def __init__(self, parts: SharedParts, actor: int, wake: Sequence[Signal], max_lags: Sequence[int]) -> None:
        """By learning player, in their order: the signal that wakes its learner, and how far it may be behind."""
        self._parts = parts
        self._actor = actor
        self._wake = wake
        self._max_lags = max_lags
        self._is_on_policy = not any(max_lags)
        self._leads = [ActorLead(max_lag) for max_lag in max_lags]
        self._used = [0 for _ in parts.players]
        """Decisions that the learner had used when the present step began."""
        self._owners = [np.full(count, -1) for count in parts.slots_per_actor]
        """By kind and slot of this actor: the player whose learner has it, or -1."""
        self._generations = [0 for _ in parts.players]
        """Of the learners, as far as this actor has followed them."""
        for ring in parts.free[actor]:
            ring.take()  # meant for an actor before this one

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        number = self._parts.players.index(player)
        self._owners[kind][slots - self._first(kind)] = number
        if self._generations[number] % 2:
            return  # its learner is gone: `freed` takes the slots back
        self._leads[number].decisions += int(self._parts.pools[kind].num_decisions(slots).sum())
        self._ready(number).put(self._parts.code(number, kind, slots))

    def complete(self, player: str) -> None:
        number = self._parts.players.index(player)
        if self._generations[number] % 2:
            return
        self._ready(number).put(np.array([self._parts.mark(number)]))
        self._leads[number].complete()
        self._wake[number].notify()

    def freed(self) -> Iterator[tuple[int, IntArray]]:
        """Slots by kind that are free again: learners have used them, or were lost with them."""
        for number, generation in enumerate(self._parts.generations.tolist()):
            if generation != self._generations[number] or generation % 2:
                yield from self._follow(number, generation)
        for ring in self._parts.free[self._actor]:
            _, kinds, slots = self._parts.decode(ring.take())
            for kind, owners in enumerate(self._owners):
                mine = slots[kinds == kind]
                owners[mine - self._first(kind)] = -1
                yield kind, mine

    def _follow(self, number: int, generation: int) -> Iterator[tuple[int, IntArray]]:
        """The learner of a player is gone, or another one has begun: what the one before had is lost."""
        self._parts.free[self._actor][self._parts.channel_of(number)].take()
        for kind, owners in enumerate(self._owners):
            lost = np.flatnonzero(owners == number)
            owners[lost] = -1
            yield kind, lost + self._first(kind)
        self._leads[number] = ActorLead(self._max_lags[number])
        if generation != self._generations[number] and generation % 2 == 0:
            self._ready(number).put(np.array([self._parts.mark(number, generation)]))
        self._generations[number] = generation

    def _ready(self, number: int) -> Ring:
        return self._parts.ready[self._actor][self._parts.channel_of(number)]

    def _first(self, kind: int) -> int:
        return self._actor * self._parts.slots_per_actor[kind]

    def is_too_far_ahead(self) -> bool:
        """Whether this actor has to wait until the learner has used more of its trajectories."""
        self._used = self._parts.used[self._actor].tolist()
        return self._has_to_wait()

    def learner_goes_first(self) -> bool:
        """Whether the actor has to wait after a hand-over. The learner publishes weights before it counts their
        decisions as used, so the count from before the step tells whether the step had these weights: without them,
        its decisions would be too old when the learner takes them."""
        return self._is_on_policy or self._has_to_wait()

    def _has_to_wait(self) -> bool:
        return any(lead.is_too_long(done) for lead, done in zip(self._leads, self._used, strict=True))


def _variant(found: FrozenFound) -> Variant:
    return "average" if found.variant == "average" else "live"


class NothingToPlay(Exception):  # noqa: N818 - the end of an actor, not an error
    """The controller has no match for an actor that has had none yet."""


class ControlMatchClient:
    """An actor's client of the controller: sends a request and waits for the answer.

    An actor that is to leave gets no more matches. Its tables are stepped together, so tables that have finished
    play a pastime until all have: a match that trains no player and is not reported.
    """

    def __init__(
        self,
        control: Connection,
        models: ModelPool | ModelCache,
        show_life: Callable[[], None] = lambda: None,
        learning: Collection[str] = (),
    ) -> None:
        """`learning`: players that have no frozen model."""
        self._control = control
        self._models = models
        self._learning = learning
        self._show_life = show_life
        self.sharing = 0
        """Actors that share a batch, as the controller last said; 0: it has not yet."""
        self.roles: dict[str, str | None] = {}
        """By player that frozen models are of: its role, as far as the controller was asked."""
        self._open: set[int] = set()
        self._latest: Match | None = None
        self._leaves = False
        self._find_frozen = lru_cache(NAMES_IN_MEMORY)(self.find_frozen)

    @property
    def has_left(self) -> bool:
        """There is nothing more to play, and all that was begun has ended."""
        return self._leaves and not self._open

    def next_match(self, tables: int) -> Match:
        """Frozen models of another machine are here before their match begins; if one cannot be had, it is void."""
        while True:
            answer = self._ask(NextMatch(tables))
            assert isinstance(answer, MatchFound)
            self.sharing = answer.sharing
            self._leaves = answer.match is None
            if answer.match is None:
                return self._pastime(tables)
            self._open.add(answer.match.id)
            try:
                self._fetch_models_of(answer.match)
            except ModelPoolError as error:
                self.void_match(answer.match.id, str(error), "models_unreachable")
                continue
            self._latest = answer.match
            return answer.match

    def _fetch_models_of(self, match: Match) -> None:
        if not isinstance(self._models, ModelCache):
            return
        for player in {player for side in match.sides for player in side.players} - {*self._learning}:
            found = self._find_frozen(player)
            if found.model and not self._models.has(ModelId.parse(found.model), _variant(found)):
                self._models.fetch(ModelId.parse(found.model), _variant(found))

    def _pastime(self, tables: int) -> Match:
        if self._latest is None:
            raise NothingToPlay
        watched = tuple(replace(side, trains=False) for side in self._latest.sides)
        return replace(self._latest, id=PASTIME, sides=watched, tables=tables)

    def report(self, result: Result) -> None:
        if result.match_id != PASTIME:
            self._ask(ReportResult(result))
            self._open.discard(result.match_id)

    def void_match(self, match_id: int, reason: str, kind: str = "game_lost") -> None:
        if match_id != PASTIME:
            self._ask(VoidMatch(match_id, reason, kind))
            self._open.discard(match_id)

    def find_frozen(self, player: str) -> FrozenFound:
        answer = self._ask(FindFrozen(player))
        assert isinstance(answer, FrozenFound)
        return answer

    def fetch_frozen(self, player: str) -> tuple[ModelId, Tree]:
        found = self.find_frozen(player)
        model = ModelId.parse(found.model)
        self.roles[model.player] = found.role
        return model, self._models.fetch(model, _variant(found))

    def _ask(self, request: FromActor) -> Any:
        send(self._control, request)
        answer = receive(self._control, ToActor)
        self._show_life()  # within a step, too: a game may be lost again and again, and takes its time
        return answer


def networks_of(
    context: WorkerContext, client: ControlMatchClient, place: Callable[[Policy], Policy] = lambda policy: policy
) -> Networks:
    """The networks of a worker that acts: it knows the roles of learning players, and learns those of frozen ones."""
    learning = context.parts.roles
    return Networks(context.experiment, lambda player: learning.get(player) or client.roles.get(player), place)


def _new_inference(context: WorkerContext, client: ControlMatchClient, show_life: Callable[[], None]) -> Inference:
    """The actor's own models, or the policy worker's."""
    experiment, parts = context.experiment, context.parts
    if experiment.actor.inference == "inline":
        bots = experiment.grouped_game.bots()
        return inline_inference(experiment, parts.weights, client, networks_of(context, client), bots=bots)
    return RemoteInference(
        parts.requests[context.index],
        weights=parts.weights,
        learning=parts.players,
        bots=experiment.grouped_game.bots(),
        draws=parts.networks.draws,
        find_frozen=lambda player: client.find_frozen(player).model,
        wake_worker=context.signals[parts.num_places],
        woken=context.woken,
        show_life=show_life,
    )


class Stopwatch:
    """Writes into shared memory how an actor spends its time."""

    def __init__(self, written: Array, steps: StepTimes) -> None:
        """`written`: [ACTOR_TIMES] in shared memory."""
        self._written = written
        self._steps = steps
        self._now = time.monotonic()

    def stepped(self) -> None:
        """A step has just ended."""
        steps = self._steps
        self._written[:3] += steps.game, steps.inference, self._passed() - steps.game - steps.inference
        steps.game = steps.inference = 0.0

    def waited(self) -> None:
        """The actor has waited for the learner since the last call."""
        self._written[3] += self._passed()

    def paused(self) -> None:
        """The run was paused since the last call: this time does not count."""
        self._passed()

    def _passed(self) -> float:
        before, self._now = self._now, time.monotonic()
        return self._now - before


def run_actor(launch: Launch) -> None:
    """The main loop of an actor process: play, unless the learner is too far behind or the run is paused."""
    context = WorkerContext(launch)
    experiment, parts = context.experiment, context.parts
    wake = [context.signals[parts.learner_of(launch.index, player)] for player in range(len(parts.players))]
    lags = [experiment.of_role(role).learner.lag for role in parts.roles.values()]
    ring = RingTrajectoryClient(parts, launch.index, wake, lags)

    def show_life() -> None:
        context.show_life()
        context.require_controller()

    client = ControlMatchClient(context.control, context.models, show_life, learning=parts.players)
    seeds = np.random.SeedSequence([experiment.seed, launch.index, launch.start, launch.attempt])
    actor = new_actor(
        experiment,
        name=f"actor-{launch.index}",
        client=client,
        inference=_new_inference(context, client, show_life),
        pools=parts.pools,
        trajectories=ring,
        roles=parts.roles,
        sharing=launch.sharing,
        learner_goes_first=ring.learner_goes_first,
        seed=int(seeds.generate_state(1)[0]),
        slots=parts.slots_of(launch.index),
    )
    step = wrap(actor, experiment.middleware)
    times = Stopwatch(parts.actor_times[launch.index], actor.times)
    parts.present[launch.index] = True
    sharing = launch.sharing
    heap = Heap()
    while not client.has_left:
        for kind, slots in ring.freed():
            actor.recorder.free(kind, slots)
        show_life()
        heap.settle()
        times.stepped()
        if parts.paused[0]:
            context.woken.wait(WAIT_S)
            times.paused()
            continue
        if ring.is_too_far_ahead() or not actor.recorder.has_room:
            for learner in wake:
                learner.notify()
            context.woken.wait(WAIT_S)
            times.waited()
            continue
        try:
            dropped = actor.recorder.dropped_reward
            step()
            parts.dropped_reward[launch.index] += actor.recorder.dropped_reward - dropped
            if client.sharing not in (0, sharing):
                sharing = client.sharing
                actor.hand_over_after = shares_of_batch(experiment, parts.roles, sharing)
        except NothingToPlay:
            break
        except StopTraining as request:
            context.stop_training(request)
    parts.present[launch.index] = False
    for learner in wake:
        learner.notify()  # it may have waited for this actor alone
    actor.close()
    send(context.control, Leaving())
