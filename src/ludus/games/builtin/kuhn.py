"""Kuhn poker for two or more seats: one card each, one bet. Encodings and action ids as in OpenSpiel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import CHANCE, OVER
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import Tree
from ludus.games.bots import RandomBot, StrategyBot
from ludus.games.game import Bot, GameBatch
from ludus.games.tree_batch import TreeBatch

PASS, BET = 0, 1
JACK, QUEEN, KING = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Kuhn:
    """Cards 0 .. seats, ante 1, bet 1; the highest card among the seats that bet takes the pot."""

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.tree_game:TensorTree.of"
    seats: int = 2

    def __post_init__(self) -> None:
        if not 2 <= self.seats <= 4:
            raise ValueError(f"Kuhn.seats must be 2, 3 or 4, got {self.seats}")

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="kuhn",
            num_seats=self.seats,
            observation=ObservationSpec(parts={"information": Vector(size=_information_size(self.seats))}),
            action=ActionSpec(heads={"move": Choice(num=2)}),
            max_length=2 * self.seats - 1,
            hidden_information=True,
            chance=True,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return TreeBatch(self.spec, self.tree(), num_tables)

    def bots(self) -> Mapping[str, Bot]:
        bots: dict[str, Bot] = {"random": RandomBot()}
        if self.seats == 2:
            bots |= {"rules": KuhnRules(), "equilibrium": KuhnEquilibrium()}
        return bots

    def tree(self) -> KuhnState:
        return KuhnState(self.seats)


@dataclass(frozen=True, slots=True)
class KuhnState:
    """A history: the cards dealt so far, then the moves in turn."""

    seats: int
    cards: tuple[int, ...] = ()
    moves: tuple[int, ...] = ()

    def seat(self) -> int:
        if len(self.cards) < self.seats:
            return CHANCE
        # Every seat may bet once; after the first bet the others answer in turn.
        last = self.moves.index(BET) + self.seats if BET in self.moves else self.seats
        return OVER if len(self.moves) == last else len(self.moves) % self.seats

    def legal_actions(self) -> Sequence[int]:
        return (PASS, BET)

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        left = [card for card in range(self.seats + 1) if card not in self.cards]
        return [(card, 1.0 / len(left)) for card in left]

    def child(self, action: int) -> KuhnState:
        if len(self.cards) < self.seats:
            return replace(self, cards=(*self.cards, action))
        return replace(self, moves=(*self.moves, action))

    def returns(self) -> Sequence[float]:
        bettors = {turn % self.seats for turn, move in enumerate(self.moves) if move == BET}
        stakes = [2.0 if seat in bettors else 1.0 for seat in range(self.seats)]
        winner = max(bettors or range(self.seats), key=self.cards.__getitem__)
        return [(sum(stakes) if seat == winner else 0.0) - stake for seat, stake in enumerate(stakes)]

    def information_state(self) -> tuple[int, tuple[int, ...]]:
        return self.cards[self.seat()], self.moves

    def observation(self) -> Tree:
        """One-hot seat, one-hot card, then one-hot move (pass, bet) per turn."""
        seat = self.seat()
        information = np.zeros(_information_size(self.seats), np.float32)
        information[seat] = 1.0
        information[self.seats + self.cards[seat]] = 1.0
        for turn, move in enumerate(self.moves):
            information[2 * self.seats + 1 + 2 * turn + move] = 1.0
        return {"information": information}


def _information_size(seats: int) -> int:
    return seats + (seats + 1) + 2 * (2 * seats - 1)


class _TwoSeatBot(StrategyBot):
    """Bets by a table [situation, card]: first to move, after a pass, after a bet, after a bet that answers a pass."""

    @abstractmethod
    def bets(self) -> NDArray[np.float64]: ...

    def probabilities(self, observation: Tree, legal: NDArray[np.bool_]) -> NDArray[np.float64]:
        information = observation["information"]
        card = information[:, 2:5].argmax(axis=1)
        first_pass, first_bet, second_bet = information[:, 5], information[:, 6], information[:, 8]
        situation = (first_pass + 2 * first_bet + 2 * second_bet).astype(np.int64)
        bet = self.bets()[situation, card]
        return np.stack([1.0 - bet, bet], axis=1)


@dataclass(frozen=True, kw_only=True)
class KuhnRules(_TwoSeatBot):
    """Bets the king, calls with the queen and bets it into a pass, folds the jack; never bluffs."""

    def bets(self) -> NDArray[np.float64]:
        return np.array([[0, 0, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1]], np.float64)


@dataclass(frozen=True, kw_only=True)
class KuhnEquilibrium(_TwoSeatBot):
    """The Nash equilibria: `bluff`, in [0, 1/3], is how often the first seat bets with the jack."""

    bluff: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 <= self.bluff <= 1 / 3:
            raise ValueError(f"KuhnEquilibrium.bluff must be in [0, 1/3], got {self.bluff}")

    def bets(self) -> NDArray[np.float64]:
        third = 1 / 3
        return np.array([[self.bluff, 0, 3 * self.bluff], [third, 0, 1], [0, third, 1], [0, self.bluff + third, 1]])
