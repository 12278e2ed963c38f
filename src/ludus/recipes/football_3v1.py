"""Football: three attackers against a defender and a keeper of the game's own, one policy for all three.

The score is the share of attacks that end in a goal; in training, bringing the ball towards the goal is
rewarded as well.
"""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, Isolation, LearnerConfig, Linear
from ludus.games import isolate, resolve
from ludus.league import ByScore, LeagueRules, Role


def experiment() -> Experiment:
    game = resolve("football:academy_3_vs_1_with_keeper", left=3, checkpoints=True)
    main = Role(
        promotion=ByScore(min_improvement=0.05, min_episodes=100, min_decisions=100_000), snapshot_weights="average"
    )
    return Experiment(
        name="football_3v1",
        # An engine takes a few milliseconds a step, far more than the learner: it gets both cores.
        game=isolate(game, Isolation(processes=2)),
        budget=3_000_000,
        model=ActorCritic(hidden=(128, 128), value_normalisation=True),
        algorithm=PPO(gamma=0.993, lambda_=0.95, clip=0.2, entropy=Linear(start=0.01, end=0.003)),
        actor=ActorConfig(num_tables=16, matches=1, episodes_per_table=4, unroll_length=32),
        learner=LearnerConfig(
            batch_size=4_096,
            minibatch_size=1_024,
            epochs=6,
            learning_rate=Linear(start=1e-3, end=1e-4),
            average_decay=0.9,
            buffer_size=16_384,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": main}),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=96),
        checkpoint_every=250_000,
    )
