"""Scripted heroes of skirmish; they read nothing but the observation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ludus.data.trees import IntArray, Tree
from ludus.games.bots import Rows
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_rules import ADVANCE, ATTACK, MOVE, NO_OP
from ludus.games.builtin.skirmish_view import ENEMY, HERO, HERO_SCALARS, ORDER, SCALARS, SELF, TIME, X, Y
from ludus.games.game import GameBatch

_HOME_CELL = int(rules.HOME / rules.CELL)
_NEAR = 2.5
"""A hero this near to where it wants to be stays, in cells along each axis."""
_HEALED = 0.6
"""A hero that went home to heal stays until it has this health."""
LOOK_TICKS = (3, 8)
"""A hero looks again after at least and at most so many ticks."""


@dataclass(frozen=True, kw_only=True)
class HeroStrategy:
    """Goes for the enemy's base, but for the share `waits` of the time only to `stand`, a share of the way.

    `hunts`: attacks the nearest enemy hero in sight first. `retreats`: with less health it goes home to heal.
    An order that it already carries out is not given again.
    """

    stand: float = 1.0
    waits: float = 0.0
    hunts: bool = False
    retreats: float = 0.0

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        entities, scalars = rows.observation["entities"], rows.observation["scalars"]
        x, y, health = (scalars[:, SCALARS + place] for place in range(HERO_SCALARS))
        prey = rows.mask("target_unit") & (entities[:, :, HERO] > 0) & (entities[:, :, ENEMY] > 0)
        apart = (entities[:, :, X] - x[:, None]) ** 2 + (entities[:, :, Y] - y[:, None]) ** 2
        target = np.where(prey, apart, np.inf).argmin(axis=1)

        to_home = np.maximum(np.abs(x * rules.CELLS - _HOME_CELL), np.abs(y * rules.CELLS - _HOME_CELL))
        heals = (to_home <= _NEAR) & (health < _HEALED)
        hurt = (health < self.retreats) | (heals & (self.retreats > 0))
        far = rules.CELLS - 1 - _HOME_CELL
        stand = round(_HOME_CELL + self.stand * (far - _HOME_CELL))
        cell = np.where(hurt, _HOME_CELL, np.where(scalars[:, TIME] > 1.0 - self.waits, stand, far))
        wanted = np.where(hurt, MOVE, np.where(self.hunts & prey.any(axis=1), ATTACK, ADVANCE))

        me = entities[np.arange(len(rows)), entities[:, :, SELF].argmax(axis=1)]
        given = me[np.arange(len(rows)), ORDER + wanted - 1] > 0
        off = np.maximum(np.abs(x * rules.CELLS - cell - 0.5), np.abs(y * rules.CELLS - cell - 0.5))
        arrived = (wanted != ATTACK) & (off <= _NEAR)
        action = np.where(given | arrived, NO_OP, wanted)
        return {
            "action": action.astype(np.int32),
            "delay": (rng.integers(*LOOK_TICKS, len(rows), endpoint=True) - 1).astype(np.int32),
            "target_unit": np.where(action == ATTACK, target, 0).astype(np.int32),
            "target_point": (cell * rules.CELLS + cell).astype(np.int32),
        }


HERO_STRATEGIES: Mapping[str, HeroStrategy] = {
    "push": HeroStrategy(),
    "hunt": HeroStrategy(hunts=True),
    "guard": HeroStrategy(stand=0.2, waits=0.4),
    "careful": HeroStrategy(retreats=0.3),
}
