"""The mini-game MoveToBeacon, by a convolutional network that chooses places on the map."""

from __future__ import annotations

from ludus import PPO, ActorConfig, EvaluationConfig, Experiment, FullyConv, LearnerConfig, Linear
from ludus.games import Beacon
from ludus.league import BySteps, LeagueRules, Role


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
