"""What the learner asks of the buffer worker: one number per trajectory slot, in memory that both see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray


class RecomputeRequests:
    """By kind of seat and slot. A request is a number that says whose trajectory it is and that no other
    request for this slot has ever had; 0: there is none. It is done once the answer is the same number.

    So nothing is lost with a buffer worker: the next one finds what is not done. And an answer that comes
    after the slot was let go of means nothing.
    """

    def __init__(
        self,
        num_slots: Sequence[int],
        num_players: int,
        new: Callable[[tuple[int, ...], Any], Array] = np.zeros,
    ) -> None:
        self.num_players = num_players
        self.asked: list[IntArray] = [new((count,), np.int64) for count in num_slots]
        self.answered: list[IntArray] = [new((count,), np.int64) for count in num_slots]
        self.version: list[IntArray] = [new((count,), np.int64) for count in num_slots]
        """Of the weights that recomputed it."""
        self._turn = 0
        """Requests of this process so far."""

    def ask(self, kind: int, slots: IntArray, player: int) -> None:
        self._turn += 1
        self.asked[kind][slots] = self._turn * self.num_players + player

    def newest(self, kind: int) -> tuple[int, IntArray]:
        """The newest request that is not done, and its slots; if there is none, no slots. What is trained on
        is the newest too."""
        asked = self.asked[kind]
        open_slots = np.flatnonzero((asked != self.answered[kind]) & (asked != 0))
        numbers = asked[open_slots]
        number = int(numbers.max(initial=0))
        return number, open_slots[(numbers == number) & (number > 0)]

    def player_of(self, number: int) -> int:
        return number % self.num_players

    def clear(self) -> None:
        """Only while nobody asks or answers."""
        for array in (*self.asked, *self.answered, *self.version):
            array[...] = 0


class Recomputing(NamedTuple):
    """The side of one player's buffer."""

    requests: RecomputeRequests
    player: int
    """Its number among the players that learn."""
    wake: Callable[[], None]
    """Called when there is something to do for the buffer worker."""

    def ask(self, kind: int, slots: IntArray) -> None:
        self.requests.ask(kind, slots, self.player)
        self.wake()

    def retract(self, kind: int, slots: IntArray) -> None:
        self.requests.asked[kind][slots] = 0

    def is_done(self, kind: int, slots: IntArray) -> NDArray[np.bool_]:
        done: NDArray[np.bool_] = self.requests.answered[kind][slots] == self.requests.asked[kind][slots]
        return done

    def versions(self, kind: int, slots: IntArray) -> IntArray:
        found: IntArray = self.requests.version[kind][slots]
        return found
