"""What the processes of a run share: trajectory slots, weights, rings of slot numbers, requests to the policy
worker, signs of life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ludus.assemble import build_policies, load_experiment, new_pools, slots_per_actor
from ludus.data.shared_memory import Region
from ludus.data.specs import ArraySpec
from ludus.data.trees import Array, IntArray
from ludus.experiment import Experiment
from ludus.runtime.channel import Ring, Signal
from ludus.runtime.process import Launch
from ludus.runtime.weight_board import SharedBoard
from ludus.store.run_folder import RunFolder
from ludus.workers.policy_requests import RequestArea
from ludus.workers.policy_worker import COUNTERS

WAIT_S = 0.2
"""Longest sleep of a worker that waits for another: then it looks around and shows that it lives."""


class SharedParts:
    """Everything in shared memory, laid out in an order that follows from the experiment and from who learns
    and acts."""

    def __init__(
        self,
        experiment: Experiment,
        players: Sequence[str],
        num_actors: int,
        new: Callable[[tuple[int, ...], Any], Array],
    ) -> None:
        self.players = list(players)
        self.num_actors = num_actors
        self.slots_per_actor = slots_per_actor(experiment, len(players))
        self.pools = new_pools(experiment, len(players), num_actors, new)
        capacity = 2 * sum(self.slots_per_actor) + 64
        self.ready = [Ring(new, capacity) for _ in range(num_actors)]
        self.free = [Ring(new, capacity) for _ in range(num_actors)]
        self.policies = build_policies(experiment, experiment.seed)
        """Per kind of seat, one that shows the shapes; nobody acts with it."""
        weights = {
            f"{policy.kind.name}/{name}": ArraySpec(shape=tuple(tensor.shape), dtype=tensor.numpy().dtype)
            for policy in self.policies
            for name, tensor in policy.state_dict().items()
        }
        self.board = SharedBoard(new, dict.fromkeys(self.players, weights))
        self.used = new((num_actors, len(self.players)), np.int64)
        """Decisions of each actor and player that the learner has used, or never will."""
        self.waited = new((num_actors,), np.float64)
        """Seconds that each actor has waited for the learner."""
        self.dropped_reward = new((num_actors,), np.float64)
        """By actor: sum of |reward| that came before a learning seat's first decision of an episode."""
        self.hearts = new((num_actors + 2,), np.float64)
        """When each worker last did something: the actors, the policy worker, the learner."""
        rows = [
            experiment.actor.num_tables * len(seats) for seats in experiment.grouped_game.spec.seats_of_kind
        ]
        asking = num_actors if experiment.actor.inference == "worker" else 0
        self.requests = [RequestArea(self.policies, rows, new) for _ in range(asking)]
        """By actor, what it asks the policy worker."""
        self.inference_counters = new((len(COUNTERS),), np.float64)

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
    parts = SharedParts(experiment, list(launch.players), launch.num_actors, Region(launch.region_fd).new)
    signals = [Signal(*fds) for fds in launch.signal_fds]
    return experiment, folder, parts, signals, Connection(launch.control_fd)
