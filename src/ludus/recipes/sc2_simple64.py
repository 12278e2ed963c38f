"""StarCraft II, Terran against Terran on Simple64, by AlphaStar's network and league; needs the game.

The main player meets the game's own computer players as well. docs/starcraft.md says what to install.
"""

from __future__ import annotations

from ludus import ActorConfig, AlphaStar, AlphaStarGradient, EvaluationConfig, Experiment, LearnerConfig
from ludus.algorithms import RewardWeights
from ludus.games import PySC2
from ludus.games.adapters.pysc2 import UNIT_X, UNIT_Y
from ludus.league.presets import alphastar
from ludus.models import Scatter

BOTS = ("builtin_terran_very_easy", "builtin_terran_easy", "builtin_terran_medium", "builtin_terran_hard")


def experiment() -> Experiment:
    return Experiment(
        name="sc2_simple64",
        game=PySC2(
            map_name="Simple64",
            races=("terran",),
            interface="raw",
            screen=64,
            screen_layers=(),  # units are in the list
            minimap=64,
            raw_resolution=64,
            max_units=256,
            max_selected=16,
            max_delay=32,
        ),
        budget=20_000_000,
        model=AlphaStar(scatter=(Scatter(entities="units", onto="minimap", x=UNIT_X, y=UNIT_Y),), bounded_value=True),
        algorithm=AlphaStarGradient(main=RewardWeights(policy=1.0, value=0.5), teacher=None),
        actor=ActorConfig(num_tables=8, matches=4, episodes_per_table=2, unroll_length=32),
        learner=LearnerConfig(
            batch_size=2_048, minibatch_size=512, epochs=1, learning_rate=1e-4, buffer_size=16_384, schedule="async"
        ),
        league=alphastar(period=1_000_000, bots=BOTS, meet_bots=True),
        evaluation=EvaluationConfig(opponents=BOTS, past=1, episodes=16),
        checkpoint_every=200_000,
    )
