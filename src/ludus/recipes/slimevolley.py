"""SlimeVolley by self-play and prioritised play against its own past.

The game's own player, `baseline`, is an examiner only: the league never trains against it. The device runtime trains it
on one core of a CPU; `slimevolley_device` has the sizes of a GPU.
"""

from __future__ import annotations

from ludus import PPO, ActorConfig, ActorCritic, DeviceConfig, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.games import resolve
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.6, SelfPlay()), (0.4, PFSP(weighting="squared"))))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=4_000_000), snapshot_weights="average")
    return Experiment(
        name="slimevolley",
        game=resolve("slimevolley"),
        budget=40_000_000,
        model=ActorCritic(hidden=(64, 64)),
        algorithm=PPO(gamma=0.99, lambda_=0.95, clip=0.2, entropy=Linear(start=0.005, end=0.0005)),
        # 64 frames of each table, a rally: with 32, nothing was learned in 12 million decisions.
        actor=ActorConfig(num_tables=256, matches=8, episodes_per_table=2, unroll_length=64),
        learner=LearnerConfig(
            # A few hundred rallies: with fewer, chance decides which way the policy goes.
            batch_size=32_768,
            minibatch_size=2_048,
            epochs=6,
            learning_rate=Linear(start=1e-3, end=3e-5),
            buffer_size=131_072,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": main}),
        evaluation=EvaluationConfig(opponents=("baseline",), past=0, episodes=64),
        checkpoint_every=4_000_000,
        runtime="device",
        device=DeviceConfig(),
    )
