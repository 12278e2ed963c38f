"""Shared memory of the processes of a run: trajectory slots, weights, rings of slot numbers, requests to the policy
worker, signs of life."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np

from ludus.algorithms.teacher import TEACHER
from ludus.data.trees import Array, IntArray
from ludus.experiment import Experiment
from ludus.runtime.assemble import load_experiment, new_pools, slots_per_actor
from ludus.runtime.networks import Networks, weight_arrays
from ludus.runtime.rounds import STOPPED
from ludus.runtime.services import remote_models
from ludus.runtime.settings import with_own_parts
from ludus.store.model_pool import ModelPool
from ludus.store.model_storage import ModelCache
from ludus.store.run_folder import RunFolder
from ludus.system.process import PeerGone, receive, send
from ludus.system.shared_memory import Region, Ring, Signal
from ludus.workers.buffer_worker import RecomputeRequests, teacher_of
from ludus.workers.messages import Launch, Stopping, ToActor
from ludus.workers.player_cache import SharedWeights
from ludus.workers.policy_worker import COUNTERS, RequestArea
from ludus.workers.ranks import BufferStatus, RankLost, Ranks, ToRank
from ludus.workers.worker import StopTraining

WAIT_S = 0.2
"""Longest sleep of a worker that waits for another: then it looks around and shows that it lives."""


NewArray = Callable[[tuple[int, ...], Any], Array]
ACTOR_TIMES = ("game", "inference", "other", "waiting")
"""Uses of an actor's time: the game, decisions, its own bookkeeping and hand-overs, and waiting
until the learner has caught up."""
LEARNER_TIMES = ("training", "other", "waiting")
BUFFER_TIMES = ("recomputing", "waiting")


class _Arrays:
    """Allocates arrays, and notes which are needed for which places of actors."""

    def __init__(self, new_array: NewArray, num_places: int) -> None:
        self._new_array = new_array
        self.for_all: list[Array] = []
        """Arrays that are needed whichever places are taken."""
        self.for_place: list[list[Array]] = [[] for _ in range(num_places)]
        """By place: further arrays that its actor needs."""

    def new(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._noted(self.for_all, shape, dtype)

    def new_at(self, place: int) -> NewArray:
        return partial(self._noted, self.for_place[place])

    def new_slots(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of which every place has an equal part."""
        array = self._new_array(shape, dtype)
        count = len(array) // len(self.for_place)
        for place, mine in enumerate(self.for_place):
            mine.append(array[place * count : (place + 1) * count])
        return array

    def _noted(self, where: list[Array], shape: tuple[int, ...], dtype: Any) -> Array:
        where.append(self._new_array(shape, dtype))
        return where[-1]


