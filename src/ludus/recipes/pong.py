"""Atari Pong between two players, from pixels: self-play mixed with play against its own past.

The second player sees the screen mirrored, so that one policy plays both sides. Needs the extra `multi-atari`.
"""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.games import MultiAtari
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay, UniformPast


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.6, SelfPlay()), (0.25, PFSP(weighting="squared")), (0.15, UniformPast())))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=300_000), snapshot_weights="average")
    return Experiment(
        name="pong",
        game=MultiAtari(
            game="pong_v3",
            size=40,
            rows=(34, 194),
            stack=3,
            sticky=0.0,
            flipped=("second_0",),
            agent_indicator=False,
            max_length=1_000,
        ),
        budget=3_000_000,
        model=ActorCritic(channels=(16, 16), hidden=(128,), activation="relu", separate_critic=False),
        algorithm=PPO(gamma=0.99, lambda_=0.95, clip=0.2, entropy=0.01),
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=2, unroll_length=32),
        learner=LearnerConfig(
            batch_size=2_048,
            minibatch_size=512,
            epochs=3,
            learning_rate=Linear(start=1e-3, end=1e-4),
            average_decay=0.95,
            buffer_size=16_384,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": main}, bots=("random",)),
        evaluation=EvaluationConfig(opponents=("random",), past=1, ladder=0, episodes=32),
        checkpoint_every=300_000,
    )
