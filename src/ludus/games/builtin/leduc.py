"""Leduc poker: six cards, a private and a public one, two betting rounds. Encoded as in OpenSpiel."""

from __future__ import annotations

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

FOLD, CALL, RAISE = 0, 1, 2
NUM_CARDS = 6
ANTE = 1.0
RAISE_SIZES = (2.0, 4.0)
MAX_RAISES = 2
MAX_MOVES = 4  # most moves per round: check, raise, raise, call

_PRIVATE, _PUBLIC, _MOVES = 2, 2 + NUM_CARDS, 2 + 2 * NUM_CARDS
INFORMATION_SIZE = _MOVES + 2 * 2 * MAX_MOVES


@dataclass(frozen=True, kw_only=True)
class Leduc:
    """Ante 1, raises of 2 and then 4, at most two per round; a pair wins, else the higher card."""

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.tree_game:TensorTree.of"

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="leduc",
            num_seats=2,
            observation=ObservationSpec(parts={"information": Vector(size=INFORMATION_SIZE)}),
            action=ActionSpec(heads={"move": Choice(num=3)}),
            max_length=2 * MAX_MOVES,
            hidden_information=True,
            chance=True,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return TreeBatch(self.spec, self.tree(), num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), "rules": LeducRules()}

    def tree(self) -> LeducState:
        return LeducState()


def rank(card: int) -> int:
    """Jack 0, queen 1, king 2; there are two of each."""
    return card // 2


@dataclass(frozen=True, slots=True)
class LeducState:
    """A history: cards of seat 0, seat 1 and the table as dealt so far, and the moves of the two rounds."""

    cards: tuple[int, ...] = ()
    rounds: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def seat(self) -> int:
        if len(self.cards) < 2:
            return CHANCE
        if self._round_over():
            return CHANCE if len(self.cards) == 2 and self._moves()[-1] != FOLD else OVER
        return len(self._moves()) % 2

    def _moves(self) -> tuple[int, ...]:
        return self.rounds[len(self.cards) - 2]

    def _round_over(self) -> bool:
        moves = self._moves()
        return bool(moves) and (moves[-1] == FOLD or (moves[-1] == CALL and len(moves) > 1))

    def legal_actions(self) -> Sequence[int]:
        moves = self._moves()
        facing_raise = bool(moves) and moves[-1] == RAISE
        may_raise = moves.count(RAISE) < MAX_RAISES
        return (*((FOLD,) if facing_raise else ()), CALL, *((RAISE,) if may_raise else ()))

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        left = [card for card in range(NUM_CARDS) if card not in self.cards]
        return [(card, 1.0 / len(left)) for card in left]

    def child(self, action: int) -> LeducState:
        if self.seat() == CHANCE:
            return replace(self, cards=(*self.cards, action))
        first, second = self.rounds
        if len(self.cards) == 2:
            return replace(self, rounds=((*first, action), second))
        return replace(self, rounds=(first, (*second, action)))

    def returns(self) -> Sequence[float]:
        stakes = self.stakes()
        moves = self._moves()
        if moves[-1] == FOLD:
            winner = len(moves) % 2  # the seat that would have moved next
        else:
            # A pair with the public card beats any other hand; else the higher rank wins.
            first, second = ((rank(card) == rank(self.cards[2]), rank(card)) for card in self.cards[:2])
            if first == second:
                return [0.0, 0.0]
            winner = 0 if first > second else 1
        lost = stakes[1 - winner]
        return [lost, -lost] if winner == 0 else [-lost, lost]

    def stakes(self) -> list[float]:
        stakes = [ANTE, ANTE]
        for moves, size in zip(self.rounds, RAISE_SIZES, strict=True):
            for turn, move in enumerate(moves):
                if move != FOLD:
                    stakes[turn % 2] = max(stakes) + (size if move == RAISE else 0.0)
        return stakes

    def information_state(self) -> tuple[int, tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]:
        return self.cards[self.seat()], self.cards[2:], self.rounds

    def observation(self) -> Tree:
        """One-hot seat, private card and public card, then one-hot move (call, raise) per turn."""
        seat = self.seat()
        information = np.zeros(INFORMATION_SIZE, np.float32)
        information[seat] = 1.0
        information[_PRIVATE + self.cards[seat]] = 1.0
        for card in self.cards[2:]:
            information[_PUBLIC + card] = 1.0
        for number, moves in enumerate(self.rounds):
            for turn, move in enumerate(moves):
                information[_MOVES + 2 * (number * MAX_MOVES + turn) + move - CALL] = 1.0
        return {"information": information}


@dataclass(frozen=True, kw_only=True)
class LeducRules(StrategyBot):
    """Raises with a pair or, before the public card, a king; folds a jack to a raise unless it is paired."""

    def probabilities(self, observation: Tree, legal: NDArray[np.bool_]) -> NDArray[np.float64]:
        information = observation["information"]
        own = information[:, _PRIVATE:_PUBLIC].argmax(axis=1) // 2
        public = information[:, _PUBLIC:_MOVES]
        dealt = public.any(axis=1)
        pair = dealt & (public.argmax(axis=1) // 2 == own)
        wish = np.where(pair | (~dealt & (own == 2)), RAISE, np.where(own == 0, FOLD, CALL))
        # Calling is always legal and replaces an illegal wish.
        move = np.where(legal[np.arange(len(legal)), wish], wish, CALL)
        return np.eye(legal.shape[1])[move]
