"""Scripted players of skirmish, commanders of a side and heroes. They read only the observation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import Rows
from ludus.games.builtin import skirmish_rules as rules, skirmish_view as view
from ludus.games.game import GameBatch

ORDER_TICKS = 2  # ticks between two orders of a commander
IDLE_TICKS = (3, 6)  # least and most ticks before an idle commander looks again
REINFORCEMENTS = 2  # idle fighters that follow an army together

_HOME_CELL = int(rules.HOME / rules.CELL)
_NEAR = 2.5  # a hero within this many cells of its goal, along each axis, stays
_HEALED = 0.6  # a hero that heals at home stays until it has this share of its health
LOOK_TICKS = (3, 8)  # least and most ticks between two decisions of a hero


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Trains up to `workers` workers, then fighters in the proportions of `trains`; attacks when `army` are idle."""

    workers: int
    trains: tuple[int, ...]
    army: int

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        entities, own = rows.observation["entities"], rows.mask("units")
        allowed = rows.mask("action")
        kind = entities[:, :, view.KIND]
        idle = own & ~entities[:, :, view.ORDER : view.ORDER + rules.GATHER].any(axis=2)
        idle_workers = idle & (kind == rules.WORKER)
        x, y = _enemy_base(entities)
        # A fighter at the enemy's base fights there without a further order.
        there = (entities[:, :, view.X] - x) ** 2 + (entities[:, :, view.Y] - y) ** 2 <= (rules.NOTICE / rules.MAP) ** 2
        fighter = own & np.isin(kind, rules.FIGHTERS)
        ready = idle & fighter & ~there
        gone = fighter & (there | (entities[:, :, view.ORDER + rules.ADVANCE - 1] > 0))
        enough = np.where(gone.any(axis=1), REINFORCEMENTS, self.army)

        action = np.zeros(len(rows), np.int64)
        action[ready.sum(axis=1) >= enough] = rules.ADVANCE
        train = self._train(rows.observation["scalars"])
        trains = allowed[np.arange(len(rows)), train]
        action[trains] = train[trains]
        action[idle_workers.any(axis=1)] = rules.GATHER
        units = np.where((action == rules.GATHER)[:, None], idle_workers, ready)
        in_use = (action == rules.GATHER) | (action == rules.ADVANCE)
        looks = rng.integers(*IDLE_TICKS, len(rows), endpoint=True)
        delay = np.where(action == rules.NO_OP, looks, ORDER_TICKS) - 1
        return {
            "action": action.astype(np.int32),
            "delay": delay.astype(np.int32),
            "units": _first_picks(units & in_use[:, None]),
            "target_unit": np.zeros(len(rows), np.int32),
            "target_point": view.cells_of(x * rules.MAP, y * rules.MAP)[:, 0].astype(np.int32),
        }

    def _train(self, scalars: Array) -> IntArray:
        """[rows]: the action that trains the most needed kind."""
        counts = scalars[:, view.COUNTS] * view.COUNT_UNIT + scalars[:, view.QUEUED] * rules.QUEUE
        kinds = sorted(set(self.trains))
        have = np.stack([counts[:, kind - rules.WORKER] / self.trains.count(kind) for kind in kinds], axis=1)
        fighters = np.array([rules.TRAIN[kind] for kind in kinds])[have.argmin(axis=1)]
        wanted: IntArray = np.where(counts[:, 0] < self.workers - 0.5, rules.TRAIN[rules.WORKER], fighters)
        return wanted


def _first_picks(units: NDArray[np.bool_]) -> NDArray[np.int32]:
    """[rows, PICKS]: the first units of each row, then -1."""
    order = np.argsort(~units, axis=1, kind="stable")[:, : rules.PICKS]
    return np.where(np.take_along_axis(units, order, axis=1), order, -1).astype(np.int32)


