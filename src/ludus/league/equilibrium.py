"""Mixtures of players that no other player in the payoff can exploit: Nash equilibria by linear programme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Equilibrium:
    """Strategies of both sides and what the row side gets on average. Each strategy sums to 1."""

    row: Floats
    column: Floats
    value: float


def nash(payoff: Any) -> Equilibrium:
    """An equilibrium of the zero-sum game in which the row side gets payoff[row, column]."""
    matrix = _check_matrix(payoff)
    row, column = _maximin(matrix), _maximin(-matrix.T)
    return Equilibrium(row=row, column=column, value=float(row @ matrix @ column))


def nash_of_win_rates(win_rates: Any) -> Equilibrium:
    """The symmetric equilibrium of a league: payoff is the win rate minus 1/2, so the value is 0."""
    rates = _check_matrix(win_rates)
    if rates.shape[0] != rates.shape[1] or not np.allclose(rates + rates.T, 1.0, rtol=0.0, atol=1e-6):
        raise ValueError(
            f"win rates must be a square matrix with w(a, b) + w(b, a) = 1, got shape {rates.shape}"
        )
    strategy = _maximin((rates - rates.T) / 2)
    return Equilibrium(row=strategy, column=strategy, value=0.0)


def exploitability(payoff: Any, row: Floats, column: Floats) -> float:
    """How much both sides together could gain by best responses; 0 at an equilibrium."""
    matrix = _check_matrix(payoff)
    return float((matrix @ column).max() - (row @ matrix).min())


def _maximin(matrix: Floats) -> Floats:
    """The row strategy x with the best worst case: maximise v with x' matrix >= v in every column."""
    rows, columns = matrix.shape
    scale = float(np.abs(matrix).max()) or 1.0
    from scipy.optimize import linprog  # seldom needed, and slow to import

    solution = linprog(
        c=np.append(np.zeros(rows), -1.0),
        A_ub=np.column_stack([-matrix.T / scale, np.ones(columns)]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * rows + [(-1.0, 1.0)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solution.x is None:
        raise ArithmeticError(f"no equilibrium found for a {rows} x {columns} payoff: {solution.message}")
    strategy = np.clip(solution.x[:rows], 0.0, None)
    return np.asarray(strategy / strategy.sum())


def _check_matrix(payoff: Any) -> Floats:
    matrix = np.asarray(payoff, np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"a payoff must be a matrix with at least one entry, got shape {matrix.shape}")
    bad = np.argwhere(~np.isfinite(matrix))
    if len(bad):
        row, column = bad[0]
        raise ValueError(f"payoff[{row}, {column}] is {matrix[row, column]}; every entry must be finite")
    return matrix
