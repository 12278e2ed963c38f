"""Connect four: seven columns of six cells, stones fall to the lowest free cell, four in a line win.

Seat 0 begins. The winner gets +1 and the loser -1; a full board without a line is a draw (0, 0).
Each seat sees its own stones and the other's as 42 + 42 flags, row by row from the bottom, and with `threats` the
columns where it wins at once (7) and where the other seat would (7).

Positions are bitboards: the cell in column c and row r (0 at the bottom) is bit 7 * c + r. Bit 7 * c + 6 stays
empty, so that no line runs from one column into the next. `winning_cells` and `playable_cells` take Python ints
(search) and uint64 arrays (many tables) alike; numpy's stubs believe that uint64 & int is signed, hence their ignores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import OVER
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import GreedyBot, RandomBot
from ludus.games.game import Actions, Bot, GameBatch, Seat
from ludus.games.pictures import draw_board
from ludus.games.search import UctBot
from ludus.games.tables import CopiedTables, GameDefaults

COLUMNS = 7
ROWS = 6
CELLS = COLUMNS * ROWS
COLUMN_BITS = ROWS + 1
BOTTOM = sum(1 << (COLUMN_BITS * column) for column in range(COLUMNS))
BOARD = BOTTOM * ((1 << ROWS) - 1)
COLUMN_CELLS = tuple(((1 << ROWS) - 1) << (COLUMN_BITS * column) for column in range(COLUMNS))
CELL_BITS = tuple(COLUMN_BITS * column + row for row in range(ROWS) for column in range(COLUMNS))
"""Bit of each cell, in the order of the observation."""

Bitboards = NDArray[np.uint64]
Bits = TypeVar("Bits", int, Bitboards)

COLUMN_CELLS_ARRAY: Bitboards = np.array(COLUMN_CELLS, np.uint64)
_VERTICAL = 1
_SIDEWAYS = (COLUMN_BITS - 1, COLUMN_BITS, COLUMN_BITS + 1)
_GATHER = sum(1 << (CELLS - ROWS * column) for column in range(COLUMNS))
_CELL_WEIGHTS = np.array([1 << bit for bit in CELL_BITS], np.float64)

_THREATS = (np.arange(1 << 2 * COLUMNS)[:, None] >> np.arange(2 * COLUMNS) & 1).astype(np.float32)
"""The threats part for every 14-bit code: own winning columns, then the other's."""

_CENTRALITY = np.array([0, 1, 2, 3, 2, 1, 0])
_POSITIONS_AT_ONCE = 1 << 15  # bounds the memory of a deep search and keeps its arrays in the cache