def _enemy_base(entities: Array) -> tuple[Array, Array]:
    """x and y [rows, 1] of the enemy's base, opposite to the own one, as shares of the map."""
    base = ((entities[:, :, view.KIND] == rules.BASE) & (entities[:, :, view.OWN] > 0)).argmax(axis=1)[:, None]
    x, y = (1.0 - np.take_along_axis(entities[:, :, axis], base, axis=1) for axis in (view.X, view.Y))
    return x, y


STRATEGIES: Mapping[str, Strategy] = {
    "rush": Strategy(workers=4, trains=(rules.HORSE,), army=3),
    "spears": Strategy(workers=8, trains=(rules.SPEAR,), army=8),
    "horses": Strategy(workers=8, trains=(rules.HORSE,), army=8),
    "bows": Strategy(workers=8, trains=(rules.BOW,), army=8),
    "boom": Strategy(workers=14, trains=(rules.SPEAR, rules.HORSE, rules.BOW), army=12),
}
CYCLE = ("rush", "boom", "spears", "horses", "bows")
"""Each strategy beats the next, and the last beats the first (measured by benchmarks/skirmish.py)."""


@dataclass(frozen=True, kw_only=True)
class HeroStrategy:
    """Attacks the enemy's base; for the first share `waits` of the time it goes only the share `stand` of the way.

    `hunts`: attacks the nearest visible enemy hero first. `retreats`: goes home to heal below this health.
    """

    stand: float = 1.0
    waits: float = 0.0
    hunts: bool = False
    retreats: float = 0.0

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        entities, scalars = rows.observation["entities"], rows.observation["scalars"]
        x, y, health = (scalars[:, view.SCALARS + place] for place in range(view.HERO_SCALARS))
        prey = rows.mask("target_unit") & (entities[:, :, view.HERO] > 0) & (entities[:, :, view.ENEMY] > 0)
        apart = (entities[:, :, view.X] - x[:, None]) ** 2 + (entities[:, :, view.Y] - y[:, None]) ** 2
        target = np.where(prey, apart, np.inf).argmin(axis=1)

        to_home = np.maximum(np.abs(x * rules.CELLS - _HOME_CELL), np.abs(y * rules.CELLS - _HOME_CELL))
        heals = (to_home <= _NEAR) & (health < _HEALED)
        hurt = (health < self.retreats) | (heals & (self.retreats > 0))
        far = rules.CELLS - 1 - _HOME_CELL
        stand = round(_HOME_CELL + self.stand * (far - _HOME_CELL))
        cell = np.where(hurt, _HOME_CELL, np.where(scalars[:, view.TIME] > 1.0 - self.waits, stand, far))
        wanted = np.where(hurt, rules.MOVE, np.where(self.hunts & prey.any(axis=1), rules.ATTACK, rules.ADVANCE))

        me = entities[np.arange(len(rows)), entities[:, :, view.SELF].argmax(axis=1)]
        given = me[np.arange(len(rows)), view.ORDER + wanted - 1] > 0
        off = np.maximum(np.abs(x * rules.CELLS - cell - 0.5), np.abs(y * rules.CELLS - cell - 0.5))
        arrived = (wanted != rules.ATTACK) & (off <= _NEAR)
        action = np.where(given | arrived, rules.NO_OP, wanted)
        allowed = rows.mask("action")
        if allowed.shape[1] > rules.SKILL:
            action = np.where(allowed[:, rules.SKILL], rules.SKILL, action)
        return {
            "action": action.astype(np.int32),
            "delay": (rng.integers(*LOOK_TICKS, len(rows), endpoint=True) - 1).astype(np.int32),
            "target_unit": np.where(action == rules.ATTACK, target, 0).astype(np.int32),
            "target_point": (cell * rules.CELLS + cell).astype(np.int32),
        }


HERO_STRATEGIES: Mapping[str, HeroStrategy] = {
    "push": HeroStrategy(),
    "hunt": HeroStrategy(hunts=True),
    "guard": HeroStrategy(stand=0.2, waits=0.4),
    "careful": HeroStrategy(retreats=0.3),
}
