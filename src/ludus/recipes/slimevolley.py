"""SlimeVolley by self-play and prioritised play against its own past.

The game's own player, `baseline`, is an examiner only: the league never trains against it.
"""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.games import resolve
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.6, SelfPlay()), (0.4, PFSP(weighting="squared"))))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=2_000_000), snapshot_weights="average")
    return Experiment(
        name="slimevolley",
        game=resolve("slimevolley"),
        budget=40_000_000,
        model=ActorCritic(hidden=(64, 64)),
        algorithm=PPO(gamma=0.99, lambda_=0.95, clip=0.2, entropy=Linear(start=0.005, end=0.001)),
        actor=ActorConfig(num_tables=64, matches=4, episodes_per_table=2, unroll_length=32),
        learner=LearnerConfig(
            # A few hundred rallies: with fewer, chance decides which way the policy goes.
            batch_size=32_768,
            minibatch_size=2_048,
            epochs=6,
            learning_rate=Linear(start=1e-3, end=1e-4),
            buffer_size=131_072,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": main}),
        evaluation=EvaluationConfig(opponents=("random", "baseline"), past=2, episodes=128),
        checkpoint_every=2_000_000,
    )
