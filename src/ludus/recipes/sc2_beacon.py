"""StarCraft II's mini-game MoveToBeacon through PySC2, as `beacon`; needs the game (docs/starcraft.md)."""

from __future__ import annotations

from dataclasses import replace

from ludus import BySteps, EvaluationConfig, Experiment, LeagueRules, Role
from ludus.games import PySC2
from ludus.recipes import beacon


def experiment() -> Experiment:
    base = beacon.experiment()
    return replace(
        base,
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
        # A table is a process of the game, with about a core and a gigabyte.
        actor=replace(base.actor, num_tables=8, matches=1),
        learner=replace(base.learner, schedule="sync"),
        league=LeagueRules(roles={"main": Role(promotion=BySteps(every=50_000))}),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=32),
        checkpoint_every=50_000,
    )
