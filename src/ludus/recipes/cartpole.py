"""CartPole through Gymnasium: a game with one seat, where snapshots are ranked by their mean score."""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.games import Gymnasium
from ludus.league import ByScore, LeagueRules, Role


def experiment() -> Experiment:
    return Experiment(
        name="cartpole",
        game=Gymnasium(env_id="CartPole-v1"),
        budget=300_000,
        model=ActorCritic(hidden=(64, 64)),
        algorithm=PPO(gamma=0.98, lambda_=0.8, clip=0.2, entropy=0.0),
        actor=ActorConfig(num_tables=64, matches=2, episodes_per_table=4, unroll_length=32),
        learner=LearnerConfig(
            batch_size=2_048,
            minibatch_size=512,
            epochs=4,
            learning_rate=Linear(start=1e-3, end=0.0),
            average_decay=0.9,
            schedule="async",
            buffer_size=16_384,
        ),
        league=LeagueRules(
            roles={"main": Role(promotion=ByScore(min_improvement=20, min_episodes=20, min_decisions=10_000))}
        ),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=100),
        checkpoint_every=50_000,
    )
