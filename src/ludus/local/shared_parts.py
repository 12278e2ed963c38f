"""What the processes of a run share: trajectory slots, weights, rings of slot numbers, requests to the policy
worker, signs of life."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ludus.algorithms.teacher import TEACHER
from ludus.assemble import build_policies, load_experiment, new_pools, slots_per_actor
from ludus.data.shared_memory import Region
from ludus.data.specs import ArraySpec
from ludus.data.trees import Array, IntArray
from ludus.experiment import Experiment
from ludus.runtime.channel import Ring, Signal
from ludus.runtime.process import Launch
from ludus.runtime.weight_board import SharedBoard
from ludus.store.run_folder import RunFolder
from ludus.workers.buffer_requests import RecomputeRequests
from ludus.workers.buffer_worker import teacher_of
from ludus.workers.policy_requests import RequestArea
from ludus.workers.policy_worker import COUNTERS

WAIT_S = 0.2
"""Longest sleep of a worker that waits for another: then it looks around and shows that it lives."""


NewArray = Callable[[tuple[int, ...], Any], Array]
ACTOR_TIMES = ("game", "inference", "other", "waiting")
"""What an actor does with its time: the game, decisions, its own bookkeeping and hand-overs, and waiting
until the learner has caught up."""
LEARNER_TIMES = ("training", "other", "waiting")
BUFFER_TIMES = ("recomputing", "waiting")


class SharedParts:
    """Everything in shared memory, laid out in an order that follows from the experiment, from who learns and
    from how many places for actors there are. Not every place has to be taken, now or ever."""

    def __init__(
        self, experiment: Experiment, players: Sequence[str], num_places: int, new_array: NewArray
    ) -> None:
        self.players = list(players)
        self.num_places = num_places
        self.num_ranks = experiment.learner.ranks
        self.for_all: list[Array] = []
        """What is needed whoever acts."""
        self.for_place: list[list[Array]] = [[] for _ in range(num_places)]
        """By place, what an actor there needs besides."""

        def new(shape: tuple[int, ...], dtype: Any) -> Array:
            self.for_all.append(new_array(shape, dtype))
            return self.for_all[-1]

        def new_at(place: int) -> NewArray:
            def new_here(shape: tuple[int, ...], dtype: Any) -> Array:
                self.for_place[place].append(new_array(shape, dtype))
                return self.for_place[place][-1]

            return new_here

        def new_slots(shape: tuple[int, ...], dtype: Any) -> Array:
            array = new_array(shape, dtype)
            count = len(array) // num_places
            for place, mine in enumerate(self.for_place):
                mine.append(array[place * count : (place + 1) * count])
            return array

        self.slots_per_actor = slots_per_actor(experiment, len(players))
        with_buffer_worker = experiment.learner.buffer_worker
        self.pools = new_pools(
            experiment, len(players), num_places, new_slots, with_buffer_worker=with_buffer_worker
        )
        capacity = 2 * sum(self.slots_per_actor) + 64
        self.ready = [Ring(new_at(place), capacity) for place in range(num_places)]
        self.free = [Ring(new_at(place), capacity) for place in range(num_places)]
        self.policies = build_policies(experiment, experiment.seed)
        """Per kind of seat, one that shows the shapes; nobody acts with it."""
        weights = {
            f"{policy.kind.name}/{name}": ArraySpec(shape=tuple(tensor.shape), dtype=tensor.numpy().dtype)
            for policy in self.policies
            for name, tensor in policy.state_dict().items()
        }
        on_board = list(self.players)
        if with_buffer_worker and TEACHER in experiment.learner.recompute:
            on_board += map(teacher_of, self.players)
        self.board = SharedBoard(new, dict.fromkeys(on_board, weights))
        self.recomputing: RecomputeRequests | None = None
        """What the learner asks the buffer worker, if there is one."""
        if with_buffer_worker:
            self.recomputing = RecomputeRequests([pool.num_slots for pool in self.pools], len(players), new)
        self.present = new((num_places,), np.bool_)
        """Where there is an actor that plays, or another is started in its place. Who joins says so itself;
        the learner waits for no other."""
        self.paused = new((1,), np.bool_)
        """Nobody plays or learns meanwhile."""
        self.used = new((num_places, len(self.players)), np.int64)
        """Decisions of each actor and player that the learner has used, or never will."""
        self.actor_times = new((num_places, len(ACTOR_TIMES)), np.float64)
        """[places, ACTOR_TIMES]: seconds since the run was started."""
        self.learner_times = new((len(LEARNER_TIMES),), np.float64)
        """[LEARNER_TIMES]: the same of the learner."""
        self.dropped_reward = new((num_places,), np.float64)
        """By actor: sum of |reward| that came before a learning seat's first decision of an episode."""
        self.buffer_times = new((len(BUFFER_TIMES),), np.float64)
        self.hearts = new((num_places + 1 + self.num_ranks + 1,), np.float64)
        """When each worker last did something: the actors, the policy worker, the ranks of the learner, the
        buffer worker."""
        rows = [
            experiment.actor.num_tables * len(seats) for seats in experiment.grouped_game.spec.seats_of_kind
        ]
        asking = num_places if experiment.actor.inference == "worker" else 0
        self.requests = [RequestArea(self.policies, rows, new_at(place)) for place in range(asking)]
        """By actor, what it asks the policy worker."""
        self.inference_counters = new((len(COUNTERS),), np.float64)

    @property
    def waited(self) -> Array:
        """Seconds that each actor has waited for the learner."""
        return self.actor_times[:, -1]

    def memory(self, places: Iterable[int]) -> list[Array]:
        """What is written to if these places are taken."""
        return [*self.for_all, *(array for place in places for array in self.for_place[place])]

    @property
    def learners(self) -> range:
        """Numbers of the workers that are the learner's ranks."""
        return range(self.num_places + 1, self.num_places + 1 + self.num_ranks)

    @property
    def buffer_worker(self) -> int:
        """Its number among all workers, whether there is one or not."""
        return self.learners.stop

    def learner_of(self, actor: int) -> int:
        """Number of the worker that trains on what this actor plays."""
        return self.learners[actor % self.num_ranks]

    def slots_of(self, actor: int) -> tuple[range, ...]:
        return tuple(range(actor * count, (actor + 1) * count) for count in self.slots_per_actor)

    def code(self, player: int, kind: int, slots: IntArray) -> IntArray:
        """A slot number that also says whose it is and of which kind."""
        return (slots * len(self.pools) + kind) * len(self.players) + player

    def decode(self, codes: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """(player, kind, slot)"""
        rest = codes // len(self.players)
        return codes % len(self.players), rest % len(self.pools), rest // len(self.pools)


def open_parts(launch: Launch) -> tuple[Experiment, RunFolder, SharedParts, list[Signal], Connection]:
    """What a worker process starts from."""
    folder = RunFolder.open(launch.run)
    experiment = load_experiment(folder)
    parts = SharedParts(experiment, list(launch.players), launch.num_places, Region(launch.region_fd).new)
    signals = [Signal(*fds) for fds in launch.signal_fds]
    return experiment, folder, parts, signals, Connection(launch.control_fd)
