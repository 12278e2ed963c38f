"""The arrays of phantom games against walks through all histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from ludus.data.game_tree import OVER, FlatTree, Probs
from ludus.data.phantom_tree import Moves, PhantomTree, Won, hex_connection, three_in_a_row
from ludus.data.trees import IntArray, Tree

Attempts = tuple[int, ...]
"""As in `Moves`, without the zeros."""


@dataclass(frozen=True)
class Walked:
    """One history of a phantom game, in plain Python."""

    won: Won
    attempts: tuple[Attempts, Attempts] = ((), ())
    mover: int = 0

    @property
    def cells(self) -> int:
        return int(self.won.shape[1]).bit_length() - 1

    def stones(self, seat: int) -> set[int]:
        return {attempt - 1 for attempt in self.attempts[seat] if attempt > 0}

    def wins(self, seat: int) -> bool:
        return bool(self.won[seat, sum(1 << cell for cell in self.stones(seat))])

    def seat(self) -> int:
        full = len(self.stones(0) | self.stones(1)) == self.cells
        return OVER if full or self.wins(0) or self.wins(1) else self.mover

    def legal_actions(self) -> Sequence[int]:
        return sorted(set(range(self.cells)) - {abs(attempt) - 1 for attempt in self.attempts[self.mover]})

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        return []

    def child(self, action: int) -> Walked:
        fails = action in self.stones(1 - self.mover)
        own = (*self.attempts[self.mover], -(action + 1) if fails else action + 1)
        attempts = (own, self.attempts[1]) if self.mover == 0 else (self.attempts[0], own)
        return Walked(self.won, attempts, self.mover if fails else 1 - self.mover)

    def returns(self) -> Sequence[float]:
        score = float(self.wins(0)) - float(self.wins(1))
        return score, -score

    def information_state(self) -> Attempts:
        return self.attempts[self.mover]

    def observation(self) -> Tree:
        own = self.attempts[self.mover]
        return {"attempts": np.array([self.mover, *own, *[0] * (self.cells - len(own))], np.int8)}


def observe(seat: int, moves: Moves) -> Tree:
    return {"attempts": np.concatenate([np.full((len(moves), 1), seat, np.int8), moves], axis=1)}


def pairs_win(cells: int) -> Won:
    """Two neighbours in a row win, so that a full board may be a draw."""
    won = np.array([stones & stones >> 1 != 0 for stones in range(2**cells)])
    return np.stack([won, won])


def rows_of(tree: PhantomTree, walked: FlatTree) -> IntArray:
    """The rows of the first tree that are the information states of the second."""
    seen = map(bytes, tree.observe(slice(0, len(tree.legal)))["attempts"])
    known = {attempts: row for row, attempts in enumerate(seen)}
    assert len(known) == len(tree.legal) == len(walked.legal)
    return np.array([known[bytes(attempts)] for attempts in walked.observations["attempts"]])


def random_policy(tree: PhantomTree, seed: int) -> Probs:
    """Some actions have a probability of zero."""
    rng = np.random.default_rng(seed)
    weights = np.where(tree.legal, rng.random(tree.legal.shape) * (rng.random(tree.legal.shape) < 0.8) + 1e-3, 0.0)
    weights[rng.random(len(weights)) < 0.1, :1] = 0.0
    weights += (weights.sum(axis=1) == 0.0)[:, None] * tree.legal
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    "won", [pairs_win(3), pairs_win(5), np.zeros((2, 16), np.bool_), hex_connection(2, 2), hex_connection(1, 3)]
)
def test_values_and_best_responses_are_those_of_all_histories(won: Won) -> None:
    tree, walked = PhantomTree(won, observe), FlatTree.build(Walked(won))
    rows = rows_of(tree, walked)
    np.testing.assert_array_equal(tree.legal[rows], walked.legal)
    np.testing.assert_array_equal(tree.infostate_seat[rows], walked.infostate_seat)
    for seed in range(3):
        probs = random_policy(tree, seed)
        np.testing.assert_allclose(tree.values(probs), walked.values(probs[rows]), atol=1e-12)
        assert tree.nash_conv(probs) == pytest.approx(walked.nash_conv(probs[rows]), abs=1e-12)
        for seat in range(2):
            value, policy = tree.best_response(seat, probs)
            assert value == pytest.approx(walked.best_response(seat, probs[rows])[0], abs=1e-12)
            assert tree.values(policy)[seat] == pytest.approx(value, abs=1e-12)
            others = tree.infostate_seat != seat
            np.testing.assert_array_equal(policy[others], probs[others])


def test_a_mixture_draws_before_the_game() -> None:
    won = pairs_win(4)
    tree, walked = PhantomTree(won, observe), FlatTree.build(Walked(won))
    rows = rows_of(tree, walked)
    policies = [random_policy(tree, seed) for seed in range(3)]
    for weights in ([0.2, 0.5, 0.3], [[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]]):
        mixture = tree.mixture(iter(policies), weights)
        expected = walked.mixture([policy[rows] for policy in policies], weights)
        np.testing.assert_allclose(mixture[rows], expected, atol=1e-12)


def test_rows_are_observed_in_any_parts() -> None:
    tree = PhantomTree(pairs_win(4), observe)
    whole = tree.observe(slice(0, len(tree.legal)))["attempts"]
    for size in (1, 7, 50):
        parts = [tree.observe(slice(at, min(at + size, len(whole)))) for at in range(0, len(whole), size)]
        np.testing.assert_array_equal(np.concatenate([part["attempts"] for part in parts]), whole)


def test_who_wins() -> None:
    rows = [0b111 << 3 * row for row in range(3)]
    columns = [0b1001001 << column for column in range(3)]
    winning = [stones for stones in range(512) if three_in_a_row()[0, stones]]
    least = [stones for stones in winning if not any(other != stones and other & stones == other for other in winning)]
    assert sorted(least) == sorted([*rows, *columns, 0b100010001, 0b001010100])
    first, second = hex_connection(3, 3)
    assert (first ^ second[[sum(1 << cell for cell in range(9) if ~stones >> cell & 1) for stones in range(512)]]).all()
    assert first[columns].all()
    assert second[rows].all()
    assert not first[0b100010001]
    assert first[0b001010100]
