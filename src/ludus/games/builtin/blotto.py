"""Colonel Blotto: both seats spread their soldiers over the fields at once; more fields won decides.

A field goes to the seat with more soldiers on it, and to neither seat on a tie. Every placement is beaten by
another one, so the game is not transitive. An action is the number of a placement in `Blotto.placements`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import comb

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import OVER, TreeState
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import AlwaysBot, RandomBot
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.tables import ArrayTables, GameDefaults

MOST_PLACEMENTS = 2_000
"""The payoff matrix has this many rows and columns at most."""

WALKABLE_PLACEMENTS = 300
"""The tree has placements ** 2 leaves; it is not offered for more placements."""

Placement = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Blotto(GameDefaults):
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
        return _payoff(self.soldiers, self.fields)

    def tables(self, num_tables: int) -> GameBatch:
        return BlottoTables(self.spec, self.payoff, num_tables)

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
        return BlottoState(self.soldiers, self.fields)


@cache
def _placements(soldiers: int, fields: int) -> tuple[Placement, ...]:
    """All ways to spread the soldiers, in descending order of the first field."""
    if fields == 1:
        return ((soldiers,),)
    return tuple(
        (first, *rest) for first in range(soldiers, -1, -1) for rest in _placements(soldiers - first, fields - 1)
    )


@cache
def _payoff(soldiers: int, fields: int) -> NDArray[np.float32]:
    placed = np.array(_placements(soldiers, fields))
    won = np.zeros((len(placed), len(placed)), np.int64)
    for field in placed.T:
        won += np.sign(field[:, None] - field[None, :])
    payoff = np.sign(won).astype(np.float32)
    payoff.flags.writeable = False
    return payoff


class BlottoTables(ArrayTables):
    def __init__(self, spec: GameSpec, payoff: NDArray[np.float32], num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self._payoff = payoff
        self.view.legal[0]["placement"][:] = True
        self.view.observation[0]["start"][:] = 1.0

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)

    def step(self, actions: Actions) -> None:
        view = self.view
        chosen = actions[0]["placement"]
        playing = np.flatnonzero(~view.over)
        self._require_legal("placement", playing[:, None], np.arange(2), chosen[playing])
        won = self._payoff[chosen[playing, 0], chosen[playing, 1]]
        view.reward[playing] = np.stack([won, -won], axis=1)
        view.score[playing] = view.reward[playing]
        view.over[playing] = True
        view.to_act[playing] = False


@dataclass(frozen=True, slots=True)
class BlottoState:
    """Seat 0 chooses first; seat 1 does not see its placement."""

    soldiers: int
    fields: int
    chosen: tuple[int, ...] = ()

    def seat(self) -> int:
        return OVER if len(self.chosen) == 2 else len(self.chosen)

    def legal_actions(self) -> Sequence[int]:
        return range(len(_placements(self.soldiers, self.fields)))

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
