"""Ludus PPO on CartPole-v1 through Gymnasium: 2 x 64 tanh for actor and critic each, batches of 2,048 in
minibatches of 512, four epochs."""

from __future__ import annotations

from _ludus import ENDLESS, parser, run

from ludus.algorithms.ppo import PPO
from ludus.experiment import Experiment
from ludus.games.adapters.gymnasium import Gymnasium
from ludus.league.promotion import Never
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def main() -> None:
    arguments = parser(__doc__, tables=128)
    arguments.add_argument(
        "--environments",
        choices=("auto", "single"),
        default="auto",
        help="Gymnasium's vector environment, or one environment after the other",
    )
    chosen = arguments.parse_args()
    run(
        Experiment(
            name="cartpole",
            game=Gymnasium(env_id="CartPole-v1", vectorization=chosen.environments),
            budget=ENDLESS,
            checkpoint_every=ENDLESS,
            model=ActorCritic(hidden=(64, 64), activation="tanh", separate_critic=True),
            algorithm=PPO(gamma=0.99, lambda_=0.95, clip=0.2, entropy=0.0),
            actor=ActorConfig(
                num_tables=chosen.tables, matches=1, episodes_per_table=4, unroll_length=2_048 // chosen.tables
            ),
            learner=LearnerConfig(
                batch_size=2_048, minibatch_size=512, epochs=4, learning_rate=3e-4, buffer_size=16_384, device="cpu"
            ),
            league=LeagueRules(roles={"main": Role(promotion=Never())}),
            evaluation=EvaluationConfig(opponents=(), past=0, ladder=0),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
