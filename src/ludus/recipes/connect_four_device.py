"""Connect four on one large GPU, in minutes: every player searches before each move, and its network learns what the
search finds (Gumbel AlphaZero). Tables, search and learning live on the device. docs/search.md has what it reaches."""

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
from ludus.games import ConnectFour
from ludus.league import PFSP, ByTime, LeagueRules, Mixture, Role, SelfPlay, UniformPast


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.8, SelfPlay()), (0.1, PFSP(weighting="squared")), (0.1, UniformPast())))
    main = Role(matchmaking=matchmaking, promotion=ByTime(seconds=30.0), snapshot_weights="average")
    return Experiment(
        name="connect_four_device",
        game=ConnectFour(threats=True, all_threats=True),
        budget=100_000_000,
        openings=Openings(moves=24, share=0.75),
        model=ActorCritic(hidden=(1024, 1024, 1024), activation="relu", separate_critic=False),
        algorithm=GumbelAlphaZero(lambda_=0.8, search=GumbelSearch(simulations=16, max_depth=6)),
        actor=ActorConfig(num_tables=32_768, matches=16, episodes_per_table=16),
        learner=LearnerConfig(
            batch_size=524_288,
            minibatch_size=16_384,
            buffer_size=524_288,
            epochs=2,
            learning_rate=Warmup(then=Linear(start=1e-3, end=3e-5), over=0.01),
        ),
        league=LeagueRules(roles={"main": main}, bots=("random", "alpha_beta_2")),
        evaluation=EvaluationConfig(opponents=("random", "alpha_beta_2"), past=1, episodes=256),
        checkpoint_every=50_000_000,
        runtime="device",
        device=DeviceConfig(precision="bfloat16"),
    )
