"""StarCraft II's mini-game MoveToBeacon through PySC2, as `beacon`; needs the game (docs/starcraft.md)."""

from __future__ import annotations

from ludus.algorithms.ppo import PPO
from ludus.data.schedules import Linear
from ludus.experiment import Experiment
from ludus.games.adapters.pysc2 import PySC2
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.fully_conv import FullyConv
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def experiment() -> Experiment:
    return Experiment(
        name="sc2_beacon",
        game=PySC2(
            map_name="MoveToBeacon",
            races=("terran",),
            screen=64,
            screen_layers=("player_relative", "selected", "unit_density"),
            minimap_layers=(),  # the whole map is on the screen
            functions=("select_army", "Move_screen"),
        ),
        budget=600_000,
        model=FullyConv(channels=(16, 16), stride=4, hidden=(128,)),
        algorithm=PPO(gamma=0.95, lambda_=0.9, clip=0.2, entropy=0.001),
        # A table is a process of the game, with about a core and a gigabyte.
        actor=ActorConfig(num_tables=8, matches=1, episodes_per_table=2, unroll_length=32),
        learner=LearnerConfig(
            batch_size=2_048,
            minibatch_size=512,
            epochs=2,
            learning_rate=Linear(start=2e-3, end=1e-4),
            average_decay=0.9,
            buffer_size=16_384,
        ),
        league=LeagueRules(roles={"main": Role(promotion=BySteps(every=50_000))}),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=32),
        checkpoint_every=50_000,
    )
