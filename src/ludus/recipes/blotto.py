"""Colonel Blotto: every placement is beaten by some other, so that strength goes in circles."""

from __future__ import annotations

from ludus.algorithms.algorithm import Reference
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.data.schedules import Linear
from ludus.experiment import Experiment
from ludus.games.builtin.blotto import Blotto
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def experiment() -> Experiment:
    return Experiment(
        name="blotto",
        game=Blotto(),
        budget=400_000,
        model=ActorCritic(hidden=(32,)),
        algorithm=MagnetPolicyGradient(magnet=Reference(copy_every=30), magnet_weight=0.3, step_weight=1.0),
        actor=ActorConfig(num_tables=256, matches=4, episodes_per_table=8, unroll_length=8),
        learner=LearnerConfig(
            batch_size=2_048, minibatch_size=1_024, epochs=2, learning_rate=Linear(start=3e-3, end=1e-4)
        ),
        league=LeagueRules(
            roles={
                "main": Role(
                    matchmaking=Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared")))),
                    promotion=BySteps(every=50_000),
                    snapshot_weights="average",
                )
            },
            bots=("even", "left", "middle", "right"),
        ),
        evaluation=EvaluationConfig(opponents=("even", "left", "middle", "right"), episodes=1_024),
        checkpoint_every=100_000,
    )
