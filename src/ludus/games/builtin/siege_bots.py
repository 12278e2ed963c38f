"""A scripted player for both seats of siege; it reads nothing but the observation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import Rows
from ludus.games.builtin.siege_orders import HOLD, MARCH, RAID, STORM
from ludus.games.game import GameBatch

_VALUE, _WALLS, _STANDS, _GUARDED, _STORMED = range(5)
"""Features of a town; the defender alone sees the last."""
_ONE_WALL = 1 / 3


@dataclass(frozen=True, kw_only=True)
class SiegeRules:
    """Attacker: raids the unguarded town with the most value per wall; if `storms`, storms two walls or more.

    Defender: marches to a town that is stormed, else to the one with the most value per wall, and holds
    where it is wanted already. Ties are broken at random.
    """

    storms: bool = False

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        towns, standing = rows.observation["towns"], rows.mask("target")
        worth = towns[:, :, _VALUE] / np.maximum(towns[:, :, _WALLS], _ONE_WALL)
        guarded = towns[:, :, _GUARDED] > 0
        if rows.kind.name == "attacker":
            target = _best(worth - 10 * guarded, standing, rng)
            walls = np.take_along_axis(towns[:, :, _WALLS], target[:, None], axis=1)[:, 0]
            order = np.where(self.storms & (walls > 1.5 * _ONE_WALL), STORM, RAID)
            return _actions(order=order, target=target, pause=np.zeros_like(target))
        target = _best(worth + 10 * towns[:, :, _STORMED], standing, rng)
        there = np.take_along_axis(guarded, target[:, None], axis=1)[:, 0]
        return _actions(order=np.where(there, HOLD, MARCH), target=target)


def _best(worth: Array, standing: NDArray[np.bool_], rng: np.random.Generator) -> Array:
    """[rows]: a town of the highest worth, at random among equals."""
    worth = np.where(standing, worth, -np.inf)
    equals = worth >= worth.max(axis=1, keepdims=True) - 1e-3
    best: Array = np.where(equals, rng.random(equals.shape), -1.0).argmax(axis=1)
    return best


def _actions(**heads: Array) -> Tree:
    return {name: values.astype(np.int32) for name, values in heads.items()}
