"""Exact solving of small games: the yardstick that trained leagues are measured against."""

from __future__ import annotations

import numpy as np

from ludus.data.flat_tree import TIE, FlatTree, Probs


def cfr_br(tree: FlatTree, iterations: int) -> list[float]:
    """NashConv of the average policy after each iteration of CFR-BR.

    In an iteration every seat matches its regrets against the best response to its current policy. Two seats.
    """
    if tree.num_seats != 2:
        raise ValueError(f"CFR-BR needs 2 seats, this tree has {tree.num_seats}")
    regrets = np.zeros(tree.legal.shape)
    plan = np.zeros(tree.legal.shape)
    current = tree.uniform()
    nash_conv: list[float] = []
    for _ in range(iterations):
        plan += tree.plan(current)
        for seat in range(tree.num_seats):
            _, profile = tree.best_response(1 - seat, current)
            values, expected = tree.action_values(seat, profile)
            regrets += np.where(tree.legal, values - expected[:, None], 0.0)
        current = _match_regrets(tree, regrets)
        nash_conv.append(tree.nash_conv(tree.behaviour(plan)))
    return nash_conv


def _match_regrets(tree: FlatTree, regrets: Probs) -> Probs:
    """Proportional to positive regret; uniform where there is none but rounding."""
    return tree.behaviour(np.where(regrets > TIE, regrets, 0.0))
