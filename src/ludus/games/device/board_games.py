"""Connect four and tic-tac-toe in torch: bitboards by seat, and the seat to move."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor

from ludus.games.builtin.connect_four import BOARD, BOTTOM, COLUMN_BITS, COLUMN_CELLS, COLUMNS, ROWS, ConnectFour
from ludus.games.builtin.tic_tac_toe import CELLS, FULL, LINES
from ludus.games.device.tensor_game import TensorState, TensorStep, TensorTwin

_SIDEWAYS = (COLUMN_BITS - 1, COLUMN_BITS, COLUMN_BITS + 1)


@dataclass(frozen=True)
class _TwoSeatBoard(TensorTwin):
    """Two seats in turn; `stones` [rows, seats] are bits, `turn` [rows] is the seat to move."""

    def to_act(self, state: TensorState) -> Tensor:
        return torch.arange(2, device=state["turn"].device) == state["turn"].unsqueeze(1)

    @staticmethod
    def _seen(state: TensorState, seats: Tensor) -> tuple[Tensor, Tensor]:
        """The stones of these seats, and those of the other."""
        first, second = state["stones"].unbind(1)
        is_first = seats == 0
        return torch.where(is_first, first, second), torch.where(is_first, second, first)

    @staticmethod
    def _placed(state: TensorState, own: Tensor, won: Tensor, full: Tensor) -> TensorStep:
        """The seat to move has placed a stone and has `own` now."""
        first, second = state["stones"].unbind(1)
        is_first = state["turn"] == 0
        stones = torch.stack((torch.where(is_first, own, first), torch.where(is_first, second, own)), 1)
        sign = torch.where(is_first, 1.0, -1.0) * won
        return TensorStep({"stones": stones, "turn": 1 - state["turn"]}, torch.stack((sign, -sign), 1), won | full)


def _bits(words: Tensor, shifts: Tensor) -> Tensor:
    """[rows, shifts] float32: whether these bits are set."""
    return ((words.unsqueeze(1) >> shifts) & 1).float()


@dataclass(frozen=True)
class TensorConnectFour(_TwoSeatBoard):
    """Connect four; the bits are those of `builtin/connect_four.py`."""

    def start(self, draws: Tensor) -> TensorState:
        rows, device = len(draws), draws.device
        self._shifts(device)  # before anything is compiled
        return {
            "stones": torch.zeros(rows, 2, dtype=torch.int64, device=device),
            "turn": torch.zeros(rows, dtype=torch.int8, device=device),
        }

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        assert isinstance(self.game, ConnectFour)
        own, other = self._seen(state, seats)
        shifts = self._shifts(own.device)
        parts = {"board": torch.cat((_bits(own, shifts), _bits(other, shifts)), 1)}
        stones = own | other
        if self.game.threats or self.game.all_threats:
            wins = [_winning_cells(one, stones) for one in (own, other)]
        if self.game.threats:
            reach = (stones + BOTTOM) & BOARD
            columns = [(win & reach & column) != 0 for win in wins for column in COLUMN_CELLS]
            parts["threats"] = torch.stack(columns, 1).float()
        if self.game.all_threats:
            parts["all_threats"] = torch.cat([_bits(win, shifts) for win in wins], 1)
        return parts

    def _shifts(self, device: torch.device) -> Tensor:
        """[cells]: the bit of each cell, row by row from the bottom. Kept, because every row of every step reads it."""
        if device not in self._kept:
            cells = torch.arange(ROWS * COLUMNS, device=device)
            self._kept[device] = COLUMN_BITS * (cells % COLUMNS) + cells // COLUMNS
        return self._kept[device]

    @cached_property
    def _kept(self) -> dict[torch.device, Tensor]:
        return {}

    def legal(self, state: TensorState, seats: Tensor) -> Tensor:
        stones = state["stones"][:, 0] | state["stones"][:, 1]
        return torch.stack([(stones & cells) != cells for cells in COLUMN_CELLS], 1)

    def step(self, state: TensorState, actions: Tensor, draws: Tensor) -> TensorStep:
        own, other = self._seen(state, state["turn"])
        column = torch.where(state["turn"] == 0, actions[:, 0], actions[:, 1])
        stones = own | other
        stone = (stones + (torch.ones_like(stones) << (COLUMN_BITS * column))) & ~stones
        own = own | stone
        pairs = [(own & (own >> step), 2 * step) for step in (1, *_SIDEWAYS)]
        won = reduce(torch.bitwise_or, [two & (two >> step) for two, step in pairs]) != 0
        return self._placed(state, own, won, (stones | stone) == BOARD)


def _winning_cells(own: Tensor, stones: Tensor) -> Tensor:
    """As `winning_cells` of the CPU game."""
    found = (own << 1) & (own << 2) & (own << 3)
    for step in _SIDEWAYS:
        right, left = own << step, own >> step
        found = found | (right & (own << 2 * step) & ((own << 3 * step) | left))
        found = found | (left & (own >> 2 * step) & ((own >> 3 * step) | right))
    return found & (stones ^ BOARD)


@dataclass(frozen=True)
class TensorTicTacToe(_TwoSeatBoard):
    """Tic-tac-toe; bit number c is cell c."""

    def start(self, draws: Tensor) -> TensorState:
        rows, device = len(draws), draws.device
        return {
            "stones": torch.zeros(rows, 2, dtype=torch.int16, device=device),
            "turn": torch.zeros(rows, dtype=torch.int8, device=device),
        }

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        cells = torch.arange(CELLS, device=seats.device)
        return {"board": torch.cat([_bits(one.int(), cells) for one in self._seen(state, seats)], 1)}

    def legal(self, state: TensorState, seats: Tensor) -> Tensor:
        marks = (state["stones"][:, 0] | state["stones"][:, 1]).int()
        return _bits(marks, torch.arange(CELLS, device=marks.device)) == 0

    def step(self, state: TensorState, actions: Tensor, draws: Tensor) -> TensorStep:
        own, other = self._seen(state, state["turn"])
        cell = torch.where(state["turn"] == 0, actions[:, 0], actions[:, 1])
        mark = (torch.ones_like(cell) << cell).to(own.dtype)
        own = own | mark
        won = reduce(torch.logical_or, [(own & line) == line for line in LINES])
        return self._placed(state, own, won, (own | other) == FULL)
