"""StarCraft II as AlphaStar's publication describes the agent: its inputs, network, losses and league, for one race.

Needs the game, and memory: an observation has 1.9 MB. docs/starcraft.md says what differs from the publication.
"""

from __future__ import annotations

import os
from dataclasses import replace

from ludus import ActorConfig, AlphaStar, AlphaStarGradient, EvaluationConfig, Experiment, LearnerConfig
from ludus.games import PySC2, WithStrategies
from ludus.games.adapters.pysc2 import EFFECT_X, EFFECT_Y, UNIT_X, UNIT_Y
from ludus.league.presets import alphastar
from ludus.models import Scatter

BOTS = ("builtin_terran_very_easy", "builtin_terran_easy", "builtin_terran_medium", "builtin_terran_hard")
VECTORS = {
    "statistics": 64, "home_race": 32, "away_race": 32, "time": 64, "upgrades": 128, "enemy_upgrades": 128,
    "available_actions": 64, "unit_counts": 128, "last_delay": 64, "last_action": 128, "last_queued": 256,
    "effects": 64, "mmr": 64,
}  # fmt: skip
"""Sizes of embeddings; those of `unit_counts` and `effects` are not published."""
STRATEGY = {"z": 32, "z_build_order": 8, "z_built_units": 32, "z_effects": 32, "z_upgrades": 32}
CONTEXT = ("home_race", "away_race", "available_actions")
TEMPERATURES = dict.fromkeys(("function", "queued", "unit_tags", "target_unit_tag", "world"), 0.8)
FADE = (10_752, 21_504, 32_256)
"""8, 16 and 24 minutes, in game steps of 22.4 a second."""


def experiment() -> Experiment:
    """With the file of strategies that the environment variable SC2_STRATEGIES names, if it is set."""
    return build(os.environ.get("SC2_STRATEGIES"))


def build(strategies: str | None = None) -> Experiment:
    """`strategies`: a file that `ludus convert` wrote; None: seats have no strategy to follow."""
    game = PySC2(
        map_name="Simple64",
        races=("terran",),
        interface="raw",
        inputs="published",
        critic_state=True,
        screen=256,
        screen_layers=(),  # units are in the list
        minimap=256,
        minimap_layers=(
            "height_map", "visibility_map", "creep", "camera", "player_relative", "alerts", "pathable", "buildable",
        ),
        raw_resolution=256,
        max_units=512,
        max_selected=64,
        max_delay=128,
        max_actions=22,
    )  # fmt: skip
    return Experiment(
        name="sc2_alphastar",
        game=game if strategies is None else _following(game, strategies),
        budget=20_000_000,
        model=_model(followed=strategies is not None),
        algorithm=AlphaStarGradient(teacher=None),  # the teacher is a clone of people: docs/starcraft.md
        actor=ActorConfig(num_tables=4, matches=2, episodes_per_table=2, unroll_length=16),
        learner=LearnerConfig(
            batch_size=256, minibatch_size=64, epochs=1, learning_rate=3e-5, buffer_size=1_024, schedule="async"
        ),
        league=alphastar(period=1_000_000, bots=BOTS, meet_bots=True),
        evaluation=EvaluationConfig(opponents=BOTS, past=1, episodes=16),
        checkpoint_every=200_000,
    )


def _following(game: PySC2, strategies: str) -> WithStrategies:
    return WithStrategies(
        game=game,
        strategies=strategies,
        types=game.strategy_groups["built_units"],
        groups=game.strategy_groups,
        separate=True,
        fade=FADE,
    )


def _model(*, followed: bool) -> AlphaStar:
    return replace(
        AlphaStar.full(),
        part_sizes=VECTORS | STRATEGY if followed else VECTORS,
        context=CONTEXT + tuple(name for name in STRATEGY if followed and name != "z"),
        scatter=tuple(
            Scatter(entities=f"{side}{part}", onto=f"{side}minimap", x=x, y=y)
            for side in ("", "critic.")
            for part, x, y in (("units", UNIT_X, UNIT_Y), ("effects", EFFECT_X, EFFECT_Y))
        ),
        temperatures=TEMPERATURES,
        central_critic=True,
    )
