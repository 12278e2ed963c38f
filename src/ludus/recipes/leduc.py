"""Leduc poker by self-play with an annealed uniform magnet."""

from __future__ import annotations

from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.data.schedules import Exponential, Linear
from ludus.experiment import Experiment
from ludus.games.builtin.leduc import Leduc
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def experiment() -> Experiment:
    return Experiment(
        name="leduc",
        game=Leduc(),
        budget=8_000_000,
        model=ActorCritic(hidden=(128, 128)),
        algorithm=MagnetPolicyGradient(
            magnet_weight=Exponential(start=0.3, end=0.05), step_weight=1.0, lambda_=0.95, reward_scale=0.25
        ),
        actor=ActorConfig(num_tables=256, matches=2, episodes_per_table=32, unroll_length=8),
        learner=LearnerConfig(
            batch_size=4_096,
            minibatch_size=1_024,
            epochs=4,
            learning_rate=Linear(start=1e-3, end=1e-5),
            max_gradient_norm=5.0,
            average_decay=0.998,
        ),
        league=LeagueRules(
            roles={
                "main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=2_000_000), snapshot_weights="average")
            },
            bots=("random", "rules"),
        ),
        evaluation=EvaluationConfig(opponents=("random", "rules"), episodes=4_096),
        checkpoint_every=2_000_000,
    )
