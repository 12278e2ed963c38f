"""Rock, paper, scissors: both seats choose at once, over one or more rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ludus.data.game_tree import TreeState
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.games.bots import AlwaysBot, RandomBot
from ludus.games.builtin.matrix_game import Matrix, MatrixState, MatrixTables
from ludus.games.game import Bot, GameBatch

ROCK, PAPER, SCISSORS = 0, 1, 2
WALKABLE_ROUNDS = 4  # the tree has 9 ** rounds leaves; it is not offered for more rounds


def _matrix() -> Matrix:
    """Observations: flag for no round yet, one-hot own and other choice."""
    encodings = np.zeros((10, 2, 7), np.float32)
    for first in range(3):
        for second in range(3):
            encodings[3 * first + second, 0, [1 + first, 4 + second]] = 1.0
            encodings[3 * first + second, 1, [1 + second, 4 + first]] = 1.0
    encodings[9, :, 0] = 1.0
    return Matrix(np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32), "previous", encodings)


_MATRIX = _matrix()


MOST_ROUNDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class RockPaperScissors:
    """Each round won is worth 1. A seat sees the choices of the previous round."""

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.simultaneous_games:TensorMatrixGame.of"
    rounds: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise ValueError(f"RockPaperScissors.rounds must be 1 to {MOST_ROUNDS}, got {self.rounds}")

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="rock_paper_scissors",
            num_seats=2,
            observation=ObservationSpec(parts={"previous": Vector(size=7)}),
            action=ActionSpec(heads={"move": Choice(num=3)}),
            max_length=self.rounds,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return MatrixTables(self.spec, self.matrix, num_tables)

    @property
    def matrix(self) -> Matrix:
        return _MATRIX

    def bots(self) -> Mapping[str, Bot]:
        return {
            "random": RandomBot(),
            "rock": AlwaysBot(action=ROCK),
            "paper": AlwaysBot(action=PAPER),
            "scissors": AlwaysBot(action=SCISSORS),
        }

    def tree(self) -> TreeState | None:
        return MatrixState(_MATRIX, self.rounds) if self.rounds <= WALKABLE_ROUNDS else None
