"""Connect four as bitboards: the cell in column c and row r (0 at the bottom) is bit 7 * c + r.

Bit 7 * c + 6 stays empty, so that no line runs from one column into the next. `winning_cells` and
`playable_cells` take Python ints (search) and numpy uint64 arrays (many tables) alike; numpy's stubs believe
that uint64 & int is signed, hence their ignores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.tree import OVER
from ludus.data.trees import Array, IntArray, Tree

COLUMNS = 7
ROWS = 6
CELLS = COLUMNS * ROWS
COLUMN_BITS = ROWS + 1
BOTTOM = sum(1 << (COLUMN_BITS * column) for column in range(COLUMNS))
BOARD = BOTTOM * ((1 << ROWS) - 1)
COLUMN_CELLS = tuple(((1 << ROWS) - 1) << (COLUMN_BITS * column) for column in range(COLUMNS))
CELL_BITS = tuple(COLUMN_BITS * column + row for row in range(ROWS) for column in range(COLUMNS))
"""Bit of each cell in the order of the observation: row by row from the bottom."""

Bitboards = NDArray[np.uint64]
Bits = TypeVar("Bits", int, Bitboards)

COLUMN_CELLS_ARRAY: Bitboards = np.array(COLUMN_CELLS, np.uint64)
_VERTICAL = 1
_SIDEWAYS = (COLUMN_BITS - 1, COLUMN_BITS, COLUMN_BITS + 1)
_GATHER = sum(1 << (CELLS - ROWS * column) for column in range(COLUMNS))
_CELL_WEIGHTS = np.array([1 << bit for bit in CELL_BITS], np.float64)


def playable_cells(stones: Bits) -> Bits:
    """The cells where the next stone would land, given the stones of both seats."""
    return (stones + BOTTOM) & BOARD  # type: ignore[return-value]


def winning_cells(own: Bits, stones: Bits) -> Bits:
    """The empty cells that would complete four of `own`, whether or not they can be reached yet."""
    found = (own << 1) & (own << 2) & (own << 3)
    for step in _SIDEWAYS:
        right, left = own << step, own >> step
        two_right, two_left = right & (own << 2 * step), left & (own >> 2 * step)
        found |= two_right & ((own << 3 * step) | left)
        found |= two_left & ((own >> 3 * step) | right)
    return found & (stones ^ BOARD)  # type: ignore[return-value]


def has_four(own: int) -> bool:
    """Whether `own` holds four in a line."""
    for step in (_VERTICAL, *_SIDEWAYS):
        pairs = own & (own >> step)
        if pairs & (pairs >> 2 * step):
            return True
    return False


def pack_stones(planes: Array) -> Bitboards:
    """Bitboards of the observation's planes [..., CELLS]; a float64 holds the 48 bits exactly."""
    boards: Bitboards = (planes @ _CELL_WEIGHTS).astype(np.uint64)
    return boards


def column_codes(cells: Bitboards) -> IntArray:
    """Seven bits: the columns in which a cell lies, for boards with at most one cell in a column."""
    bottom = cells | cells >> 3
    bottom = (bottom | bottom >> 1 | bottom >> 2) & BOTTOM
    # Moves the bit of column c, which is bit 7 * c, to bit 42 + c; no two products meet below that.
    return (bottom * _GATHER >> CELLS & (1 << COLUMNS) - 1).astype(np.int64)


def columns_hit(cells: Bitboards) -> NDArray[np.bool_]:
    """[..., COLUMNS]: the columns in which any of the cells lies."""
    hit: NDArray[np.bool_] = (cells[..., None] & COLUMN_CELLS_ARRAY) != 0
    return hit


@dataclass(frozen=True, slots=True)
class ConnectFourState:
    """A position for search, as two bitboards."""

    mover: int
    """Stones of the seat to move."""
    other: int
    threats: bool = True
    """Whether the game shows threats."""

    @property
    def stones(self) -> int:
        return self.mover | self.other

    def seat(self) -> int:
        if has_four(self.other) or self.stones == BOARD:
            return OVER
        return self.stones.bit_count() & 1

    def legal_actions(self) -> Sequence[int]:
        free = self.stones ^ BOARD
        return [column for column, cells in enumerate(COLUMN_CELLS) if free & cells]

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        raise ValueError("connect four has no chance")

    def child(self, action: int) -> ConnectFourState:
        landing = playable_cells(self.stones) & COLUMN_CELLS[action]
        return ConnectFourState(self.other, self.mover | landing, self.threats)

    def returns(self) -> Sequence[float]:
        if not has_four(self.other):
            return (0.0, 0.0)
        return (-1.0, 1.0) if self.stones.bit_count() & 1 == 0 else (1.0, -1.0)

    def information_state(self) -> tuple[int, int]:
        return self.mover, self.other

    def observation(self) -> Tree:
        pair = (self.mover, self.other)
        parts = {"board": np.array([own >> bit & 1 for own in pair for bit in CELL_BITS], np.float32)}
        if self.threats:
            reach = playable_cells(self.stones)
            wins = [winning_cells(own, self.stones) & reach for own in pair]
            parts["threats"] = np.array([win & cells != 0 for win in wins for cells in COLUMN_CELLS], np.float32)
        return parts

    def rollout(self, random: Random) -> Sequence[float]:
        """Random moves to the end on bare ints, several times faster than child by child."""
        mover, other = self.mover, self.other
        stones = mover | other
        draw = random.random
        while stones != BOARD:
            landing = 0
            while not landing:
                landing = (stones + BOTTOM) & COLUMN_CELLS[int(draw() * COLUMNS)]
            mover, other = other, mover | landing
            stones |= landing
            # `has_four`, written out: its call would take longer than the rest of the move.
            if (
                ((pairs := other & other >> 7) and pairs & pairs >> 14)
                or ((pairs := other & other >> 6) and pairs & pairs >> 12)
                or ((pairs := other & other >> 8) and pairs & pairs >> 16)
                or ((pairs := other & other >> 1) and pairs & pairs >> 2)
            ):
                break
        return ConnectFourState(mover, other).returns()
