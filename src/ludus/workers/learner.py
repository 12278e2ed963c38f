"""The learner: trains one or more players on their trajectories and publishes the new weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ludus.algorithms.algorithm import Algorithm
from ludus.data.batch import Batch
from ludus.data.records import LearnerProgress, ModelId, PlayerReset, Settings
from ludus.data.trajectory import SlotPool
from ludus.data.trees import Array, IntArray, Tree, under
from ludus.models.policy import with_own_memory
from ludus.store.model_pool import ModelPool
from ludus.store.model_storage import ModelCache
from ludus.workers.buffer import Buffer, statistics_of
from ludus.workers.buffer_worker import teacher_of
from ludus.workers.config import LearnerConfig
from ludus.workers.player_cache import WeightStore
from ludus.workers.ranks import ALONE, BufferStatus, LeftOut, OtherRanks, Ranks, Train, joined, nothing_of
from ludus.workers.stacked_training import groups, update_stacked
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import IDLE, Progress

Configured = Callable[[str, Settings], tuple[Algorithm, LearnerConfig, int]]
"""Returns a player's algorithm and learner's config, and the budget of the experiment, with changed settings."""


class Learner:
    """Trains those of its players that have a batch, in turn or stacked. All have the same number of actors."""

    def __init__(
        self,
        *,
        name: str,
        players: Mapping[str, TrainedPlayer],
        buffers: Mapping[str, Buffer],
        pools: tuple[SlotPool, ...],
        weights: WeightStore,
        models: ModelPool | ModelCache,
        budget: int,
        configured: Configured,
        spent: int = 0,
        ranks: Ranks = ALONE,
    ) -> None:
        self.name = name
        self.players = dict(players)
        self.buffers = dict(buffers)
        self._pools = pools
        self._weights = weights
        self._models = models
        self._budget = budget
        self._configured = configured
        self._spent = spent
        """Decisions of players that have left the league."""
        self._passed_over: dict[str, int] = {}
        """By player: rounds in which it held an actor up while others were trained."""
        self.batches = 0
        """Batches taken so far, including those without a usable decision."""
        self._initial = {player: trained.weights() for player, trained in players.items()}
        self.present: NDArray[np.bool_] | None = None
        """By place of an actor: whether it is taken; None: all are."""
        self.own_actors: NDArray[np.bool_] | Literal[True] = True
        """By place: whether its actor plays for this rank."""
        self._ranks = ranks
        self.others: OtherRanks | None = None
        """Of rank 0: the other ranks."""
        self.decisions_elsewhere: Callable[[], int] = lambda: 0
        """Decisions of players that have learners of their own."""
        self.waiting_elsewhere: Callable[[], NDArray[np.bool_]] | None = None
        """By place: whether its actor waits for another learner."""
        self._left_out = {player: LeftOut() for player in players}
        """By player: decisions left out in this rank since its last update."""
        self._of_taken: dict[str, dict[str, float]] = {player: {} for player in players}

    @property
    def decisions(self) -> int:
        """Decisions that all players have trained on, including those that have left."""
        own = sum(trained.decisions for trained in self.players.values())
        return self._spent + own + self.decisions_elsewhere()

    @property
    def progress(self) -> float:
        """Share of the budget that is spent."""
        return min(self.decisions / self._budget, 1.0)

    def step(self) -> Progress:
        """Train every player that has a batch, once, publish its new weights, and free the slots. It is idle if no
        batch is ready; `Actor.step` unblocks it."""
        statuses = [self.buffer_status(), *(self.others.statuses() if self.others is not None else ())]
        status = joined(statuses)
        all_known = len(statuses) == self._ranks.count
        parts = {player: self._part(player, status) for player in self._ready(status, all_known)}
        if parts and self.others is not None:
            self.others.order(Train(parts))
        return self.train(parts)

    def train(self, parts: Mapping[str, float]) -> Progress:
        """Train these players together with all ranks, each on the newest of this share of its waiting decisions."""
        total = 0
        statistics: dict[str, float] = {}
        for group in groups([self.players[player] for player in parts]):
            before = sum(trained.decisions for trained in group)
            for trained, measured in zip(group, self._train(group, parts), strict=True):
                statistics |= {f"{trained.player}/{name}": value for name, value in measured.items()}
            total += sum(trained.decisions for trained in group) - before
        return Progress(count=total, statistics=statistics) if statistics else IDLE

    def discard(self) -> Progress:
        """Drop all trajectories: the budget is spent, and actors still hand over during evaluation."""
        for buffer in self.buffers.values():
            buffer.clear()
        return IDLE

    def buffer_status(self) -> BufferStatus:
        """The status of this rank's buffers, after dropping trajectories that are too old."""
        for player, trained in self.players.items():
            if trained.config.schedule == "async":
                counted = trained if self._ranks.count == 1 else self._left_out[player]
                counted.stale += self.buffers[player].drop_older_than(trained.oldest_version)
            # The buffer worker may have started these before the last update.
            self.buffers[player].recompute_older_than(trained.step - trained.config.recompute_lag)
        return BufferStatus(
            decisions={player: buffer.ready for player, buffer in self.buffers.items()},
            held_up={player: buffer.held_up().tolist() for player, buffer in self.buffers.items()},
            present=[] if self.present is None else (self.present & self.own_actors).tolist(),
            preparing=[player for player, buffer in self.buffers.items() if buffer.is_preparing],
        )

    def _ready(self, status: BufferStatus, all_known: bool) -> list[str]:
        """The players to train now: those with a full batch in the asynchronous schedule; otherwise, once every actor
        waits, those that the actors wait for. With several players, actors may wait for different ones."""
        found = [
            player
            for player, trained in self.players.items()
            if trained.config.schedule == "async" and status.decisions[player] >= trained.config.batch_size
        ]
        held_up = {player: np.array(actors) for player, actors in status.held_up.items()}
        waiting = np.any(list(held_up.values()), axis=0)
        if self.waiting_elsewhere is not None:
            waiting = waiting | self.waiting_elsewhere()
        for player in status.preparing:  # the buffer worker will soon be done
            del held_up[player]
        if found:
            return found + self._overtaken(found, held_up)
        if not all_known or not (waiting[status.present] if status.present else waiting).all():
            return []
        return [player for player, actors in held_up.items() if actors.any()]

    def _overtaken(self, ready: Sequence[str], held_up: Mapping[str, NDArray[np.bool_]]) -> list[str]:
        """Players that hold an actor up while others are trained repeatedly. Their batch may never be full."""
        waiting = [player for player, actors in held_up.items() if player not in ready and actors.any()]
        rounds = {player: self._passed_over.get(player, 0) + 1 for player in waiting}
        patience = 2 * len(self.players)
        self._passed_over = {player: count for player, count in rounds.items() if count <= patience}
        return [player for player in waiting if player not in self._passed_over]

    def _part(self, player: str, status: BufferStatus) -> float:
        """The share of a player's waiting decisions to train on: all, unless two batches wait."""
        config, waiting = self.players[player].config, status.decisions[player]
        return config.batch_size / waiting if config.schedule == "async" and waiting >= 2 * config.batch_size else 1.0

    def _train(self, group: Sequence[TrainedPlayer], parts: Mapping[str, float]) -> list[dict[str, float]]:
        """Update each player of a group, stacked if there are several; returns their statistics."""
        taken = [self._take(trained, parts[trained.player]) for trained in group]
        dropped: list[int] = []
        learning: list[tuple[TrainedPlayer, dict[int, Batch], dict[int, Batch]]] = []
        for trained, (batches, _) in zip(group, taken, strict=True):
            in_all, elsewhere = self._exchange(trained, batches)
            dropped.append(in_all)
            if batches or elsewhere:
                learning.append((trained, batches, elsewhere))
        players = [trained for trained, _, _ in learning]
        if len(learning) == 1:
            [(trained, batches, elsewhere)] = learning
            updates = [trained.update(batches, self.progress, elsewhere)]
        else:
            given = [batches for _, batches, _ in learning]
            updates = update_stacked(players, given, self.progress) if learning else []
        measured = dict(zip((trained.player for trained in players), updates, strict=True))
        for trained, (_, refused) in zip(group, taken, strict=True):
            if trained.player in measured:
                self.publish(trained.player)
            self.buffers[trained.player].give_back(refused)
            oldest = trained.step - trained.config.recompute_lag
            self.buffers[trained.player].recompute_older_than(oldest)
        return [
            {
                **measured.get(trained.player, {"gradient_steps": 0}),
                "stale": trained.stale,
                "skipped": trained.skipped,
                "refused": trained.refused,
                "dropped": in_all,
                **self._of_taken[trained.player],
            }
            for trained, in_all in zip(group, dropped, strict=True)
        ]

    def _take(self, trained: TrainedPlayer, part: float) -> tuple[dict[int, Batch], dict[int, IntArray]]:
        """The player's batches and the slots that are refused, both by kind of seat."""
        self.batches += 1
        buffer, left_out = self.buffers[trained.player], self._left_out[trained.player]
        enough = None if part == 1.0 else round(part * buffer.ready)
        batches: dict[int, Batch] = {}
        refused: dict[int, IntArray] = {}
        chosen = buffer.take(enough)
        self._of_taken[trained.player] = statistics_of(chosen, trained.step, trained.config.uses)
        for kind, taken in chosen.items():
            batch, finite = self._pools[kind].stack_finite(taken.slots, trained.oldest_version)
            if not finite.all():  # one NaN would spoil the batch
                refused[kind] = taken.slots[~finite]
                left_out.refused += int(taken.decisions[~finite].sum())
            if batch is not None:
                batches[kind] = self._with_memory_of(trained, kind, batch)
                is_new = taken.is_new[finite]
                used = batch.valid if is_new.all() else batch.valid[:, is_new]
                left_out.stale += int(taken.decisions[finite][is_new].sum() - used.sum())
        return batches, refused

    def _exchange(self, trained: TrainedPlayer, batches: Mapping[int, Batch]) -> tuple[int, dict[int, Batch]]:
        """Sum the decisions left out over ranks; returns those dropped, and empty batches for kinds of other ranks."""
        own = self._left_out[trained.player]
        self._left_out[trained.player] = LeftOut()
        told = self._ranks.gather([own.stale, own.refused, self.buffers[trained.player].dropped, list(batches)])
        trained.stale += sum(stale for stale, _, _, _ in told)
        trained.refused += sum(refused for _, refused, _, _ in told)
        kinds = {kind for _, _, _, held in told for kind in held}
        elsewhere = {
            kind: self._with_memory_of(trained, kind, nothing_of(self._pools[kind]))
            for kind in sorted(kinds - batches.keys())
        }
        return sum(dropped for _, _, dropped, _ in told), elsewhere

    def _with_memory_of(self, trained: TrainedPlayer, kind: int, batch: Batch) -> Batch:
        return with_own_memory(batch, trained.policies[kind].state_arrays, self._pools[kind].layout.state)

    def publish(self, player: str) -> None:
        """Publish the weights to the actors of this node, on which one rank does so for all."""
        if self._ranks.local_rank == 0:
            trained = self.players[player]
            self._weights.publish(trained.model, trained.weights())

    def publish_teachers(self) -> None:
        """Publish the teachers, which never change, for the buffer worker."""
        if self._ranks.local_rank == 0:
            for player, trained in self.players.items():
                self._weights.publish(ModelId(teacher_of(player), 0, 0), trained.teacher_weights())

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        self.buffers[player].put(kind, slots)

    def complete(self, player: str) -> None:
        """The only actor has handed over its share of a batch."""
        self.buffers[player].complete()

    def report(self, player: str) -> LearnerProgress:
        trained = self.players[player]
        return LearnerProgress(player, trained.incarnation, trained.step, trained.decisions)

    def freeze(self, player: str, parent: ModelId | None) -> LearnerProgress:
        assert isinstance(self._models, ModelPool)  # rank 0 sees the run folder
        put_into_pool(self._models, self.players[player], parent)
        return self.report(player)

    def start_from(self, player: str, model: ModelId, value_only: int = 0) -> None:
        """Start a player from a model of the pool, and train only its value for `value_only` decisions."""
        with naming(player, model):
            self.players[player].begin_from(self._models.fetch(model), value_only)

    def reset(self, event: PlayerReset) -> None:
        """Restart a player from the model that the event names, or from its initial weights."""
        weights = self._initial[event.player]
        if event.model is not None:
            weights = self._models.fetch(ModelId.parse(event.model))
        self.buffers[event.player].clear()
        with naming(event.player, event.model):
            self.players[event.player].reset(weights, event.incarnation, event.value_only)
        self.publish(event.player)

    def configure(self, player: str, settings: Settings) -> None:
        algorithm, config, self._budget = self._configured(player, settings)
        self.players[player].configure(algorithm, config)

    def close(self) -> None:
        """A learner holds no resources."""

    def save(self) -> tuple[Tree, dict[str, Any]]:
        """The state of the players. Waiting trajectories are in the actors' slots: see `save_buffers`."""
        arrays: Tree = {}
        facts: dict[str, Any] = {}
        for player, trained in self.players.items():
            saved, facts[player] = trained.save()
            arrays |= {f"{player}/{name}": array for name, array in saved.items()}
        return arrays, facts

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        for player, trained in self.players.items():
            if player in facts:
                trained.load(under(f"{player}/", arrays), facts[player])

    def compare(self) -> None:
        """Raises if the players differ between ranks. All ranks must call this."""
        if self._ranks.count == 1:
            return
        arrays, facts = self.save()
        digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
        for name in sorted(arrays):
            digest.update(np.ascontiguousarray(arrays[name]).tobytes())
        for rank, found in enumerate(self._ranks.gather(digest.hexdigest())):
            if found != digest.hexdigest():
                raise RuntimeError(f"ranks {self._ranks.rank} and {rank} of the learner have different weights")

    def save_buffers(self) -> dict[str, Any]:
        return {player: buffer.save() for player, buffer in self.buffers.items()}

    def load_buffers(self, facts: Mapping[str, Any]) -> None:
        for player, buffer in self.buffers.items():
            buffer.load(facts[player])


@contextmanager
def naming(player: str, model: ModelId | str | None) -> Iterator[None]:
    """Say whose network a model does not fit: roles may have their own."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{player!r} cannot start from model {model}: {error}") from error


def put_into_pool(models: ModelPool, trained: TrainedPlayer, parent: ModelId | None) -> None:
    """Publish a player's current weights, live and averaged."""
    facts = {"decisions": trained.decisions}
    models.publish(trained.model, trained.weights(), parent=parent, variant="live", facts=facts)
    models.publish(trained.model, trained.average_weights(), parent=parent, variant="average", facts=facts)
