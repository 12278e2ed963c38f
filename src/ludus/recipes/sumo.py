"""Sumo, whose actions are real numbers: a league of a main player and an exploiter of it.

The scripted players are examiners only: the league never trains against them.
"""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.games import Sumo
from ludus.league.presets import alphastar


def experiment() -> Experiment:
    bots = ("random", "charger", "matador")
    return Experiment(
        name="sumo",
        game=Sumo(),
        budget=4_000_000,
        model=ActorCritic(hidden=(64, 64)),
        algorithm=PPO(gamma=0.99, lambda_=0.95, clip=0.2, entropy=Linear(start=0.003, end=0.0)),
        actor=ActorConfig(num_tables=128, matches=4, episodes_per_table=8, unroll_length=32),
        learner=LearnerConfig(
            batch_size=8_192,
            minibatch_size=1_024,
            epochs=4,
            learning_rate=Linear(start=1e-3, end=1e-4),
            average_decay=0.95,
            buffer_size=32_768,
            schedule="async",
        ),
        league=alphastar(period=250_000, league_exploiters=0, bots=bots, snapshot_weights="average"),
        evaluation=EvaluationConfig(opponents=bots, past=1, episodes=256),
        checkpoint_every=500_000,
    )
