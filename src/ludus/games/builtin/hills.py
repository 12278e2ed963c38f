"""Hills, a small team game: two teams of two seats fight over two hills on a grid of five by five cells.

Seats 0 and 1 are team 0, seats 2 and 3 team 1. They start on four different cells drawn by the seed. In each of 24
rounds all four seats stay or step to a neighbouring cell at once; a cell holds any number of seats. Then each hill pays
1/48 to both seats of the team with more seats on it and takes as much from the other team, so holding both hills
throughout scores 1. After every eighth round the two hills move to different cells drawn by the seed.
A seat sees itself, its mate and the hills, but rivals only up to two cells away (also diagonally); the critic
sees all rivals. Two seats win a hill against one, but then leave the other hill open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import CRITIC_PREFIX, ActionSpec, Choice, GameSpec, ObservationSpec, Planes, Vector
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import GreedyBot, RandomBot
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.seeding import deal, mix
from ludus.games.tables import ArrayTables, GameDefaults

WIDTH = 5
CELLS = WIDTH * WIDTH
HILLS = 2
SEATS = 4
ROUNDS = 24
ROUNDS_PER_HILL = 8
SIGHT = 2
MOVES = ((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0))  # stay, up, down, left, right, as steps in (x, y)

_MATE = np.array([1, 0, 3, 2])
_RIVALS = np.array([[2, 3], [2, 3], [0, 1], [0, 1]])
_SIGN = np.array([1, 1, -1, -1], np.float32)
_X, _Y = np.arange(CELLS) % WIDTH, np.arange(CELLS) // WIDTH
_DX, _DY = np.abs(_X[:, None] - _X), np.abs(_Y[:, None] - _Y)
_STEPS = _DX + _DY  # [cell, cell]: steps between two cells
_IN_SIGHT = np.maximum(_DX, _DY) <= SIGHT


def _destinations() -> tuple[IntArray, NDArray[np.bool_]]:
    """[cell, move]: the cell that a move leads to, and whether it is on the grid."""
    x = _X[:, None] + np.array([move[0] for move in MOVES])
    y = _Y[:, None] + np.array([move[1] for move in MOVES])
    inside = (x >= 0) & (x < WIDTH) & (y >= 0) & (y < WIDTH)
    return np.where(inside, y * WIDTH + x, 0), inside


_NEXT, _ON_GRID = _destinations()


@dataclass(frozen=True, kw_only=True)
class Hills(GameDefaults):
    """No options."""

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="hills",
            num_seats=SEATS,
            teams=(0, 0, 1, 1),
            observation=ObservationSpec(
                parts={"map": Planes(channels=4, height=WIDTH, width=WIDTH), "time": Vector(size=2)},
                critic={"rivals": Planes(channels=1, height=WIDTH, width=WIDTH)},
            ),
            action=ActionSpec(heads={"move": Choice(num=len(MOVES))}),
            max_length=ROUNDS,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return HillsTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), "spread": HillWalker(together=False), "together": HillWalker(together=True)}


class HillsTables(ArrayTables):
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self._seeds = np.zeros(num_tables, np.uint64)
        self._round = np.zeros(num_tables, np.int64)
        self._cells = np.zeros((num_tables, SEATS), np.int64)
        self._hills = np.zeros((num_tables, HILLS), np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        self._seeds[tables] = seeds
        self._round[tables] = 0
        self._cells[tables] = deal(mix(seeds, 0), 0, CELLS, SEATS)
        self._raise_hills(tables)
        self._show(tables)

    def _raise_hills(self, tables: IntArray) -> None:
        epoch = self._round[tables] // ROUNDS_PER_HILL
        self._hills[tables] = deal(mix(self._seeds[tables], 1 + epoch), 0, CELLS, HILLS)

    def step(self, actions: Actions) -> None:
        view = self.view
        tables = np.flatnonzero(~view.over)
        moves = actions[0]["move"][tables]
        self._require_legal("move", tables[:, None], np.arange(SEATS), moves)
        cells = _NEXT[self._cells[tables], moves]
        self._cells[tables] = cells
        self._round[tables] += 1

        standing = cells[:, :, None] == self._hills[tables][:, None, :]
        margin = standing[:, :2].sum(axis=1) - standing[:, 2:].sum(axis=1)
        gain = np.sign(margin).sum(axis=1).astype(np.float32) / np.float32(HILLS * ROUNDS)
        view.reward[tables] = gain[:, None] * _SIGN
        view.score[tables] += view.reward[tables][:, ::2]

        over = self._round[tables] == ROUNDS
        view.over[tables] = over
        view.to_act[tables] = ~over[:, None]
        self._raise_hills(tables[self._round[tables] % ROUNDS_PER_HILL == 0])
        self._show(tables)

    def _show(self, tables: IntArray) -> None:
        cells, hills, rounds = self._cells[tables], self._hills[tables], self._round[tables]
        own, rivals = np.identity(CELLS, np.float32)[cells], cells[:, _RIVALS]
        everyone = _flags(rivals)
        seen = _flags(rivals, _IN_SIGHT[cells[:, :, None], rivals])
        hill = np.broadcast_to(_flags(hills)[:, None], own.shape)
        planes = np.stack([own, own[:, _MATE], seen, hill], axis=2)
        observation, legal = self.view.observation[0], self.view.legal[0]
        observation["map"][tables] = planes.reshape(-1, SEATS, 4, WIDTH, WIDTH)
        observation[CRITIC_PREFIX + "rivals"][tables] = everyone.reshape(-1, SEATS, 1, WIDTH, WIDTH)
        time_left = 1.0 - rounds / ROUNDS
        hill_left = 1.0 - rounds % ROUNDS_PER_HILL / ROUNDS_PER_HILL
        observation["time"][tables] = np.stack([time_left, hill_left], axis=1)[:, None]
        legal["move"][tables] = _ON_GRID[cells]


def _flags(cells: IntArray, counted: NDArray[np.bool_] | bool = True) -> NDArray[np.float32]:
    """[..., CELLS] from [..., things]: 1 where one of the counted things stands."""
    counted = np.broadcast_to(counted, cells.shape)
    flags = np.zeros((*cells.shape[:-1], CELLS + 1), np.float32)
    np.put_along_axis(flags, np.where(counted, cells, CELLS), 1.0, axis=-1)
    return flags[..., :CELLS]


@dataclass(frozen=True, kw_only=True)
class HillWalker(GreedyBot):
    """Walks to a hill by a shortest path, with random ties, and stays there.

    With `together`, both mates take the hill with the smaller sum of their paths (the first hill on a tie).
    Otherwise each mate takes one hill, so that the sum of their paths is smaller.
    """

    together: bool

    def values(self, observation: Tree) -> Array:
        planes = observation["map"].reshape(-1, 4, CELLS)
        own, mate = planes[:, 0].argmax(axis=1), planes[:, 1].argmax(axis=1)
        hills = np.stack([planes[:, 3].argmax(axis=1), CELLS - 1 - planes[:, 3, ::-1].argmax(axis=1)])
        mine, theirs = _STEPS[own, hills], _STEPS[mate, hills]
        if self.together:
            pick = np.argmin(mine + theirs, axis=0)
        else:
            cost = mine + theirs[::-1]
            # On equal cost the mate on the lower cell takes the first hill, so that mates agree; on the
            # same cell both take it.
            pick = np.where(cost[0] == cost[1], own > mate, np.argmin(cost, axis=0))
        target = hills[pick, np.arange(len(own))]
        nearness: Array = -_STEPS[_NEXT[own], target[:, None]]
        return nearness
