"""Colonel Blotto: both seats spread their soldiers over the fields at once; who wins more fields wins.

A field goes to the seat with more soldiers on it, to nobody if both have as many. Every placement is beaten
by some other, so strength goes in circles. An action is the number of a placement in `Blotto.placements`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.tree import OVER, TreeState
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot, StrategyBot
from ludus.games.game import Actions, Bot, GameBatch, TableView

MOST_PLACEMENTS = 2_000
"""The table of who beats whom has this many rows and columns."""

WALKABLE_PLACEMENTS = 300
"""The tree has placements ** 2 ends; with more placements it is not offered."""

Placement = tuple[int, ...]


def _placements(soldiers: int, fields: int) -> Iterator[Placement]:
    """All ways to spread the soldiers, those with most on the first field first."""
    if fields == 1:
        yield (soldiers,)
        return
    for first in range(soldiers, -1, -1):
        for rest in _placements(soldiers - first, fields - 1):
            yield (first, *rest)


@cache
def _all_placements(soldiers: int, fields: int) -> tuple[Placement, ...]:
    return tuple(_placements(soldiers, fields))


@cache
def _payoff(soldiers: int, fields: int) -> NDArray[np.float32]:
    """[placements, placements]: what the row's wins against the column's."""
    placed = np.array(_all_placements(soldiers, fields))
    won = np.zeros((len(placed), len(placed)), np.int64)
    for field in placed.T:
        won += np.sign(field[:, None] - field[None, :])
    payoff = np.sign(won).astype(np.float32)
    payoff.flags.writeable = False
    return payoff


@cache
def _spec(soldiers: int, fields: int) -> GameSpec:
    return GameSpec.symmetric(
        name="blotto",
        num_seats=2,
        observation=ObservationSpec(parts={"start": Vector(size=1)}),
        action=ActionSpec(heads={"placement": Choice(num=len(_all_placements(soldiers, fields)))}),
        max_length=1,
    )


@dataclass(frozen=True, kw_only=True)
class Blotto:
    """Options: `soldiers` of each seat and `fields` to put them on."""

    soldiers: int = 6
    fields: int = 3

    def __post_init__(self) -> None:
        for name, number in (("soldiers", self.soldiers), ("fields", self.fields)):
            if number < 3:
                raise ValueError(f"Blotto.{name} must be at least 3, got {number}")
        count = comb(self.soldiers + self.fields - 1, self.fields - 1)
        if count > MOST_PLACEMENTS:
            raise ValueError(
                f"Blotto with {self.soldiers} soldiers on {self.fields} fields has {count} placements; "
                f"at most {MOST_PLACEMENTS} are allowed, so take fewer soldiers or fields"
            )

    @property
    def spec(self) -> GameSpec:
        return _spec(self.soldiers, self.fields)

    @property
    def placements(self) -> Sequence[Placement]:
        """Soldiers per field, by action."""
        return _all_placements(self.soldiers, self.fields)

    @property
    def payoff(self) -> NDArray[np.float32]:
        """[placements, placements]: what the row's wins against the column's."""
        return _payoff(self.soldiers, self.fields)

    def tables(self, num_tables: int) -> GameBatch:
        return BlottoBatch(self.spec, self.payoff, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        """`left` beats `right` beats `middle` beats `left`: the same numbers, moved on by one field."""
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

    def _always(self, placement: Placement) -> AlwaysPlaces:
        whole = placement + (0,) * (self.fields - len(placement))
        return AlwaysPlaces(action=self.placements.index(whole))

    def tree(self) -> TreeState | None:
        if len(self.placements) > WALKABLE_PLACEMENTS:
            return None
        return BlottoState(self.soldiers, self.fields)


class BlottoBatch:
    """Tables that are over after one step."""

    def __init__(self, spec: GameSpec, payoff: NDArray[np.float32], num_tables: int) -> None:
        self._spec = spec
        self._payoff = payoff
        self._view = TableView.allocate(spec, num_tables)
        self._view.legal[0]["placement"][:] = True
        self._view.observation[0]["start"][:] = 1.0
        self._view.over[:] = True  # until the first reset nothing can be stepped

    @property
    def spec(self) -> GameSpec:
        return self._spec

    @property
    def num_tables(self) -> int:
        return len(self._view.over)

    @property
    def view(self) -> TableView:
        return self._view

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        view = self._view
        view.reward[tables] = 0.0
        view.score[tables] = 0.0
        view.over[tables] = False
        view.to_act[tables] = True

    def step(self, actions: Actions) -> None:
        view = self._view
        chosen = actions[0]["placement"]
        last = len(self._payoff) - 1
        illegal = view.to_act & ((chosen < 0) | (chosen > last))
        if illegal.any():
            table, seat = np.argwhere(illegal)[0]
            raise ValueError(
                f"{self._spec.name}: {chosen[table, seat]} is not a legal action of seat {seat} "
                f"at table {table}; legal are 0 to {last}"
            )
        playing = np.flatnonzero(~view.over)
        won = self._payoff[chosen[playing, 0], chosen[playing, 1]]
        view.reward[playing] = np.stack([won, -won], axis=1)
        view.score[playing] = view.reward[playing]
        view.over[playing] = True
        view.to_act[playing] = False

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True, slots=True)
class BlottoState:
    """Seat 0 writes its placement down first; seat 1 does not see it."""

    soldiers: int
    fields: int
    chosen: tuple[int, ...] = ()
    """Seat 0's and seat 1's actions."""

    def seat(self) -> int:
        return OVER if len(self.chosen) == 2 else len(self.chosen)

    def legal_actions(self) -> Sequence[int]:
        return range(len(_all_placements(self.soldiers, self.fields)))

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        return ()

    def child(self, action: int) -> BlottoState:
        return replace(self, chosen=(*self.chosen, action))

    def returns(self) -> Sequence[float]:
        won = float(_payoff(self.soldiers, self.fields)[self.chosen])
        return [won, -won]

    def information_state(self) -> int:
        return self.seat()

    def observation(self) -> Tree:
        return {"start": np.ones(1, np.float32)}


@dataclass(frozen=True, kw_only=True)
class AlwaysPlaces(StrategyBot):
    """The same placement in every game."""

    action: int

    def probabilities(self, observation: Tree, legal: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.tile(np.eye(legal.shape[1])[self.action], (len(legal), 1))
