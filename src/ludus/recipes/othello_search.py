"""Othello of Pgx on one large GPU, in a few minutes: players search before each move, and their network learns what the
search finds (Gumbel AlphaZero). `othello_ppo` is the same without a search. Needs the extra `pgx`."""

from __future__ import annotations

from ludus import (
    ActorConfig,
    ActorCritic,
    DeviceConfig,
    EvaluationConfig,
    Experiment,
    LearnerConfig,
    Linear,
    Openings,
    Warmup,
)
from ludus.algorithms import GumbelAlphaZero, GumbelSearch
from ludus.games import resolve
from ludus.league import ByTime, LeagueRules, Role, SelfPlay


def experiment() -> Experiment:
    # Self-play alone: the same weights decide everywhere, so that each convolution is one for all tables.
    main = Role(matchmaking=SelfPlay(), promotion=ByTime(seconds=60.0), snapshot_weights="average")
    return Experiment(
        name="othello_search",
        game=resolve("pgx:othello"),
        budget=20_000_000,
        openings=Openings(moves=10, share=0.75),
        model=ActorCritic(hidden=(256,), channels=(64,), residual_blocks=4, activation="relu", separate_critic=False),
        algorithm=GumbelAlphaZero(lambda_=0.8, search=GumbelSearch(simulations=16, c_scale=0.5, max_depth=6)),
        actor=ActorConfig(num_tables=8_192, matches=2, episodes_per_table=4),
        learner=LearnerConfig(
            batch_size=131_072,
            minibatch_size=4_096,
            buffer_size=131_072,
            epochs=2,
            learning_rate=Warmup(then=Linear(start=1e-3, end=5e-5), over=0.02),
        ),
        league=LeagueRules(roles={"main": main}, bots=("random",)),
        # Evaluations run on one core of the CPU, where a network with convolutions is slow.
        evaluation=EvaluationConfig(opponents=("random",), past=0, ladder=0, episodes=16),
        checkpoint_every=100_000_000,
        checkpoint_seconds=120.0,
        runtime="device",
        device=DeviceConfig(precision="bfloat16"),
    )
