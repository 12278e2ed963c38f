"""Leduc poker by self-play with an annealed uniform magnet."""

from __future__ import annotations

from ludus import ActorConfig, ActorCritic, EvaluationConfig, Experiment, Exponential, LearnerConfig, Linear
from ludus.algorithms import MagnetPolicyGradient
from ludus.games import Leduc
from ludus.league import BySteps, LeagueRules, Role, SelfPlay


def experiment() -> Experiment:
    main = Role(matchmaking=SelfPlay(), promotion=BySteps(every=2_000_000), snapshot_weights="average")
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
        league=LeagueRules(roles={"main": main}, bots=("random", "rules")),
        evaluation=EvaluationConfig(opponents=("random", "rules"), episodes=4_096),
        checkpoint_every=2_000_000,
    )
