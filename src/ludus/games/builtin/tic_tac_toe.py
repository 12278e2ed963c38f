"""Tic-tac-toe: three by three cells, three in a line win.

Seat 0 begins. The winner gets +1 and the loser -1; a full board without a line is a draw (0, 0).
Each seat sees its own marks and the other's as 9 + 9 flags, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import OVER
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import GreedyBot, RandomBot
from ludus.games.game import Actions, Bot, GameBatch, Seat
from ludus.games.pictures import draw_board
from ludus.games.search import AlphaBetaBot, PerfectBot, UctBot
from ludus.games.tables import CopiedTables

CELLS = 9
FULL = (1 << CELLS) - 1
LINES = (0o007, 0o070, 0o700, 0o111, 0o222, 0o444, 0o124, 0o421)
"""As octal digits: each digit is a row, and cells 0 to 2 are the top row."""
_CELL = 1 << np.arange(CELLS)
_HAS_LINE = np.array([any(marks & line == line for line in LINES) for marks in range(FULL + 1)])
_WINNING_CELLS = _HAS_LINE[np.arange(FULL + 1)[:, None] | _CELL]
"""[marks, cells]: whether a mark there completes a line (the cell may be taken)."""
_CENTRALITY = np.array([2, 1, 2, 1, 3, 1, 2, 1, 2])  # the centre before corners before sides


@dataclass(frozen=True, kw_only=True)
class TicTacToe:
    """No options."""

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.board_games:TensorTicTacToe.of"

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="tic_tac_toe",
            num_seats=2,
            observation=ObservationSpec(parts={"board": Vector(size=2 * CELLS)}),
            action=ActionSpec(heads={"move": Choice(num=CELLS)}),
            max_length=CELLS,
            hidden_information=False,
            chance=False,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return TicTacToeTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {
            "random": RandomBot(),
            "rules": TicTacToeRules(),
            "alpha_beta_2": AlphaBetaBot(depth=2),
            "perfect": PerfectBot(),
            "uct_100": UctBot(simulations=100),
        }

    def tree(self) -> TicTacToeState:
        return TicTacToeState()


class TicTacToeTables(CopiedTables):
    """Both seats' rows are updated in place: a mark changes one flag in each."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self._marks = np.zeros((num_tables, 2), np.int64)
        self._ply = np.zeros(num_tables, np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        """The game has no chance, so the seeds change nothing."""
        self._start_episodes(tables)
        for array in (self._marks, self._ply, self.view.observation[0]["board"]):
            array[tables] = 0
        self.view.legal[0]["move"][tables] = True
        self.view.to_act[tables, 1] = False

    def step(self, actions: Actions) -> None:
        view = self.view
        board, legal = view.observation[0]["board"], view.legal[0]["move"]
        tables = np.flatnonzero(~view.over)
        mover = self._ply[tables] & 1
        other = 1 - mover
        cell = actions[0]["move"][tables, mover]
        self._require_legal("move", tables, mover, cell)
        marks = self._marks[tables, mover] | 1 << cell
        self._marks[tables, mover] = marks
        self._ply[tables] += 1
        board[tables, mover, cell] = 1.0
        board[tables, other, CELLS + cell] = 1.0
        legal[tables, :, cell] = False

        won = _HAS_LINE[marks]
        over = won | (self._ply[tables] == CELLS)
        view.over[tables] = over
        view.to_act[tables, mover] = False
        view.to_act[tables, other] = ~over
        view.reward[tables, mover] = won
        view.reward[tables, other] = -won.astype(np.float32)
        view.score[tables] = view.reward[tables]

    def _state(self) -> Tree:
        return {"marks": self._marks, "ply": self._ply}

    def tree_state(self, table: int) -> TicTacToeState:
        first, second = self._marks[table].tolist()
        return TicTacToeState((first, second))

    def render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        own, other = self.view.observation[0]["board"][table, 0].reshape(2, 3, 3)
        return draw_board(own, other)


@dataclass(frozen=True, slots=True)
class TicTacToeState:
    """A position: each seat's marks as nine bits."""

    marks: tuple[int, int] = (0, 0)

    def seat(self) -> int:
        if _HAS_LINE[self.marks[0]] or _HAS_LINE[self.marks[1]] or sum(self.marks) == FULL:
            return OVER
        return sum(self.marks).bit_count() & 1

    def legal_actions(self) -> Sequence[int]:
        taken = sum(self.marks)
        return [cell for cell in range(CELLS) if not taken >> cell & 1]

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        raise ValueError("tic-tac-toe has no chance")

    def child(self, action: int) -> TicTacToeState:
        first, second = self.marks
        if sum(self.marks).bit_count() & 1:
            return TicTacToeState((first, second | 1 << action))
        return TicTacToeState((first | 1 << action, second))

    def returns(self) -> Sequence[float]:
        first, second = (bool(_HAS_LINE[marks]) for marks in self.marks)
        return (float(first - second), float(second - first))

    def information_state(self) -> tuple[int, int]:
        return self.marks

    def observation(self) -> Tree:
        mover = sum(self.marks).bit_count() & 1
        pair = (self.marks[mover], self.marks[1 - mover])
        return {"board": np.array([marks >> cell & 1 for marks in pair for cell in range(CELLS)], np.float32)}


@dataclass(frozen=True, kw_only=True)
class TicTacToeRules(GreedyBot):
    """Wins at once if it can, else blocks a line, else plays centre, corner, side; ties at random."""

    def values(self, observation: Tree) -> Array:
        board = observation["board"].astype(np.int64)
        own, other = board[:, :CELLS] @ _CELL, board[:, CELLS:] @ _CELL
        return np.where(_WINNING_CELLS[own], 20, np.where(_WINNING_CELLS[other], 10, _CENTRALITY))
