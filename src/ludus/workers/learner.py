"""The learner: hosts one or more learning players, turns their trajectories into updates and publishes
the new weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ludus.algorithms.algorithm import Algorithm
from ludus.data.batch import Batch
from ludus.data.records import LearnerProgress, ModelId, PlayerReset, Settings
from ludus.data.trajectory import SlotPool
from ludus.data.trees import Array, IntArray, Tree, under
from ludus.runtime.program import IDLE, Progress
from ludus.runtime.weight_board import WeightBoard
from ludus.store.model_pool import ModelPool
from ludus.workers.buffer import Buffer
from ludus.workers.stacked_training import groups, update_stacked
from ludus.workers.trained_player import LearnerConfig, TrainedPlayer

Configured = Callable[[Settings], tuple[Algorithm, LearnerConfig, int]]
"""The algorithm, the learner's settings and the budget of the experiment, changed like this."""


class Learner:
    """Trains whichever of its players have a batch, in turn or stacked. All have the same number of
    actors."""

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
        configured: Configured,
        spent: int = 0,
    ) -> None:
        self.name = name
        self.players = dict(players)
        self.buffers = dict(buffers)
        self._pools = pools
        self._board = board
        self._models = models
        self._budget = budget
        self._configured = configured
        self._spent = spent
        """Decisions of players that have left."""
        self._passed_over: dict[str, int] = {}
        """Rounds that each player has held an actor up while others were trained."""
        self.batches = 0
        """Batches taken so far, those included of which nothing could be trained on."""
        self._initial = {player: trained.weights() for player, trained in players.items()}

    @property
    def decisions(self) -> int:
        """Decisions that all players have trained on, those included that have left."""
        return self._spent + sum(trained.decisions for trained in self.players.values())

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
        for group in groups([self.players[player] for player in self._ready()]):
            before = sum(trained.decisions for trained in group)
            for trained, measured in zip(group, self._train(group), strict=True):
                statistics |= {f"{trained.player}/{name}": value for name, value in measured.items()}
            total += sum(trained.decisions for trained in group) - before
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
            return found + self._overtaken(found)
        held_up = {player: buffer.held_up() for player, buffer in self.buffers.items()}
        if not np.any(list(held_up.values()), axis=0).all():
            return []
        return [player for player, actors in held_up.items() if actors.any()]

    def _overtaken(self, ready: Sequence[str]) -> list[str]:
        """Players that hold an actor up while others are trained again and again. A player whose turn has
        passed gets no more matches, so that its batch would never be full: it trains on what there is."""
        waiting = [
            player
            for player, buffer in self.buffers.items()
            if player not in ready and buffer.held_up().any()
        ]
        rounds = {player: self._passed_over.get(player, 0) + 1 for player in waiting}
        patience = 2 * len(self.players)
        self._passed_over = {player: count for player, count in rounds.items() if count <= patience}
        return [player for player in waiting if player not in self._passed_over]

    def _train(self, group: Sequence[TrainedPlayer]) -> list[dict[str, float]]:
        """One update of each, together if they are several; returns what it measured."""
        taken = [self._take(trained) for trained in group]
        learning = [trained for trained, (batches, _) in zip(group, taken, strict=True) if batches]
        given = [batches for batches, _ in taken if batches]
        if len(learning) == 1:
            updates = [learning[0].update(given[0], self.progress)]
        else:
            updates = update_stacked(learning, given, self.progress) if learning else []
        measured = dict(zip((trained.player for trained in learning), updates, strict=True))
        for trained, (_, refused) in zip(group, taken, strict=True):
            if trained.player in measured:
                self.publish(trained.player)
            self.buffers[trained.player].give_back(refused)
        return [
            {
                **measured.get(trained.player, {"gradient_steps": 0}),
                "stale": trained.stale,
                "skipped": trained.skipped,
                "refused": trained.refused,
                "dropped": self.buffers[trained.player].dropped,
            }
            for trained in group
        ]

    def _take(self, trained: TrainedPlayer) -> tuple[dict[int, Batch], dict[int, IntArray]]:
        """What the player trains on now, and the slots that are refused, both by kind of seat."""
        self.batches += 1
        buffer = self.buffers[trained.player]
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
        return batches, refused

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
        put_into_pool(self._models, self.players[player], parent)
        return self.report(player)

    def start_from(self, player: str, model: ModelId, value_only: int = 0) -> None:
        """Let a player begin with the weights of a model in the pool, and train its value alone at first."""
        self.players[player].begin_from(self._models.fetch(model), value_only)

    def reset(self, event: PlayerReset) -> None:
        """Start a player again from the weights that the event names, or from fresh ones."""
        weights = self._initial[event.player]
        if event.model is not None:
            weights = self._models.fetch(ModelId.parse(event.model))
        self.buffers[event.player].clear()
        self.players[event.player].reset(weights, event.incarnation, event.value_only)
        self.publish(event.player)

    def configure(self, player: str, settings: Settings) -> None:
        """Train it with the experiment's settings changed like this."""
        algorithm, config, self._budget = self._configured(settings)
        self.players[player].configure(algorithm, config)

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


def put_into_pool(models: ModelPool, trained: TrainedPlayer, parent: ModelId | None) -> None:
    """The player's weights of now, live and averaged."""
    facts = {"decisions": trained.decisions}
    models.publish(trained.model, trained.weights(), parent=parent, variant="live", facts=facts)
    models.publish(trained.model, trained.average_weights(), parent=parent, variant="average", facts=facts)
