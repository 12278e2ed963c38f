"""The learner: hosts one or more learning players, turns their trajectories into updates and publishes
the new weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ludus.data.records import LearnerProgress, ModelId, PlayerReset
from ludus.data.trajectory import SlotPool
from ludus.data.trees import Array, IntArray, Tree, under
from ludus.runtime.program import IDLE, Progress
from ludus.runtime.weight_board import WeightBoard
from ludus.store.model_pool import ModelPool
from ludus.workers.buffer import Buffer
from ludus.workers.trained_player import TrainedPlayer


class Learner:
    """Trains whichever of its players has a batch, in turn."""

    def __init__(
        self,
        *,
        name: str,
        players: Mapping[str, TrainedPlayer],
        buffers: Mapping[str, Buffer],
        pools: tuple[SlotPool, ...],
        board: WeightBoard,
        models: ModelPool,
        free: Callable[[int, IntArray], None],
        budget: int,
    ) -> None:
        self.name = name
        self.players = dict(players)
        self.buffers = dict(buffers)
        self._pools = pools
        self._board = board
        self._models = models
        self._free = free
        self._budget = budget
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
        for player, trained in self.players.items():
            if self.buffers[player].ready:
                before = trained.decisions
                measured = self._train(player)
                total += trained.decisions - before
                statistics |= {f"{player}/{name}": value for name, value in measured.items()}
        return Progress(count=total, statistics=statistics) if statistics else IDLE

    def discard(self) -> Progress:
        """The budget is spent: what actors still hand over while they measure is not trained on."""
        for buffer in self.buffers.values():
            if buffer.ready:
                buffer.clear()
        return IDLE

    def _train(self, player: str) -> dict[str, float]:
        """One update; returns what it measured."""
        trained = self.players[player]
        taken = self._take_finite(player)
        measured: dict[str, float] = {}
        if taken:
            before = trained.decisions
            handed_over = sum(int(self._pools[kind].num_decisions(taken[kind]).sum()) for kind in taken)
            batches = {
                kind: self._pools[kind].stack(slots, trained.oldest_version) for kind, slots in taken.items()
            }
            measured = trained.update(batches, self.progress)
            trained.stale += handed_over - (trained.decisions - before)
            for kind, slots in taken.items():
                self._free(kind, slots)
            self.publish(player)
        return {
            **measured,
            "stale": trained.stale,
            "skipped": trained.skipped,
            "refused": trained.refused,
            "dropped": self.buffers[player].dropped,
        }

    def _take_finite(self, player: str) -> dict[int, IntArray]:
        """The waiting trajectories, except those with a NaN or an infinity: one would spoil the batch."""
        taken: dict[int, IntArray] = {}
        for kind, slots in self.buffers[player].take().items():
            finite = self._pools[kind].are_finite(slots)
            if not finite.all():
                refused = slots[~finite]
                self.players[player].refused += int(self._pools[kind].num_decisions(refused).sum())
                self._pools[kind].clear(refused)
                self._free(kind, refused)
            if finite.any():
                taken[kind] = slots[finite]
        return taken

    def publish(self, player: str) -> None:
        trained = self.players[player]
        self._board.publish(trained.model, trained.weights())

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        """An actor hands trajectories over."""
        self.buffers[player].put(kind, slots)

    def complete(self, player: str) -> None:
        """An actor has handed over all it had: one batch of the synchronous schedule."""
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

    def reset(self, event: PlayerReset, weights: Tree | None) -> None:
        """Start a player again from these weights, or from the ones it had at the beginning."""
        trained = self.players[event.player]
        self.buffers[event.player].clear()
        trained.reset(self._initial[event.player] if weights is None else weights, event.incarnation)
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
