"""Four players of tic-tac-toe search for their learning rate and entropy: the better ones are taken over."""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig
from ludus.games import TicTacToe
from ludus.league import SCRIPTED, BySteps, LeagueRules, Live, LogUniform, Mixture, Population, Role, UniformPast


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.5, Live(role="main")), (0.5, UniformPast(over=SCRIPTED))))
    population = Population(
        search=(
            LogUniform(path="learner.learning_rate", low=1e-6, high=1e-2),
            LogUniform(path="algorithm.entropy", low=1e-4, high=1e-1),
        ),
        every=25_000,
    )
    main = Role(count=4, matchmaking=matchmaking, promotion=BySteps(every=75_000), population=population)
    return Experiment(
        name="tic_tac_toe_population",
        game=TicTacToe(),
        budget=600_000,
        model=ActorCritic(hidden=(64, 64)),
        algorithm=PPO(gamma=1.0),
        actor=ActorConfig(num_tables=256, matches=4, episodes_per_table=4, unroll_length=8),
        learner=LearnerConfig(batch_size=2_048, minibatch_size=1_024, epochs=4, average_decay=0.9),
        league=LeagueRules(roles={"main": main}, bots=("random", "rules")),
        evaluation=EvaluationConfig(opponents=("random", "rules"), past=0, episodes=256),
        checkpoint_every=250_000,
    )
