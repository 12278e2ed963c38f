"""The learner: hosts one or more learning players, turns their trajectories into updates and publishes
the new weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ludus.data.batch import Batch
from ludus.data.records import LearnerProgress, ModelId, PlayerReset
from ludus.data.trajectory import SlotPool
from ludus.data.trees import Array, IntArray, Tree, under
from ludus.runtime.program import IDLE, Progress
from ludus.runtime.weight_board import WeightBoard
from ludus.store.model_pool import ModelPool
from ludus.workers.buffer import Buffer
from ludus.workers.trained_player import TrainedPlayer


class Learner:
    """Trains whichever of its players has a batch, in turn. All have the same number of actors."""

    def __init__(
        self,
        *,
        name: str,
        players: Mapping[str, TrainedPlayer],
        buffers: Mapping[str, Buffer],
        pools: tuple[SlotPool, ...],
        board: WeightBoard,
        models: ModelPool,
        budget: int,
    ) -> None:
        self.name = name
        self.players = dict(players)
        self.buffers = dict(buffers)
        self._pools = pools
        self._board = board
        self._models = models
        self._budget = budget
        self.batches = 0
        """Batches taken so far, those included of which nothing could be trained on."""
        self._initial = {player: trained.weights() for player, trained in players.items()}

    @property
    def decisions(self) -> int:
        """Decisions that all players have trained on."""
        return sum(trained.decisions for trained in self.players.values())

    @property
    def progress(self) -> float:
        """Share of the budget that is spent."""
        return min(self.decisions / self._budget, 1.0)

    def step(self) -> Progress:
        """Train every player that has a batch, once, and publish its new weights.

        consumes:     the trajectories of one batch per player
        waits for:    nothing; idle if no batch is ready
        unblocked by: Actor.step
        produces:     one version of the weights per update; frees the slots
        """
        total = 0
        statistics: dict[str, float] = {}
        for player in self._ready():
            before = self.players[player].decisions
            measured = self._train(player)
            total += self.players[player].decisions - before
            statistics |= {f"{player}/{name}": value for name, value in measured.items()}
        return Progress(count=total, statistics=statistics) if statistics else IDLE

    def discard(self) -> Progress:
        """The budget is spent: what actors still hand over while they measure is not trained on."""
        for buffer in self.buffers.values():
            buffer.clear()
        return IDLE

    def _ready(self) -> list[str]:
        """The players to train now.

        In the asynchronous schedule those for whom a batch waits, whoever sent it. Otherwise, once every
        actor waits for the learner, those for whom they wait: with one player, every actor's hand-over is in
        then; with several, actors may wait because of different ones, and would do so for ever.
        """
        found = []
        for player, trained in self.players.items():
            if trained.config.schedule == "async":
                buffer = self.buffers[player]
                trained.stale += buffer.drop_older_than(trained.oldest_version)
                if buffer.decisions >= trained.config.batch_size:
                    found.append(player)
        if found:
            return found
        held_up = {player: buffer.held_up() for player, buffer in self.buffers.items()}
        if not np.any(list(held_up.values()), axis=0).all():
            return []
        return [player for player, actors in held_up.items() if actors.any()]

    def _train(self, player: str) -> dict[str, float]:
        """One update; returns what it measured."""
        self.batches += 1
        trained, buffer = self.players[player], self.buffers[player]
        # A hand-over is a little more than its share: left behind, that little would hold its actor up until
        # it is too old. So all is taken, unless so much waits that the newest alone make a batch.
        size = trained.config.batch_size
        enough = size if trained.config.schedule == "async" and buffer.decisions >= 2 * size else None
        batches: dict[int, Batch] = {}
        refused: dict[int, IntArray] = {}
        for kind, taken in buffer.take(enough).items():
            batch, finite = self._pools[kind].stack_finite(taken.slots, trained.oldest_version)
            if not finite.all():  # one NaN would spoil the whole batch
                refused[kind] = taken.slots[~finite]
                trained.refused += int(taken.decisions[~finite].sum())
            if batch is not None:
                batches[kind] = batch
                is_new = taken.is_new[finite]
                used = batch.valid if is_new.all() else batch.valid[:, is_new]
                trained.stale += int(taken.decisions[finite][is_new].sum() - used.sum())
        measured: dict[str, float] = {"gradient_steps": 0}
        if batches:
            measured = trained.update(batches, self.progress)
            self.publish(player)
        buffer.give_back(refused)
        return {
            **measured,
            "stale": trained.stale,
            "skipped": trained.skipped,
            "refused": trained.refused,
            "dropped": buffer.dropped,
        }

    def publish(self, player: str) -> None:
        trained = self.players[player]
        self._board.publish(trained.model, trained.weights())

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        """An actor hands trajectories over."""
        self.buffers[player].put(kind, slots)

    def complete(self, player: str) -> None:
        """The only actor has handed over its share of a batch."""
        self.buffers[player].complete()

    # --- for the controller ---

    def report(self, player: str) -> LearnerProgress:
        trained = self.players[player]
        return LearnerProgress(player, trained.incarnation, trained.step, trained.decisions)

    def freeze(self, player: str, parent: ModelId | None) -> LearnerProgress:
        """Put the player's weights, live and averaged, into the model pool, and say which they are."""
        trained, report = self.players[player], self.report(player)
        facts = {"decisions": report.decisions}
        self._models.publish(trained.model, trained.weights(), parent=parent, variant="live", facts=facts)
        self._models.publish(
            trained.model, trained.average_weights(), parent=parent, variant="average", facts=facts
        )
        return report

    def start_from(self, models: Mapping[str, str]) -> None:
        """Players that begin with the weights of a model in the pool, by player."""
        for player, model in models.items():
            self.players[player].restart_from(self._models.fetch(ModelId.parse(model)))

    def reset(self, event: PlayerReset) -> None:
        """Start a player again from the weights that the event names, or from fresh ones."""
        weights = self._initial[event.player]
        if event.model is not None:
            weights = self._models.fetch(ModelId.parse(event.model))
        self.buffers[event.player].clear()
        self.players[event.player].reset(weights, event.incarnation)
        self.publish(event.player)

    def close(self) -> None:
        """Nothing to let go of."""

    def save(self) -> tuple[Tree, dict[str, Any]]:
        """The players. What waits in their buffers lies in the actors' slots: see `save_buffers`."""
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

    def save_buffers(self) -> dict[str, Any]:
        return {player: buffer.save() for player, buffer in self.buffers.items()}

    def load_buffers(self, facts: Mapping[str, Any]) -> None:
        for player, buffer in self.buffers.items():
            buffer.load(facts[player])
