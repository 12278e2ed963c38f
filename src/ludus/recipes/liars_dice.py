"""Liar's dice of OpenSpiel (one die of six faces each) by self-play with an annealed uniform magnet."""

from __future__ import annotations

from ludus import ActorConfig, ActorCritic, EvaluationConfig, Experiment, Exponential, LearnerConfig, Linear
from ludus.algorithms import MagnetPolicyGradient
from ludus.games import resolve
from ludus.league import BySteps, LeagueRules, Role, SelfPlay


def experiment() -> Experiment:
    main = Role(matchmaking=SelfPlay(), promotion=BySteps(every=1_000_000), snapshot_weights="average")
    return Experiment(
        name="liars_dice",
        game=resolve("openspiel:liars_dice", critic_state=True, from_tree=True),
        budget=8_000_000,
        model=ActorCritic(hidden=(128, 128), activation="relu", central_critic=True, action_values=True),
        algorithm=MagnetPolicyGradient(
            magnet_weight=Exponential(start=0.3, end=0.0125),
            step_weight=Exponential(start=5.0, end=20.0),
            all_actions=True,
        ),
        actor=ActorConfig(num_tables=1_024, matches=2, episodes_per_table=32, unroll_length=8),
        learner=LearnerConfig(
            batch_size=16_384,
            minibatch_size=2_048,
            epochs=2,
            learning_rate=Linear(start=3e-3, end=3e-5),
            max_gradient_norm=5.0,
            average_decay=0.99,
        ),
        league=LeagueRules(roles={"main": main}, bots=("random",)),
        evaluation=EvaluationConfig(opponents=("random",), episodes=4_096),
        checkpoint_every=2_000_000,
    )
