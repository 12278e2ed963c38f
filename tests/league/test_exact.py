"""CFR-BR, written with `FlatTree`, reproduces the numbers of OpenSpiel."""

from __future__ import annotations

import numpy as np
import pytest

from ludus.data.game_tree import TIE, FlatTree, Probs
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc

# From OpenSpiel's CFRBRSolver, average policy after each iteration.
KUHN = [0.9166666666666666, 0.33333333333333337, 0.3194444444444445, 0.2604166666666667, 0.22666666666666674]
LEDUC = [4.747222222222222, 4.006867283950617, 3.4090489231017034, 2.8982539553095172, 2.5367193593344504]
LEDUC += [2.1535358439518117, 2.010877180726298, 1.7900207815867364]


def action_values(tree: FlatTree, seat: int, probs: Probs) -> tuple[Probs, Probs]:
    """Counterfactual values of `seat`: [infostates, actions] and, following `probs`, [infostates]. They are weighted
    by the reach of the others and of chance, and zero in the rows of other seats."""
    gains = tree._leaf_reach(probs, without=seat) * tree._leaf_returns[:, seat]
    worth = np.bincount(tree._leaf_sequence[seat], gains, tree.legal.size + 1)
    values = worth[:-1].reshape(tree.legal.shape)
    expected = np.zeros(len(probs))
    for rows in tree._layers[seat]:
        expected[rows] = (probs[rows] * values[rows]).sum(axis=1)
        np.add.at(worth, tree.infostate_parent[rows], expected[rows])
    return values, expected


def cfr_br(tree: FlatTree, iterations: int) -> list[float]:
    """NashConv of the average policy after each iteration. Every seat updates its regrets against the best
    response to its current policy."""
    regrets = np.zeros(tree.legal.shape)
    plan = np.zeros(tree.legal.shape)
    current = tree.uniform()
    nash_conv: list[float] = []
    for _ in range(iterations):
        plan += tree.plan(current)
        for seat in range(2):
            _, profile = tree.best_response(1 - seat, current)
            values, expected = action_values(tree, seat, profile)
            regrets += np.where(tree.legal, values - expected[:, None], 0.0)
        current = tree.behaviour(np.where(regrets > TIE, regrets, 0.0))
        nash_conv.append(tree.nash_conv(tree.behaviour(plan)))
    return nash_conv


def test_cfr_br_on_kuhn() -> None:
    assert cfr_br(FlatTree.build(Kuhn().tree()), 5) == pytest.approx(KUHN, abs=1e-10)


def test_cfr_br_on_leduc() -> None:
    assert cfr_br(FlatTree.build(Leduc().tree()), 8) == pytest.approx(LEDUC, abs=1e-10)


def test_cfr_br_converges_on_kuhn() -> None:
    assert cfr_br(FlatTree.build(Kuhn().tree()), 500)[-1] < 0.02
