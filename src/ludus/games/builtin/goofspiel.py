"""Goofspiel for three: bid cards for prizes at the same time, highest bid takes the prize.

Each seat holds the cards 1 .. num_cards; the prizes 1 .. num_cards are turned up one by one in an order drawn by the
seed. In every round all three seats bid one card. A single highest bid takes the prize; if two or three seats bid the
highest card, no seat takes it. Bids are spent and public. A prize adds its share of all prizes to the score of the seat
that takes it and subtracts half of that from each other seat, so scores add up to zero and rank the three seats.
A seat sees hands and points (its own, then those of the next two seats), the current prize and the prizes to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import CHANCE, OVER
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import GreedyBot, RandomBot
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.seeding import shuffle
from ludus.games.tables import ArrayTables, GameDefaults

SEATS = 3
LARGEST_TREE = 3  # the tree has some thousand histories for this many cards, and half a million for one more

MOST_CARDS = 1_000
_ROTATED = (np.arange(SEATS)[:, None] + np.arange(SEATS)) % SEATS
"""[seat, offset]: the seats in the order in which a seat sees them."""


@dataclass(frozen=True, kw_only=True)
class Goofspiel(GameDefaults):
    """Options: `num_cards` in each hand and among the prizes."""

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.simultaneous_games:TensorGoofspiel.of"
    num_cards: int = 5

    def __post_init__(self) -> None:
        if not 2 <= self.num_cards <= MOST_CARDS:
            raise ValueError(f"Goofspiel.num_cards must be 2 to {MOST_CARDS}, got {self.num_cards}")

    @cached_property
    def spec(self) -> GameSpec:
        cards = Vector(size=self.num_cards)
        parts = {
            "hands": Vector(size=SEATS * self.num_cards),
            "prize": cards,
            "to_come": cards,
            "points": Vector(size=SEATS),
        }
        return GameSpec.symmetric(
            name="goofspiel",
            num_seats=SEATS,
            observation=ObservationSpec(parts=parts),
            action=ActionSpec(heads={"bid": Choice(num=self.num_cards)}),
            max_length=self.num_cards,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return GoofspielTables(self.spec, num_tables, self.num_cards)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), "match_prize": MatchPrize(), "one_above": MatchPrize(raise_by=1)}

    def tree(self) -> GoofspielState | None:
        """The root up to `LARGEST_TREE` cards, else None."""
        return GoofspielState(self.num_cards) if self.num_cards <= LARGEST_TREE else None


class GoofspielTables(ArrayTables):
    """Cards and prizes are counted from 0 here: card c is worth c + 1."""

    def __init__(self, spec: GameSpec, num_tables: int, num_cards: int) -> None:
        super().__init__(spec, num_tables)
        self._num_cards = num_cards
        self._round = np.zeros(num_tables, np.int64)
        self._prizes = np.zeros((num_tables, num_cards), np.int64)
        self._hands = np.zeros((num_tables, SEATS, num_cards), np.bool_)
        self._points = np.zeros((num_tables, SEATS), np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        self._round[tables] = 0
        self._prizes[tables] = shuffle(seeds, 0, self._num_cards)
        self._hands[tables] = True
        self._points[tables] = 0
        self._show(tables)

    def step(self, actions: Actions) -> None:
        view = self.view
        tables = np.flatnonzero(~view.over)
        bids = actions[0]["bid"][tables].astype(np.int64)
        self._require_legal("bid", tables[:, None], np.arange(SEATS), bids)
        hands = self._hands[tables]
        np.put_along_axis(hands, bids[:, :, None], False, axis=2)
        self._hands[tables] = hands

        highest = bids == bids.max(axis=1, keepdims=True)
        takes = highest & (highest.sum(axis=1, keepdims=True) == 1)
        prize = self._prizes[tables, self._round[tables]] + 1
        self._points[tables] += takes * prize[:, None]
        self._round[tables] += 1
        view.reward[tables] = _shares(takes * prize[:, None], self._num_cards)
        view.score[tables] = _shares(self._points[tables], self._num_cards)
        over = self._round[tables] == self._num_cards
        view.over[tables] = over
        view.to_act[tables] = ~over[:, None]
        self._show(tables)

    def _show(self, tables: IntArray) -> None:
        observation, legal = self.view.observation[0], self.view.legal[0]
        rounds, hands = self._round[tables], self._hands[tables]
        one_hot = np.identity(self._num_cards, np.float32)[self._prizes[tables]]
        when = np.arange(self._num_cards)[None, :, None] - rounds[:, None, None]
        observation["hands"][tables] = hands[:, _ROTATED].reshape(-1, SEATS, SEATS * self._num_cards)
        observation["prize"][tables] = (one_hot * (when == 0)).sum(axis=1)[:, None]
        observation["to_come"][tables] = (one_hot * (when > 0)).sum(axis=1)[:, None]
        observation["points"][tables] = self._points[tables][:, _ROTATED] / _total(self._num_cards)
        legal["bid"][tables] = hands


def _total(num_cards: int) -> int:
    return num_cards * (num_cards + 1) // 2


def _shares(points: Array, num_cards: int) -> NDArray[np.float64]:
    """[..., SEATS]: scores from points: a seat's own, less half of each other seat's."""
    others = points.sum(axis=-1, keepdims=True) - points
    shares: NDArray[np.float64] = (points - others / 2) / _total(num_cards)
    return shares


@dataclass(frozen=True, slots=True)
class GoofspielState:
    """A history: the prizes turned up so far, and all bids, round by round and seat by seat.

    The seats bid one after the other without seeing the bids of the current round.
    """

    num_cards: int
    prizes: tuple[int, ...] = ()
    bids: tuple[int, ...] = ()

    def seat(self) -> int:
        if len(self.bids) == SEATS * self.num_cards:
            return OVER
        return CHANCE if len(self.bids) == SEATS * len(self.prizes) else len(self.bids) % SEATS

    def legal_actions(self) -> Sequence[int]:
        return self._hand(self.seat())

    def _hand(self, seat: int) -> list[int]:
        return [card for card in range(self.num_cards) if card not in self.bids[seat::SEATS]]

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        left = [prize for prize in range(self.num_cards) if prize not in self.prizes]
        return [(prize, 1.0 / len(left)) for prize in left]

    def child(self, action: int) -> GoofspielState:
        if self.seat() == CHANCE:
            return GoofspielState(self.num_cards, (*self.prizes, action), self.bids)
        return GoofspielState(self.num_cards, self.prizes, (*self.bids, action))

    def _seen(self) -> GoofspielState:
        """This history without the bids of the unfinished round."""
        known = len(self.bids) // SEATS * SEATS
        return GoofspielState(self.num_cards, self.prizes, self.bids[:known])

    def _points(self) -> IntArray:
        points = np.zeros(SEATS, np.int64)
        for turn, prize in enumerate(self.prizes[: len(self.bids) // SEATS]):
            bids = self.bids[SEATS * turn : SEATS * (turn + 1)]
            if bids.count(max(bids)) == 1:
                points[bids.index(max(bids))] += prize + 1
        return points

    def returns(self) -> Sequence[float]:
        return [float(share) for share in _shares(self._points(), self.num_cards)]

    def information_state(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        return self.seat(), self.prizes, self._seen().bids

    def observation(self) -> Tree:
        order = _ROTATED[self.seat()]
        seen = self._seen()
        cards = np.arange(self.num_cards)
        hands = [np.isin(cards, seen._hand(int(seat))) for seat in order]
        return {
            "hands": np.concatenate(hands).astype(np.float32),
            "prize": (cards == self.prizes[-1]).astype(np.float32),
            "to_come": (~np.isin(cards, self.prizes)).astype(np.float32),
            "points": (seen._points()[order] / _total(self.num_cards)).astype(np.float32),
        }


@dataclass(frozen=True, kw_only=True)
class MatchPrize(GreedyBot):
    """Bids the card nearest to the prize plus `raise_by`; ties are broken at random."""

    raise_by: int = 0

    def values(self, observation: Tree) -> Array:
        prize = observation["prize"]
        wanted = prize.argmax(axis=1) + self.raise_by
        nearness: Array = -np.abs(np.arange(prize.shape[1]) - wanted[:, None])
        return nearness
