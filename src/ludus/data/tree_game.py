"""Games small enough to walk: the protocol that search bots and exact exploitability need."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from ludus.data.trees import Tree

CHANCE = -1
OVER = -2


class TreeState(Protocol):
    """One history of a game (a `TreeGame` is its root). Immutable: `child` returns a new state."""

    def seat(self) -> int:
        """The seat to move, CHANCE or OVER."""

    def legal_actions(self) -> Sequence[int]:
        """Actions of the seat to move, ascending."""

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        """(outcome, probability) at a chance node."""

    def child(self, action: int) -> TreeState: ...
    def returns(self) -> Sequence[float]:
        """Total reward per seat, at the end."""

    def information_state(self) -> Hashable:
        """All that the seat to move knows; equal keys mean indistinguishable histories."""

    def observation(self) -> Tree:
        """What the seat to move sees, as in the game's `TableView` (one row, no leading axes)."""


TreeGame = TreeState