@dataclass(frozen=True, kw_only=True)
class ConnectFour(GameDefaults):
    """There is no game tree to walk, with 4.5e12 positions; search starts from `tree_state` of a table."""

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.board_games:TensorConnectFour.of"
    threats: bool = True
    """Show the columns where a seat wins at once."""

    @cached_property
    def spec(self) -> GameSpec:
        parts = {"board": Vector(size=2 * CELLS)}
        if self.threats:
            parts["threats"] = Vector(size=2 * COLUMNS)
        return GameSpec.symmetric(
            name="connect_four",
            num_seats=2,
            observation=ObservationSpec(parts=parts),
            action=ActionSpec(heads={"move": Choice(num=COLUMNS)}),
            max_length=CELLS,
            hidden_information=False,
            chance=False,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return ConnectFourTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {
            "random": RandomBot(),
            "rules": ConnectFourRules(),
            "alpha_beta_2": ConnectFourAlphaBeta(depth=2),
            "alpha_beta_4": ConnectFourAlphaBeta(depth=4),
            "uct_100": UctBot(simulations=100),
            "uct_1000": UctBot(simulations=1000),
        }


class ConnectFourTables(CopiedTables):
    """Both seats' rows are updated in place: a stone changes one flag in each, threats are recomputed.

    State and the hot parts of the view are flat; `2 * table + seat` addresses a seat in them.
    """

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self._stones = np.zeros(2 * num_tables, np.uint64)
        self._winning = np.zeros(2 * num_tables, np.uint64)
        self._heights = np.zeros(COLUMNS * num_tables, np.int64)
        self._ply = np.zeros(num_tables, np.int64)
        self._board = self.view.observation[0]["board"].reshape(-1)
        self._reward = self.view.reward.reshape(-1)
        self._to_act = self.view.to_act.reshape(-1)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        """The game has no chance, so the seeds change nothing."""
        self._ply[tables] = 0
        for state in (self._stones, self._winning, self._heights):
            state.reshape(self.num_tables, -1)[tables] = 0
        view = self.view
        for shown in (*view.observation[0].values(), view.reward, view.score, view.over):
            shown[tables] = 0
        view.legal[0]["move"][tables] = True
        view.to_act[tables] = (True, False)

    def step(self, actions: Actions) -> None:
        tables = np.flatnonzero(~self.view.over)
        ply = self._ply[tables]
        mover = 2 * tables + (ply & 1)
        column = actions[0]["move"].reshape(-1)[mover].astype(np.int64)
        self._require_legal("move", tables, ply & 1, column)
        slot = COLUMNS * tables + column
        height = self._heights[slot]
        self._heights[slot] = height + 1
        self._ply[tables] = ply + 1

        won = self._place(mover, column, height)
        over = won | (ply == CELLS - 1)
        self._end(tables, mover, won, over)
        full = height == ROWS - 1
        self.view.legal[0]["move"][tables[full], :, column[full]] = False
        if "threats" in self.view.observation[0]:  # at all tables: selecting those that changed would cost more
            stones = self._stones.reshape(-1, 2)
            reach = playable_cells(stones[:, 0] | stones[:, 1])
            wins = column_codes(self._winning.reshape(-1, 2) & reach[:, None])
            np.take(_THREATS, wins | wins[:, ::-1] << COLUMNS, axis=0, out=self.view.observation[0]["threats"])

    def _place(self, mover: IntArray, column: IntArray, height: IntArray) -> NDArray[np.bool_]:
        """Place the stones; returns whether each mover has won."""
        other = mover ^ 1
        cell = np.left_shift(np.uint64(1), (COLUMN_BITS * column + height).astype(np.uint64))
        won: NDArray[np.bool_] = (self._winning[mover] & cell) != 0
        own = self._stones[mover] | cell
        self._stones[mover] = own
        self._winning[mover] = winning_cells(own, own | self._stones[other])
        self._winning[other] &= ~cell

        flag = COLUMNS * height + column
        self._board[2 * CELLS * mover + flag] = 1.0
        self._board[2 * CELLS * other + CELLS + flag] = 1.0
        return won

    def _end(self, tables: IntArray, mover: IntArray, won: NDArray[np.bool_], over: NDArray[np.bool_]) -> None:
        view = self.view
        view.over[tables] = over
        self._to_act[mover] = False
        self._to_act[mover ^ 1] = ~over
        self._reward[mover] = won
        self._reward[mover ^ 1] = -won.astype(np.float32)
        ended = tables[over]
        view.score[ended] = view.reward[ended]

    def _state(self) -> Tree:
        flat = {"stones": self._stones, "winning": self._winning, "heights": self._heights, "ply": self._ply}
        return {name: array.reshape(self.num_tables, -1) for name, array in flat.items()}

    def tree_state(self, table: int) -> ConnectFourState:
        mover = int(self._ply[table]) & 1
        row = 2 * table + mover
        threats = "threats" in self.view.observation[0]
        return ConnectFourState(int(self._stones[row]), int(self._stones[row ^ 1]), threats)

    def render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        own, other = self.view.observation[0]["board"][table, 0].reshape(2, ROWS, COLUMNS)[:, ::-1]
        return draw_board(own, other)


@dataclass(frozen=True, slots=True)
class ConnectFourState:
    """A position for search, as two bitboards."""

    mover: int
    """Stones of the seat to move."""
    other: int
    threats: bool = True

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
            # `has_four` inlined: the call would take longer than the rest of the move.
            if (
                ((pairs := other & other >> 7) and pairs & pairs >> 14)
                or ((pairs := other & other >> 6) and pairs & pairs >> 12)
                or ((pairs := other & other >> 8) and pairs & pairs >> 16)
                or ((pairs := other & other >> 1) and pairs & pairs >> 2)
            ):
                break
        return ConnectFourState(mover, other).returns()


@dataclass(frozen=True, kw_only=True)
class ConnectFourRules(GreedyBot):
    """Wins at once if it can, else blocks an immediate win, else plays nearest the centre; ties at random."""

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

    It searches in full width: each further ply costs a factor of seven (some tens of microseconds a row at depth 4).
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
    """[positions, COLUMNS]: the outcome of each move within `depth` plies, for the seat to move.

    A win with k plies of the depth left counts k + 1, a loss -(k + 1), anything else and full columns 0.
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


def _seen_boards(observation: Tree) -> tuple[Bitboards, Bitboards]:
    board = observation["board"]
    return pack_stones(board[:, :CELLS]), pack_stones(board[:, CELLS:])


def playable_cells(stones: Bits) -> Bits:
    """The cells where the next stone would land, given the stones of both seats."""
    return (stones + BOTTOM) & BOARD  # type: ignore[return-value]


def winning_cells(own: Bits, stones: Bits) -> Bits:
    """The empty cells that would complete four of `own`, whether or not a stone can land there yet."""
    found = (own << 1) & (own << 2) & (own << 3)
    for step in _SIDEWAYS:
        right, left = own << step, own >> step
        two_right, two_left = right & (own << 2 * step), left & (own >> 2 * step)
        found |= two_right & ((own << 3 * step) | left)
        found |= two_left & ((own >> 3 * step) | right)
    return found & (stones ^ BOARD)  # type: ignore[return-value]


def has_four(own: int) -> bool:
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
    """The columns in which a cell lies, as seven bits, for boards with at most one cell per column."""
    bottom = cells | cells >> 3
    bottom = (bottom | bottom >> 1 | bottom >> 2) & BOTTOM
    # The product moves bit 7 * c, of column c, to bit 42 + c; no two terms collide there.
    return (bottom * _GATHER >> CELLS & (1 << COLUMNS) - 1).astype(np.int64)


def columns_hit(cells: Bitboards) -> NDArray[np.bool_]:
    """[..., COLUMNS]: the columns in which any of the cells lies."""
    hit: NDArray[np.bool_] = (cells[..., None] & COLUMN_CELLS_ARRAY) != 0
    return hit
