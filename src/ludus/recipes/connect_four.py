"""A league on connect four: self-play mixed with prioritised play against its own past (the default).

Three of four training games start after up to 24 random moves, so that the network also learns positions that its own
play does not lead to, and it sees every cell that would complete four: docs/yardstick.md has what both are worth."""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear, Openings
from ludus.games import ConnectFour
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay, UniformPast


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.7, SelfPlay()), (0.2, PFSP(weighting="squared")), (0.1, UniformPast())))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=500_000), snapshot_weights="average")
    return Experiment(
        name="connect_four",
        game=ConnectFour(threats=True, all_threats=True),
        budget=5_000_000,
        openings=Openings(moves=24, share=0.75),
        model=ActorCritic(hidden=(128, 128), activation="relu", separate_critic=False),
        algorithm=PPO(gamma=1.0, lambda_=0.95, clip=0.2, entropy=Linear(start=0.05, end=0.01)),
        actor=ActorConfig(num_tables=512, matches=4, episodes_per_table=4, unroll_length=16),
        learner=LearnerConfig(
            batch_size=16_384,
            minibatch_size=1_024,
            epochs=3,
            learning_rate=Linear(start=1e-3, end=1e-4),
            schedule="async",
        ),
        league=LeagueRules(roles={"main": main}, bots=("random", "alpha_beta_2")),
        evaluation=EvaluationConfig(opponents=("random", "alpha_beta_2"), past=2, episodes=512),
    )
