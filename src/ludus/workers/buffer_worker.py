"""The buffer worker: recomputes columns of waiting trajectories, so that the learner only takes gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ludus.algorithms.algorithm import MOST_ROWS
from ludus.algorithms.teacher import TEACHER, Recomputed, recomputed_columns
from ludus.data.records import ModelId
from ludus.data.specs import ArraySpec
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import Array, IntArray
from ludus.models.policy import Policy, load_weights, with_own_memory
from ludus.models.tensors import on_device, to_host
from ludus.workers.player_cache import WeightStore
from ludus.workers.worker import IDLE, Progress

ANY_VERSION = np.iinfo(np.int64).min


class BufferWorker:
    """Serves the requests of the learner, the newest first, with the newest weights."""

    name = "buffer-worker"

    def __init__(
        self,
        requests: RecomputeRequests,
        pools: Sequence[SlotPool],
        players: Sequence[str],
        what: Sequence[Recomputed],
        *,
        build: Callable[[str], tuple[Policy, ...]],
        weights: WeightStore,
        device: torch.device,
        wake: Callable[[], None],
    ) -> None:
        """`players` in the order of their numbers in requests; `build`: the policies of a player, without its weights;
        `wake` wakes the learner."""
        self._requests = requests
        self._pools = pools
        self._players = players
        self._what = what
        self._build = build
        self._weights = weights
        self._device = device
        self._wake = wake
        self._held: dict[str, tuple[ModelId, tuple[Policy, ...]]] = {}
        """Policies with the last fetched weights, by player or teacher."""
        self.done = 0
        """Trajectories recomputed so far."""

    def step(self) -> Progress:
        """Recompute some requested trajectories of each kind of seat, and wake the learner. It is idle without a
        request; `Learner.step` unblocks it, and `Actor.step` through it."""
        done = 0
        for kind, pool in enumerate(self._pools):
            number, slots = self._requests.newest(kind)
            if len(slots):
                most = max(1, MOST_ROWS // (pool.layout.unroll_length + 1))
                done += self._recompute(kind, number, slots[:most])
        if not done:
            return IDLE
        self.done += done
        self._wake()
        return Progress(count=done)

    def close(self) -> None:
        """A buffer worker holds no resources."""

    def _recompute(self, kind: int, number: int, slots: IntArray) -> int:
        pool, asked = self._pools[kind], self._requests.asked[kind]
        batch = pool.stack(slots, ANY_VERSION)
        # A slot that the learner freed meanwhile may have been overwritten while it was copied.
        wanted = np.flatnonzero(asked[slots] == number)
        if len(wanted) < len(slots):
            if not len(wanted):
                return len(slots)
            slots, batch = slots[wanted], batch.columns(wanted)
        player = self._players[number % self._requests.num_players]
        model, policies = self._newest(player, player)
        teacher = self._newest(teacher_of(player), player)[1][kind] if TEACHER in self._what else None
        batch = with_own_memory(batch, policies[kind].state_arrays, pool.layout.state)
        tensors = batch.map(lambda array: on_device(array, self._device))
        columns = to_host(recomputed_columns(self._what, policies[kind], teacher, tensors))
        for name, array in columns.items():
            pool.recomputed[name][slots] = array.swapaxes(0, 1)
        self._requests.version[kind][slots] = model.step
        self._requests.answered[kind][slots] = number  # last, so that the learner reads complete columns
        return len(slots)

    def _newest(self, name: str, player: str) -> tuple[ModelId, tuple[Policy, ...]]:
        """The newest weights of a player or its teacher, called `name`."""
        model, policies = self._held.get(name, (None, ()))
        if model is None or model != self._weights.newest(name):
            model, weights = self._weights.fetch(name)
            policies = policies or self._build(player)
            load_weights(policies, weights)
            self._held[name] = model, policies
        return model, policies


class RecomputeRequests:
    """Requests by kind of seat and slot: numbers that encode the player and are unique for their slot; 0: none. A
    request is done once its answer is the same number, so that late answers have no effect."""

    def __init__(
        self, num_slots: Sequence[int], num_players: int, new: Callable[[tuple[int, ...], Any], Array] = np.zeros
    ) -> None:
        self.num_players = num_players
        self.asked: list[IntArray] = [new((count,), np.int64) for count in num_slots]
        self.answered: list[IntArray] = [new((count,), np.int64) for count in num_slots]
        self.version: list[IntArray] = [new((count,), np.int64) for count in num_slots]
        """Version of the weights that recomputed the slot."""
        self._turn = 0

    def ask(self, kind: int, slots: IntArray, player: int) -> None:
        self._turn += 1
        self.asked[kind][slots] = self._turn * self.num_players + player

    def continue_numbers(self) -> None:
        """Give no number again that an earlier learner may have given."""
        given = [int(array.max(initial=0)) for array in (*self.asked, *self.answered)]
        self._turn = max(given) // self.num_players + 1

    def newest(self, kind: int) -> tuple[int, IntArray]:
        """The newest open request, on which the learner trains first, and its slots, if any."""
        asked = self.asked[kind]
        open_slots = np.flatnonzero((asked != self.answered[kind]) & (asked != 0))
        numbers = asked[open_slots]
        number = int(numbers.max(initial=0))
        return number, open_slots[(numbers == number) & (number > 0)]

    def clear(self) -> None:
        """Remove all requests. No process may ask or answer meanwhile."""
        for array in (*self.asked, *self.answered, *self.version):
            array[...] = 0


class Recomputing(NamedTuple):
    """The requests of one player's buffer."""

    requests: RecomputeRequests
    player: int
    """Its number among the learning players."""
    wake: Callable[[], None]
    """Wakes the buffer worker."""

    def ask(self, kind: int, slots: IntArray) -> None:
        self.requests.ask(kind, slots, self.player)
        self.wake()

    def retract(self, kind: int, slots: IntArray) -> None:
        self.requests.asked[kind][slots] = 0

    def is_done(self, kind: int, slots: IntArray) -> NDArray[np.bool_]:
        done: NDArray[np.bool_] = self.requests.answered[kind][slots] == self.requests.asked[kind][slots]
        return done

    def versions(self, kind: int, slots: IntArray) -> IntArray:
        found: IntArray = self.requests.version[kind][slots]
        return found


def teacher_of(player: str) -> str:
    """The name of a player's teacher in the weight store; no player can have it."""
    return f"teacher of {player}"


def recomputed_arrays(what: Sequence[Recomputed], policy: Policy, unroll_length: int) -> dict[str, ArraySpec]:
    """The columns of a trajectory for what is recomputed, found by recomputing an empty one."""
    layout = TrajectoryLayout(kind=policy.kind, unroll_length=unroll_length, state=policy.state_arrays)
    batch = SlotPool(layout, 1).stack(np.zeros(1, np.int64)).map(torch.from_numpy)
    columns = to_host(recomputed_columns(what, policy, policy, batch))
    return {name: ArraySpec(shape=array.shape[2:], dtype=array.dtype) for name, array in columns.items()}
