"""Honor of Kings, one against one: against the game's own player (`common_ai`), its own past and itself.

Without a gamecore server ($GAMECORE_SERVER_ADDR) it trains on the stand-in, in battles of 250 decisions and in one
process, which repeats a run exactly; docs/games/gamecore.md says what the closed game needs.
"""

from __future__ import annotations

import os

from ludus import PPO, ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.games import Gamecore
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay, UniformPast


def experiment() -> Experiment:
    server = os.environ.get("GAMECORE_SERVER_ADDR", "")
    frames = 20_000 if server else 750
    against = ((0.6, UniformPast(over="scripted")), (0.2, SelfPlay()), (0.2, PFSP(weighting="squared")))
    matchmaking = Mixture(branches=against)
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=150_000), snapshot_weights="average")
    return Experiment(
        name="hok_1v1",
        game=Gamecore(mode="1v1", server=server or "stand_in", max_frames=frames, critic_state=True),
        budget=300_000,
        model=ActorCritic(hidden=(64, 64), activation="relu", central_critic=True, value_normalisation=True),
        algorithm=PPO(gamma=0.995, lambda_=0.95, clip=0.2, entropy=Linear(start=0.01, end=0.003)),
        actor=ActorConfig(num_tables=8 if server else 128, matches=4, episodes_per_table=2, unroll_length=16),
        learner=LearnerConfig(
            batch_size=2_048,
            minibatch_size=512,
            epochs=4,
            learning_rate=Linear(start=1e-3, end=3e-4),
            average_decay=0.95,
            buffer_size=16_384,
            schedule="sync",
        ),
        league=LeagueRules(roles={"main": main}, bots=("common_ai",)),
        evaluation=EvaluationConfig(opponents=("common_ai",), past=0, ladder=0, episodes=16),
        checkpoint_every=50_000,
        runtime="local" if server else "serial",
    )
