"""MicroRTS on the map of 8 by 8, by self-play and prioritised play against its own past and scripted players.

The players that it is measured against are members of the league, so it trains against them too. Those that
search for a tenth of a second in every tick are left out: `ludus eval RUN main@best tiamat` asks one.
"""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.games import resolve
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared", include_scripted=True))))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=250_000), snapshot_weights="average")
    return Experiment(
        name="microrts",
        game=resolve("microrts:8x8", max_ticks=1_000),
        budget=3_000_000,
        model=ActorCritic(hidden=(128,), activation="relu", channels=(16, 16), separate_critic=False),
        algorithm=PPO(gamma=0.997, lambda_=0.95, clip=0.2, entropy=Linear(start=0.01, end=0.002)),
        actor=ActorConfig(num_tables=32, matches=4, episodes_per_table=2, unroll_length=32),
        learner=LearnerConfig(
            batch_size=8_192,
            minibatch_size=1_024,
            epochs=3,
            learning_rate=Linear(start=1e-3, end=1e-4),
            average_decay=0.95,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": main}, bots=("random", "random_biased")),
        evaluation=EvaluationConfig(
            opponents=("passive", "random_biased", "light_rush", "worker_rush", "coac"), past=1, episodes=64
        ),
        checkpoint_every=250_000,
    )
