"""Four players of tic-tac-toe search for their learning rate and entropy: the better ones are taken over."""

from __future__ import annotations

from ludus.algorithms.ppo import PPO
from ludus.experiment import Experiment
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.league.matchmaking import Live, Mixture, UniformPast
from ludus.league.players import SCRIPTED
from ludus.league.population import LogUniform, Population
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def experiment() -> Experiment:
    return Experiment(
        name="tic_tac_toe_population",
        game=TicTacToe(),
        budget=600_000,
        model=ActorCritic(hidden=(64, 64)),
        algorithm=PPO(gamma=1.0),
        actor=ActorConfig(num_tables=256, matches=4, episodes_per_table=4, unroll_length=8),
        learner=LearnerConfig(batch_size=2_048, minibatch_size=1_024, epochs=4, average_decay=0.9),
        league=LeagueRules(
            roles={
                "main": Role(
                    count=4,
                    matchmaking=Mixture(branches=((0.5, Live(role="main")), (0.5, UniformPast(over=SCRIPTED)))),
                    promotion=BySteps(every=75_000),
                    population=Population(
                        search=(
                            LogUniform(path="learner.learning_rate", low=1e-6, high=1e-2),
                            LogUniform(path="algorithm.entropy", low=1e-4, high=1e-1),
                        ),
                        every=25_000,
                    ),
                )
            },
            bots=("random", "rules"),
        ),
        evaluation=EvaluationConfig(opponents=("random", "rules"), past=0, episodes=256),
        checkpoint_every=250_000,
    )
