"""Kuhn poker by magnet-regularised self-play: a moving magnet, and a critic that sees both cards."""

from __future__ import annotations

from ludus import ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear, MagnetPolicyGradient
from ludus.algorithms import Reference
from ludus.games import Kuhn
from ludus.league import BySteps, LeagueRules, Role, SelfPlay


def experiment() -> Experiment:
    main = Role(matchmaking=SelfPlay(), promotion=BySteps(every=500_000), snapshot_weights="average")
    return Experiment(
        name="kuhn",
        game=Kuhn(critic_state=True),
        budget=3_000_000,
        model=ActorCritic(hidden=(64, 64), activation="relu", central_critic=True, action_values=True),
        algorithm=MagnetPolicyGradient(
            magnet=Reference(copy_every=20), magnet_weight=0.2, step_weight=2.0, all_actions=True
        ),
        actor=ActorConfig(num_tables=512, matches=2, episodes_per_table=32, unroll_length=8),
        learner=LearnerConfig(
            batch_size=4_096,
            minibatch_size=512,
            epochs=2,
            learning_rate=Linear(start=3e-3, end=1e-5),
            max_gradient_norm=5.0,
        ),
        league=LeagueRules(roles={"main": main}, bots=("random", "equilibrium")),
        evaluation=EvaluationConfig(opponents=("random", "equilibrium"), episodes=4_096),
    )