class SharedParts:
    """Everything in shared memory, laid out in an order that follows from the experiment, from who learns and
    from how many places for actors there are. Not every place has to be taken, now or ever."""

    def __init__(self, experiment: Experiment, roles: Mapping[str, str], num_places: int, new_array: NewArray) -> None:
        """`roles`: of the learning players, by player."""
        self.roles = dict(roles)
        self.players = list(roles)
        self.num_places = num_places
        self.num_ranks = experiment.learner.ranks
        self.per_player = experiment.learner.placement == "per_player"
        """Every player has a learner of its own."""
        num_learners = len(self.players) if self.per_player else self.num_ranks
        arrays = _Arrays(new_array, num_places)
        new, new_at = arrays.new, arrays.new_at
        self.for_all, self.for_place = arrays.for_all, arrays.for_place
        roles_of_all = list(roles.values())
        self.slots_per_actor = slots_per_actor(experiment, roles_of_all)
        with_buffer_worker = experiment.learner.buffer_worker
        self.pools = new_pools(
            experiment, roles_of_all, num_places, arrays.new_slots, with_buffer_worker=with_buffer_worker
        )
        capacity = 2 * sum(self.slots_per_actor) + 64
        channels = len(self.players) if self.per_player else 1
        self.ready, self.free = (
            [[Ring(new_at(place), capacity) for _ in range(channels)] for place in range(num_places)] for _ in range(2)
        )
        """By place and channel: slot numbers of an actor to a learner, and back. See `channel_of`."""
        self.networks = Networks(experiment, self.roles.get)
        shapes = {role: weight_arrays(self.networks.of_role(role)) for role in dict.fromkeys(roles_of_all)}
        published = {player: shapes[role] for player, role in roles.items()}
        if with_buffer_worker and TEACHER in experiment.learner.recompute:
            published |= {teacher_of(player): arrays for player, arrays in published.items()}
        self.weights = SharedWeights(new, published)
        self.recomputing: RecomputeRequests | None = None
        """Requests of the learner to the buffer worker, if there is one."""
        if with_buffer_worker:
            self.recomputing = RecomputeRequests([pool.num_slots for pool in self.pools], len(roles), new)
        self.present = new((num_places,), np.bool_)
        """Whether an actor plays at each place, or is being replaced. An actor that joins sets its own entry; the
        learner waits for these actors only."""
        self.paused = new((1,), np.bool_)
        """No worker plays or learns meanwhile."""
        self.used = new((num_places, len(self.players)), np.int64)
        """Decisions of each actor and player that the learner has used, or never will."""
        self.actor_times = new((num_places, len(ACTOR_TIMES)), np.float64)
        """[places, ACTOR_TIMES]: seconds since the run was started."""
        self.decisions = new((len(self.players),), np.int64)
        """With a learner for each player: decisions that it has trained on."""
        self.held_up = new((num_places, len(self.players)), np.bool_)
        """Likewise: actors that wait for the learner of each player."""
        self.generations = new((len(self.players),), np.int64)
        """Likewise: odd while the learner of the player is being started again, and even otherwise."""
        self.learner_times = new((channels, len(LEARNER_TIMES)), np.float64)
        """[channels, LEARNER_TIMES]: the same of the learners."""
        self.dropped_reward = new((num_places,), np.float64)
        """By actor: sum of |reward| that came before a learning seat's first decision of an episode."""
        self.buffer_times = new((len(BUFFER_TIMES),), np.float64)
        self.learners = range(num_places + 1, num_places + 1 + num_learners)
        """Numbers of the workers that are the learner's ranks, or the learners of the players."""
        self.heartbeats = new((self.learners.stop + 1,), np.float64)
        """When each worker last did something: the actors, the policy worker, the learners, the buffer worker."""
        rows = [experiment.actor.num_tables * len(seats) for seats in experiment.grouped_game.spec.seats_of_kind]
        self.requests: list[RequestArea] = []
        """By actor: its requests to the policy worker."""
        if experiment.actor.inference == "worker":
            self.requests = [RequestArea(self.networks.layouts, rows, new_at(place)) for place in range(num_places)]
        self.inference_counters = new((len(COUNTERS),), np.float64)

    @property
    def waited(self) -> Array:
        """Seconds that each actor has waited for the learner."""
        return self.actor_times[:, -1]

    def memory(self, places: Iterable[int]) -> list[Array]:
        """All arrays that are written to if these places are taken."""
        return [*self.for_all, *(array for place in places for array in self.for_place[place])]

    @property
    def buffer_worker(self) -> int:
        """Its number among all workers, whether there is one or not."""
        return self.learners.stop

    def rank_of(self, actor: int) -> int:
        """The rank that trains on what this actor plays."""
        return actor % self.num_ranks

    def learner_of(self, actor: int, player: int) -> int:
        """Number of the worker that trains this player on what this actor plays."""
        return self.learners[player if self.per_player else self.rank_of(actor)]

    def learners_of(self, actor: int) -> Sequence[int]:
        """Which of the `learners` train on what this actor plays, by their places there."""
        return range(len(self.learners)) if self.per_player else [self.rank_of(actor)]

    def channel_of(self, player: int) -> int:
        """The channel of a player, or of a learner by its place among the `learners`."""
        return player if self.per_player else 0

    def players_of(self, learner: int) -> slice:
        """The players that a learner trains, by its place among the `learners`."""
        return slice(learner, learner + 1) if self.per_player else slice(None)

    def mark(self, player: int, generation: int = 0) -> int:
        """A number in the ring of slots. Generation 0: a hand-over of the player is complete; other ones: what
        follows is for the learner of this generation."""
        return -1 - (generation * len(self.players) + player)

    def slots_of(self, actor: int) -> tuple[range, ...]:
        return tuple(range(actor * count, (actor + 1) * count) for count in self.slots_per_actor)

    def code(self, player: int, kind: int, slots: IntArray) -> IntArray:
        """A slot number that also says whose it is and of which kind."""
        return (slots * len(self.pools) + kind) * len(self.players) + player

    def decode(self, codes: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """(player, kind, slot)"""
        rest = codes // len(self.players)
        return codes % len(self.players), rest % len(self.pools), rest // len(self.pools)


class WorkerContext:
    """The parts of a run that a worker process shares with the others."""

    def __init__(self, launch: Launch) -> None:
        self.index = launch.index
        self.folder = RunFolder.open(launch.run, trusted=True)  # the trainer has decided
        self.experiment = with_own_parts(load_experiment(self.folder), launch.roles)
        roles = {player: hosted.role for player, hosted in launch.players.items()}
        self.parts = SharedParts(self.experiment, roles, launch.num_places, Region(launch.region_fd).new)
        self.signals = [Signal(*fds) for fds in launch.signal_fds]
        self.woken = self.signals[launch.index]
        self.control = Connection(launch.control_fd)
        self.models: ModelPool | ModelCache = self.folder.models
        if launch.models:
            self.models = remote_models(launch.models, self.experiment, self.folder, self._wait_for_models)

    def show_life(self) -> None:
        self.parts.heartbeats[self.index] = time.monotonic()

    def _wait_for_models(self) -> None:
        self.show_life()
        self.require_controller()

    def require_controller(self) -> None:
        """Raise `PeerGone` if the controller is gone. It sends nothing without being asked."""
        if self.control.poll(0):
            raise PeerGone("nothing is said without being asked: the controller is gone")

    def stop_training(self, request: StopTraining) -> None:
        """Pass a request of middleware on to the controller, which ends this process."""
        send(self.control, Stopping(str(request) or STOPPED))
        receive(self.control, ToActor)


def link_ranks(ranks: Ranks, host: str, patience_s: float) -> list[Connection]:
    """Connect all ranks to rank 0, whose node has the address `host`. Returns the connections of rank 0 to the others,
    by rank, or the one of another rank. Only ranks know the token of the connections."""
    if ranks.count == 1:
        return []
    try:
        if ranks.rank:
            port, token = ranks.gather(None)[0]
            link = socket.create_connection((host, port), patience_s)
            link.sendall(token.encode() + ranks.rank.to_bytes(RANK_BYTES, "little"))
            return [_connection(link)]
        with socket.create_server((host, 0), backlog=ranks.count) as listening:
            listening.settimeout(patience_s)
            token = secrets.token_hex(TOKEN_BYTES // 2)
            ranks.gather([listening.getsockname()[1], token])
            links: dict[int, Connection] = {}
            while len(links) < ranks.count - 1:
                link, _ = listening.accept()
                link.settimeout(patience_s)
                said = link.recv(TOKEN_BYTES + RANK_BYTES, socket.MSG_WAITALL)
                if secrets.compare_digest(said[:TOKEN_BYTES], token.encode()):
                    links[int.from_bytes(said[TOKEN_BYTES:], "little")] = _connection(link)
                else:
                    link.close()
            return [links[rank] for rank in range(1, ranks.count)]
    except OSError as error:
        raise RankLost(f"the ranks of the learner cannot connect to {host}: {error}") from error


TOKEN_BYTES, RANK_BYTES = 32, 4


def _connection(link: socket.socket) -> Connection:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # orders are short and are waited for
    link.settimeout(None)
    return Connection(link.detach())


class Followers:
    """Rank 0's way to the other ranks; there may be none."""

    def __init__(self, links: Sequence[Connection], patience_s: float) -> None:
        self.links = list(links)
        self._patience_s = patience_s
        self._orders = 0
        self._statuses: dict[int, BufferStatus] = {}

    def order(self, order: ToRank) -> None:
        """Let all do this, as this rank does it now."""
        self._orders += 1
        with _noticing_loss():
            for link in self.links:
                send(link, order)

    def statuses(self) -> list[BufferStatus]:
        """Statuses of the ranks that have obeyed all orders; those of the others are not known yet."""
        self.take_in()
        return [one for one in self._statuses.values() if one.orders == self._orders]

    def wait(self) -> None:
        """Wait until all orders are obeyed."""
        deadline = time.monotonic() + self._patience_s
        while len(self.statuses()) < len(self.links):
            if time.monotonic() > deadline:
                raise RankLost(f"another rank of the learner did not answer for {self._patience_s:.0f} s")
            for link in self.links:
                if link.poll(0.01):
                    break

    def take_in(self) -> None:
        with _noticing_loss():
            for number, link in enumerate(self.links):
                while link.poll(0):
                    self._statuses[number] = receive(link, BufferStatus)


class Leader:
    """Another rank's way to rank 0."""

    def __init__(self, link: Connection) -> None:
        self.link = link
        self._obeyed = 0
        self._told: BufferStatus | None = None

    def next_order(self) -> ToRank | None:
        """None: there is none now."""
        with _noticing_loss():
            order: ToRank | None = receive(self.link, ToRank) if self.link.poll(0) else None
        self._obeyed += order is not None
        return order

    def tell(self, status: BufferStatus) -> None:
        """After all orders so far are obeyed; said only if it is news."""
        status = msgspec.structs.replace(status, orders=self._obeyed)
        if status != self._told:
            with _noticing_loss():
                send(self.link, status)
            self._told = status


@contextmanager
def _noticing_loss() -> Iterator[None]:
    try:
        yield
    except PeerGone as error:
        raise RankLost(f"another rank of the learner is gone: {error}") from error
