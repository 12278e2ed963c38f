"""Matrix games: both seats choose at once, over one or more rounds, and a payoff matrix decides each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import OVER
from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray, Tree
from ludus.games.game import Actions
from ludus.games.tables import ArrayTables


@dataclass(frozen=True, eq=False)
class Matrix:
    """A payoff matrix, and what the seats see of the latest round.

    A finished round is the number options * choice of seat 0 + choice of seat 1; options ** 2 is no round yet.
    """

    payoff: NDArray[np.float32]
    """[options, options]: reward of the row's choice against the column's."""
    part: str
    """The only part of an observation."""
    encodings: NDArray[np.float32]
    """[rounds or 1, seats, size]: observations by latest round; a single one does not depend on it."""

    @cached_property
    def rewards(self) -> NDArray[np.float32]:
        """[rounds, seats], 0 before the first round."""
        won = np.append(self.payoff, np.float32(0))
        return np.stack([won, 0 - won], axis=1)  # without a negative zero


class MatrixTables(ArrayTables):
    """Tables that all advance by one round per step; a table that is over stays at its last round."""

    def __init__(self, spec: GameSpec, matrix: Matrix, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        (self._head,) = spec.kinds[0].action.heads
        self.view.legal[0][self._head][:] = True
        self._matrix, self._options = matrix, len(matrix.payoff)
        self._last_round = np.full(num_tables, self._options**2)
        self._num_played = np.zeros(num_tables, np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        """The game has no chance, so the seeds change nothing."""
        self._last_round[tables] = self._options**2
        self._num_played[tables] = 0
        self.view.score[tables] = 0.0
        self._show()

    def step(self, actions: Actions) -> None:
        moves = actions[0][self._head]
        playing = ~self.view.over
        if ((moves < 0) | (moves >= self._options)).any():  # all options are legal, but idle rows may hold anything
            tables = np.arange(self.num_tables)[:, None]
            self._require_legal(self._head, tables, np.arange(2), moves, counts=self.view.to_act)
        self._last_round = np.where(playing, self._options * moves[:, 0] + moves[:, 1], self._last_round)
        self._num_played += playing
        self._show()
        self.view.score[:] += self.view.reward * playing[:, None]

    def _show(self) -> None:
        view, last = self.view, self._last_round
        self._matrix.rewards.take(last, axis=0, out=view.reward, mode="clip")
        self._matrix.encodings.take(last, axis=0, out=view.observation[0][self._matrix.part], mode="clip")
        np.equal(self._num_played, self.spec.max_length, out=view.over)
        view.to_act[:] = ~view.over[:, None]


@dataclass(frozen=True, slots=True)
class MatrixState:
    """Seat 0 chooses first; seat 1 does not see its choice until the round is over."""

    matrix: Matrix
    rounds: int
    moves: tuple[int, ...] = ()

    def seat(self) -> int:
        return OVER if len(self.moves) == 2 * self.rounds else len(self.moves) % 2

    def legal_actions(self) -> Sequence[int]:
        return range(len(self.matrix.payoff))

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        return ()

    def child(self, action: int) -> MatrixState:
        return replace(self, moves=(*self.moves, action))

    def returns(self) -> Sequence[float]:
        won = float(sum(self.matrix.payoff[self.moves[::2], self.moves[1::2]]))
        return [won, -won]

    def information_state(self) -> tuple[int, ...]:
        """The moves of the finished rounds."""
        return self.moves[: len(self.moves) // 2 * 2]

    def observation(self) -> Tree:
        finished, encodings = self.information_state(), self.matrix.encodings
        last = len(self.matrix.payoff) * finished[-2] + finished[-1] if finished else len(encodings) - 1
        return {self.matrix.part: encodings[min(last, len(encodings) - 1), self.seat()].copy()}
