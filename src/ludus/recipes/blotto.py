"""Colonel Blotto: every placement is beaten by some other, so that strength goes in circles."""

from __future__ import annotations

from ludus import ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear, MagnetPolicyGradient
from ludus.algorithms import Reference
from ludus.games import Blotto
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay

BOTS = ("even", "left", "middle", "right")


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=50_000), snapshot_weights="average")
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
        league=LeagueRules(roles={"main": main}, bots=BOTS),
        evaluation=EvaluationConfig(opponents=BOTS, episodes=1_024),
        checkpoint_every=100_000,
    )
