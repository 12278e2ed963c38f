"""Atari Pong, one player against the console, from four grey pictures of 84 x 84."""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.games import resolve
from ludus.league import BySteps, LeagueRules, Role


def experiment() -> Experiment:
    return Experiment(
        name="atari_pong",
        game=resolve("atari:pong"),
        budget=3_000_000,
        model=ActorCritic(hidden=(256,), activation="relu", separate_critic=False, channels=(8, 16, 32)),
        algorithm=PPO(gamma=0.99, lambda_=0.95, clip=0.1, entropy=0.01),
        actor=ActorConfig(num_tables=16, matches=2, episodes_per_table=1, unroll_length=128),
        learner=LearnerConfig(
            batch_size=2_048,
            minibatch_size=256,
            epochs=3,
            learning_rate=Linear(start=7e-4, end=1e-4),
            buffer_size=8_192,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": Role(promotion=BySteps(every=250_000))}),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=8),
        checkpoint_every=100_000,
    )
