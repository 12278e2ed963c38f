"""An actor and a learner that train on what it plays."""

from __future__ import annotations

import shutil
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from table_play import Play, side

from ludus.algorithms.algorithm import Algorithm
from ludus.algorithms.ppo import PPO
from ludus.data.trees import IntArray
from ludus.games.game import GameSource
from ludus.store.model_pool import ModelPool
from ludus.workers.buffer import Buffer
from ludus.workers.config import LearnerConfig
from ludus.workers.learner import Learner
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import Progress


@dataclass
class TaughtPlay(Play):
    """A `Play` whose trajectories go to a real learner. All learning players have the same settings."""

    config: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(batch_size=60, minibatch_size=20, buffer_size=200)
    )
    algorithm: Algorithm = field(default_factory=PPO)
    max_slots: int = 1000
    made: dict[str, int] = field(default_factory=dict)
    """Decisions handed over by player."""

    def __post_init__(self) -> None:
        if self.hand_over_after is None:
            self.hand_over_after = self.config.batch_size
        super().__post_init__()

        def free(kind: int, slots: IntArray) -> None:
            self.actor.recorder.free(kind, slots)

        folder = mkdtemp(prefix="ludus-test-")
        weakref.finalize(self, shutil.rmtree, folder)
        self.models = ModelPool(Path(folder))
        self.learner = Learner(
            name="learner",
            models=self.models,
            players={
                player: TrainedPlayer(player, self.build(100 + index), self.algorithm, self.config, seed=index)
                for index, player in enumerate(self.learning)
            },
            buffers={
                player: Buffer(
                    self.pools,
                    max_decisions=self.config.buffer_size,
                    max_slots=self.max_slots,
                    free=free,
                    max_lag=self.config.lag,
                    uses=self.config.uses,
                )
                for player in self.learning
            },
            pools=self.pools,
            weights=self.board,
            budget=10_000,
            configured=lambda settings: (self.algorithm, self.config),
        )

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        self.made[player] = self.made.get(player, 0) + int(self.pools[kind].num_decisions(slots).sum())
        self.learner.put(player, kind, slots)

    def complete(self, player: str) -> None:
        self.completed.append(player)
        self.learner.complete(player)

    def train(self, rounds: int) -> list[Progress]:
        """Rounds of acting and learning; returns what the learner says."""
        said = []
        for _ in range(rounds):
            self.actor.step()
            said.append(self.learner.step())
        return said

    def finite_weights(self, player: str = "main") -> bool:
        return all(np.isfinite(array).all() for array in self.learner.players[player].weights().values())


def taught_self_play(game: GameSource, **options: object) -> TaughtPlay:
    teams = game.spec.num_teams
    sides = tuple(side("main", trains=True) for _ in range(teams))
    return TaughtPlay(game, (sides,), **{"episodes_per_table": 2 * teams, **options})  # type: ignore[arg-type]
