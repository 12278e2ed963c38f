"""Connect four by Gumbel AlphaZero: learning players search with their network, which learns what they find."""

from __future__ import annotations

from ludus import ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear, Openings
from ludus.algorithms import GumbelAlphaZero, GumbelSearch
from ludus.games import ConnectFour
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.9, SelfPlay()), (0.1, PFSP(weighting="squared"))))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=50_000), snapshot_weights="average")
    return Experiment(
        name="connect_four_search",
        game=ConnectFour(threats=True),
        budget=400_000,
        model=ActorCritic(hidden=(128, 128), activation="relu", separate_critic=False),
        algorithm=GumbelAlphaZero(lambda_=0.8, search=GumbelSearch(simulations=16, c_scale=0.3)),
        openings=Openings(moves=8),
        actor=ActorConfig(num_tables=256, matches=4, episodes_per_table=4, unroll_length=21),
        learner=LearnerConfig(
            batch_size=4_096, minibatch_size=256, epochs=4, learning_rate=Linear(start=2e-3, end=2e-4), schedule="async"
        ),
        league=LeagueRules(roles={"main": main}, bots=("random", "alpha_beta_2")),
        evaluation=EvaluationConfig(opponents=("random", "alpha_beta_2"), past=1, episodes=256),
        checkpoint_every=100_000,
    )
