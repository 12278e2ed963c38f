"""Ludus PPO on its own connect four, self-play: 512 tables, a shared trunk of 2 x 64 tanh, one epoch."""

from __future__ import annotations

from _ludus import ENDLESS, parser, run

from ludus.algorithms.ppo import PPO
from ludus.experiment import Experiment
from ludus.games.builtin.connect_four import ConnectFour
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import Never
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def main() -> None:
    arguments = parser(__doc__, tables=512)
    chosen = arguments.parse_args()
    run(
        Experiment(
            name="connect_four",
            game=ConnectFour(threats=False),
            budget=ENDLESS,
            checkpoint_every=ENDLESS,
            model=ActorCritic(hidden=(64, 64), activation="tanh", separate_critic=False),
            algorithm=PPO(gamma=0.99, lambda_=0.95, clip=0.2, entropy=0.01),
            actor=ActorConfig(num_tables=chosen.tables, matches=4, episodes_per_table=4, unroll_length=16),
            learner=LearnerConfig(batch_size=16_384, minibatch_size=4_096, epochs=1, learning_rate=3e-4, device="cpu"),
            league=LeagueRules(roles={"main": Role(matchmaking=SelfPlay(), promotion=Never())}),
            evaluation=EvaluationConfig(opponents=(), past=0, ladder=0),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
