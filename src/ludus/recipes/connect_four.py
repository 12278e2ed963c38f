"""A league on connect four: self-play mixed with prioritised play against its own past (the default)."""

from __future__ import annotations

from ludus.algorithms.ppo import PPO
from ludus.data.schedules import Linear
from ludus.experiment import Experiment
from ludus.games.builtin.connect_four import ConnectFour
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay, UniformPast
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def experiment() -> Experiment:
    return Experiment(
        name="connect_four",
        game=ConnectFour(threats=True),
        budget=5_000_000,
        model=ActorCritic(hidden=(128, 128), activation="relu", separate_critic=False),
        algorithm=PPO(gamma=1.0, lambda_=0.95, clip=0.2, entropy=Linear(start=0.05, end=0.01)),
        actor=ActorConfig(num_tables=512, matches=4, episodes_per_table=4, unroll_length=16),
        learner=LearnerConfig(
            batch_size=16_384,
            minibatch_size=1_024,
            epochs=3,
            learning_rate=Linear(start=1e-3, end=1e-4),
            schedule="async",
        ),
        league=LeagueRules(
            roles={
                "main": Role(
                    matchmaking=Mixture(
                        branches=((0.7, SelfPlay()), (0.2, PFSP(weighting="squared")), (0.1, UniformPast()))
                    ),
                    promotion=BySteps(every=500_000),
                    snapshot_weights="average",
                )
            },
            bots=("random", "alpha_beta_2"),
        ),
        evaluation=EvaluationConfig(opponents=("random", "alpha_beta_2"), past=2, episodes=512),
    )
