"""Honor of Kings, one against one: against the game's own player (`common_ai`), its own past and itself.

Without a gamecore server ($GAMECORE_SERVER_ADDR, or game.server) it trains on the stand-in, in battles of 400
decisions; docs/games/gamecore.md says what the closed game needs.
"""

from __future__ import annotations

import os

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.games import Gamecore
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay


def experiment() -> Experiment:
    server = os.environ.get("GAMECORE_SERVER_ADDR", "")
    frames = 20_000 if server else 1_200
    matchmaking = Mixture(branches=((0.25, SelfPlay()), (0.75, PFSP(weighting="squared", include_scripted=True))))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=100_000), snapshot_weights="average")
    return Experiment(
        name="hok_1v1",
        game=Gamecore(mode="1v1", server=server or "stand_in", max_frames=frames, full_critic=True),
        budget=500_000,
        model=ActorCritic(hidden=(64, 64), activation="relu", central_critic=True, value_normalisation=True),
        algorithm=PPO(gamma=0.995, lambda_=0.95, clip=0.2, entropy=Linear(start=0.02, end=0.005)),
        actor=ActorConfig(num_tables=4 if server else 256, matches=4, episodes_per_table=2, unroll_length=16),
        learner=LearnerConfig(
            batch_size=4_096,
            minibatch_size=1_024,
            epochs=3,
            learning_rate=Linear(start=1e-3, end=1e-4),
            average_decay=0.95,
            buffer_size=16_384,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": main}, bots=("common_ai",)),
        evaluation=EvaluationConfig(opponents=("random", "common_ai"), past=0, ladder=0, episodes=128),
        checkpoint_every=100_000,
    )
