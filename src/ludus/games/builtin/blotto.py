"""Colonel Blotto: both seats spread their soldiers over the fields at once; more fields won decides.

A field goes to the seat with more soldiers on it, and to neither seat on a tie. Every placement is beaten by
another one, so the game is not transitive. An action is the number of a placement in `Blotto.placements`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import comb
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import TreeState
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.games.bots import AlwaysBot, RandomBot
from ludus.games.builtin.matrix_game import Matrix, MatrixState, MatrixTables
from ludus.games.game import Bot, GameBatch

MOST_PLACEMENTS = 2_000  # the payoff matrix has this many rows and columns at most

WALKABLE_PLACEMENTS = 300  # the tree has placements ** 2 leaves; it is not offered for more placements

Placement = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Blotto:
    """Options: `soldiers` of each seat and `fields` to put them on."""

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.simultaneous_games:TensorMatrixGame.of"
    soldiers: int = 6
    fields: int = 3

    def __post_init__(self) -> None:
        for name, number in (("soldiers", self.soldiers), ("fields", self.fields)):
            if number < 3:
                raise ValueError(f"Blotto.{name} must be at least 3, got {number}")
        # There are at least as many placements as soldiers and fields. Counting those of millions would take hours.
        few = self.soldiers + self.fields <= MOST_PLACEMENTS
        count = comb(self.soldiers + self.fields - 1, self.fields - 1) if few else None
        if count is None or count > MOST_PLACEMENTS:
            raise ValueError(
                f"Blotto with {self.soldiers} soldiers on {self.fields} fields has "
                f"{'too many' if count is None else count} placements; at most {MOST_PLACEMENTS} are allowed, "
                "so take fewer soldiers or fields"
            )

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="blotto",
            num_seats=2,
            observation=ObservationSpec(parts={"start": Vector(size=1)}),
            action=ActionSpec(heads={"placement": Choice(num=len(self.placements))}),
            max_length=1,
        )

    @property
    def placements(self) -> Sequence[Placement]:
        """Soldiers per field, by action."""
        return _placements(self.soldiers, self.fields)

    @property
    def payoff(self) -> NDArray[np.float32]:
        """[placements, placements]: reward of the row's placement against the column's."""
        return self.matrix.payoff

    def tables(self, num_tables: int) -> GameBatch:
        return MatrixTables(self.spec, self.matrix, num_tables)

    @property
    def matrix(self) -> Matrix:
        return _matrix(self.soldiers, self.fields)

    def bots(self) -> Mapping[str, Bot]:
        """`left` beats `right` beats `middle` beats `left`: the same numbers, shifted by one field."""
        low = (self.soldiers - 3) // 3
        high = self.soldiers - 2 * low - 1
        left, middle, right = (high, low + 1, low), (low, high, low + 1), (low + 1, low, high)
        each, more = divmod(self.soldiers, self.fields)
        even = tuple(each + (field < more) for field in range(self.fields))
        return {
            "random": RandomBot(),
            "even": self._always(even),
            "left": self._always(left),
            "middle": self._always(middle),
            "right": self._always(right),
        }

    def _always(self, placement: Placement) -> AlwaysBot:
        whole = placement + (0,) * (self.fields - len(placement))
        return AlwaysBot(action=self.placements.index(whole))

    def tree(self) -> TreeState | None:
        if len(self.placements) > WALKABLE_PLACEMENTS:
            return None
        return MatrixState(self.matrix, rounds=1)


@cache
def _placements(soldiers: int, fields: int) -> tuple[Placement, ...]:
    """All ways to spread the soldiers, in descending order of the first field."""
    if fields == 1:
        return ((soldiers,),)
    return tuple(
        (first, *rest) for first in range(soldiers, -1, -1) for rest in _placements(soldiers - first, fields - 1)
    )


@cache
def _matrix(soldiers: int, fields: int) -> Matrix:
    placed = np.array(_placements(soldiers, fields))
    won = np.zeros((len(placed), len(placed)), np.int64)
    for field in placed.T:
        won += np.sign(field[:, None] - field[None, :])
    payoff = np.sign(won).astype(np.float32)
    payoff.flags.writeable = False
    return Matrix(payoff, "start", np.ones((1, 2, 1), np.float32))
