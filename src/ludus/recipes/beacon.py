"""The mini-game MoveToBeacon, by a convolutional network that chooses places on the map."""

from __future__ import annotations

from ludus.algorithms.ppo import PPO
from ludus.data.schedules import Linear
from ludus.experiment import Experiment
from ludus.games.builtin.beacon import Beacon
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.fully_conv import FullyConv
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def experiment() -> Experiment:
    return Experiment(
        name="beacon",
        game=Beacon(),
        budget=250_000,
        model=FullyConv(channels=(16, 16), stride=4, hidden=(128,)),
        algorithm=PPO(gamma=0.95, lambda_=0.9, clip=0.2, entropy=0.001),
        actor=ActorConfig(num_tables=64, matches=2, episodes_per_table=2, unroll_length=32),
        learner=LearnerConfig(
            batch_size=2_048,
            minibatch_size=512,
            epochs=2,
            learning_rate=Linear(start=2e-3, end=1e-4),
            average_decay=0.9,
            buffer_size=16_384,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": Role(promotion=BySteps(every=25_000))}),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=100),
        checkpoint_every=100_000,
    )
