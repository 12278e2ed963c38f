"""Kuhn poker by magnet-regularised self-play: NashConv below 0.03 in about a minute on one core."""

from __future__ import annotations

from ludus import ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear, MagnetPolicyGradient
from ludus.algorithms import Reference
from ludus.games import Kuhn
from ludus.league import BySteps, LeagueRules, Role, SelfPlay


def experiment() -> Experiment:
    main = Role(matchmaking=SelfPlay(), promotion=BySteps(every=500_000), snapshot_weights="average")
    return Experiment(
        name="kuhn",
        game=Kuhn(),
        budget=2_000_000,
        model=ActorCritic(hidden=(128, 128)),
        algorithm=MagnetPolicyGradient(magnet=Reference(copy_every=40), magnet_weight=0.2, step_weight=1.0),
        actor=ActorConfig(num_tables=512, matches=2, episodes_per_table=32, unroll_length=8),
        learner=LearnerConfig(
            batch_size=4_800,
            minibatch_size=1_200,
            epochs=4,
            learning_rate=Linear(start=1e-3, end=1e-5),
            max_gradient_norm=5.0,
        ),
        league=LeagueRules(roles={"main": main}, bots=("random", "equilibrium")),
        evaluation=EvaluationConfig(opponents=("random", "equilibrium"), episodes=4_096),
    )
