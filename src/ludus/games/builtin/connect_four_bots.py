"""Scripted players of connect four, vectorised over rows; they read nothing but the observation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ludus.data.trees import Array, Tree
from ludus.games.builtin.connect_four_board import (
    BOARD,
    CELLS,
    COLUMN_CELLS_ARRAY,
    COLUMNS,
    Bitboards,
    columns_hit,
    pack_stones,
    playable_cells,
    winning_cells,
)
from ludus.games.greedy import GreedyBot

_CENTRALITY = np.array([0, 1, 2, 3, 2, 1, 0])
_POSITIONS_AT_ONCE = 1 << 15
"""Bounds the memory of a deep search, and keeps its arrays in the cache."""


def _seen_boards(observation: Tree) -> tuple[Bitboards, Bitboards]:
    """Own stones and the other's, per row."""
    board = observation["board"]
    return pack_stones(board[:, :CELLS]), pack_stones(board[:, CELLS:])


@dataclass(frozen=True, kw_only=True)
class ConnectFourRules(GreedyBot):
    """Wins at once if it can, else stops the other's immediate win, else plays nearest the centre.

    Ties (two wins, two cells to stop, the same distance) are broken at random.
    """

    def values(self, observation: Tree) -> Array:
        own, other = _seen_boards(observation)
        stones = own | other
        reach = playable_cells(stones)
        wins = columns_hit(winning_cells(own, stones) & reach)
        blocks = columns_hit(winning_cells(other, stones) & reach)
        return np.where(wins, 20, np.where(blocks, 10, _CENTRALITY))


@dataclass(frozen=True, kw_only=True)
class ConnectFourAlphaBeta(GreedyBot):
    """Plays one of the moves that `AlphaBetaBot(depth=depth)` plays, for all rows at once.

    The leaf score is 0, quick wins and slow losses are preferred, ties are broken at random. At depth 2
    it wins at once if it can and never lets the other win next. Full width on arrays needs no cut-offs:
    each extra ply costs a factor of seven (some tens of microseconds a row at depth 4).
    """

    depth: int

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"ConnectFourAlphaBeta.depth must be at least 1, got {self.depth}")

    def values(self, observation: Tree) -> Array:
        own, other = _seen_boards(observation)
        rows_at_once = max(1, _POSITIONS_AT_ONCE // COLUMNS ** (self.depth - 1))
        parts = [
            column_values(own[start : start + rows_at_once], other[start : start + rows_at_once], self.depth)
            for start in range(0, len(own), rows_at_once)
        ]
        return np.concatenate(parts)


def column_values(own: Bitboards, other: Bitboards, depth: int) -> Array:
    """[positions, COLUMNS]: how each move turns out within `depth` plies, for the one who moves.

    A win with k plies of the depth left counts k + 1, a loss -(k + 1), anything else 0. Full columns
    count 0; no position may hold a line already.
    """
    stones = own | other
    reach = playable_cells(stones)
    values = depth * columns_hit(winning_cells(own, stones) & reach).astype(np.int64)
    if depth == 1:
        return values
    landing = reach[:, None] & COLUMN_CELLS_ARRAY
    # A finished board (the last cell) is worth 0 as it stands.
    position, column = np.nonzero((landing != 0) & (values == 0) & ((stones[:, None] | landing) != BOARD))
    after = own[position] | landing[position, column]
    values[position, column] = -_best_value(other[position], after, depth - 1)
    return values


def _best_value(own: Bitboards, other: Bitboards, depth: int) -> Array:
    """[positions]: the value of the best move, as in `column_values`."""
    stones = own | other
    if depth == 1:
        wins: Array = (winning_cells(own, stones) & playable_cells(stones)) != 0
        return wins.astype(np.int64)
    full = playable_cells(stones)[:, None] & COLUMN_CELLS_ARRAY == 0
    values = column_values(own, other, depth)
    best: Array = np.where(full, -depth - 1, values).max(axis=1, initial=-depth - 1)
    return best
