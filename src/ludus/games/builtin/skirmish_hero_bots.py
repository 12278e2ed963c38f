"""Scripted heroes of skirmish; they read nothing but the observation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ludus.data.trees import IntArray, Tree
from ludus.games.bots import Rows
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_rules import ADVANCE, ATTACK, MOVE
from ludus.games.builtin.skirmish_view import ENEMY, HERO, HERO_SCALARS, SCALARS, X, Y
from ludus.games.game import GameBatch

_HOME_CELL = int(rules.HOME / rules.CELL)


@dataclass(frozen=True, kw_only=True)
class HeroStrategy:
    """Advances along the diagonal to `stand`, a share of the way from its base to the enemy's.

    `hunts`: attacks the nearest enemy hero in sight first. `retreats`: below this health it goes home.
    """

    stand: float
    hunts: bool = False
    retreats: float = 0.0

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        entities, scalars = rows.observation["entities"], rows.observation["scalars"]
        x, y, health = (scalars[:, SCALARS + place, None] for place in range(HERO_SCALARS))
        prey = rows.mask("target_unit") & (entities[:, :, HERO] > 0) & (entities[:, :, ENEMY] > 0)
        apart = (entities[:, :, X] - x) ** 2 + (entities[:, :, Y] - y) ** 2
        target = np.where(prey, apart, np.inf).argmin(axis=1)
        hunts = self.hunts & prey.any(axis=1)
        hurt = health[:, 0] < self.retreats
        far = rules.CELLS - 1 - _HOME_CELL
        cell = np.where(hurt, _HOME_CELL, round(_HOME_CELL + self.stand * (far - _HOME_CELL)))
        action = np.where(hurt, MOVE, np.where(hunts, ATTACK, ADVANCE))
        return {
            "action": action.astype(np.int32),
            "delay": rng.integers(2, rules.LONGEST_DELAY, len(rows), np.int32),
            "target_unit": np.where(action == ATTACK, target, 0).astype(np.int32),
            "target_point": (cell * rules.CELLS + cell).astype(np.int32),
        }


HERO_STRATEGIES: Mapping[str, HeroStrategy] = {
    "push": HeroStrategy(stand=1.0),
    "hunt": HeroStrategy(stand=0.5, hunts=True),
    "guard": HeroStrategy(stand=0.15),
    "careful": HeroStrategy(stand=1.0, hunts=True, retreats=0.3),
}
