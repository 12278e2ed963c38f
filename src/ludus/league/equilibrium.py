"""Nash equilibria of zero-sum matrix games: any, symmetric, or the one of largest entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ludus.league.payoff import Floats

_TIGHT = 1e-9
"""Relative to the largest payoff, smaller differences are rounding errors."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Equilibrium:
    """Strategies of both sides, each summing to 1, and the expected payoff of the row side."""

    row: Floats
    column: Floats
    value: float


def nash(payoff: Any) -> Equilibrium:
    """An equilibrium of the zero-sum game with payoff[row, column] for the row side, by linear programming."""
    matrix = _check_matrix(payoff)
    row, column = _maximin(matrix), _maximin(-matrix.T)
    return Equilibrium(row=row, column=column, value=float(row @ matrix @ column))


def _maximin(matrix: Floats) -> Floats:
    """The row strategy x with the best worst case: maximise v with x' matrix >= v in every column."""
    rows, columns = matrix.shape
    scale = float(np.abs(matrix).max()) or 1.0
    solution = _linear_programme(
        {},
        c=np.append(np.zeros(rows), -1.0),
        A_ub=np.column_stack([-matrix.T / scale, np.ones(columns)]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * rows + [(-1.0, 1.0)],
    )
    if solution.x is None:
        raise ArithmeticError(f"no equilibrium found for a {rows} x {columns} payoff: {solution.message}")
    strategy = np.clip(solution.x[:rows], 0.0, None)
    return np.asarray(strategy / strategy.sum())


def _linear_programme(options: dict[str, int], **programme: Any) -> Any:
    from scipy.optimize import linprog  # seldom needed, and slow to import

    tolerances = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    return linprog(**programme, method="highs", options=tolerances | options)  # type: ignore[call-overload]


def _check_matrix(payoff: Any) -> Floats:
    matrix = np.asarray(payoff, np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"a payoff must be a matrix with at least one entry, got shape {matrix.shape}")
    bad = np.argwhere(~np.isfinite(matrix))
    if len(bad):
        row, column = bad[0]
        raise ValueError(f"payoff[{row}, {column}] is {matrix[row, column]}; every entry must be finite")
    return matrix


def check_antisymmetric(payoff: Any) -> Floats:
    """The payoff of a symmetric game, checked and made exactly antisymmetric."""
    matrix = _check_matrix(payoff)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a payoff must be a square matrix of at least one player, got shape {matrix.shape}")
    sums = np.abs(matrix + matrix.T)
    if sums.max() > 1e-6 * max(1.0, float(np.abs(matrix).max())):
        row, column = np.unravel_index(int(sums.argmax()), sums.shape)
        raise ValueError(
            f"payoff[{row}, {column}] = {matrix[row, column]:g} and payoff[{column}, {row}] = "
            f"{matrix[column, row]:g} must add up to 0; of win rates w take 2 w - 1"
        )
    return np.asarray((matrix - matrix.T) / 2)


def symmetric_nash(payoff: Any) -> Floats:
    """A mixture that no player wins against, by complementary pivoting (Lemke and Howson) on the tableau of a symmetric
    game. Where that fails, for example because of ties, the linear programme decides."""
    matrix = check_antisymmetric(payoff)
    scale = float(np.abs(matrix).max()) or 1.0
    mixture = _pivot(matrix / scale)
    if mixture is None or (matrix @ mixture).max() > _TIGHT * scale:
        mixture = _maximin(matrix)
    return mixture


def zero_sum_value(payoff: Any) -> float:
    """The value of the zero-sum game for the row side, from a symmetric game of both sides (Gale, Kuhn and Tucker)."""
    matrix = np.asarray(payoff, np.float64)
    low, spread = float(matrix.min()), float(np.ptp(matrix))
    if spread == 0.0:
        return low
    rows, columns = matrix.shape
    both = np.zeros((rows + columns + 1,) * 2)
    both[:rows, rows:-1] = 1.0 + (matrix - low) / spread
    both[:rows, -1] = -1.0
    both[rows:-1, -1] = 1.0
    mixture = symmetric_nash(both - both.T)
    row, column = mixture[:rows], mixture[rows:-1]
    return float(row @ matrix @ column / (row.sum() * column.sum()))


def max_entropy_nash(payoff: Any) -> Floats:
    """The equilibrium of largest entropy, the only one that does not depend on how ties are broken. If rounding
    prevents it, another equilibrium is returned."""
    matrix = check_antisymmetric(payoff)
    scale = float(np.abs(matrix).max())
    if scale == 0.0:
        return np.full(len(matrix), 1.0 / len(matrix))
    matrix = matrix / scale
    mixture = symmetric_nash(matrix)
    # Every player of any equilibrium breaks even against each of them, so the others can be left out.
    even = np.flatnonzero(matrix @ mixture >= -_TIGHT)
    block = matrix[np.ix_(even, even)]
    if (mixture[even] > _TIGHT).all() and np.linalg.matrix_rank(block, tol=_TIGHT) >= len(even) - 1:
        return mixture
    shares = _widest(matrix[:, even])
    if shares is None:  # the solver can fail on hundreds of near ties; then any equilibrium has to do
        return mixture
    widest = np.zeros(len(matrix))
    widest[even] = shares
    support = np.flatnonzero(widest > _TIGHT)
    binding = support  # their gains are 0 in every equilibrium
    while True:
        flattest = np.zeros(len(matrix))
        flattest[support] = _flattest(matrix[np.ix_(binding, support)])
        gains = matrix @ flattest
        gains[binding] = 0.0
        if gains.max() <= _TIGHT:
            break
        binding = np.append(binding, gains.argmax())  # one at a time: not all of them need to bind
    # A constraint that binds at the edge of feasibility can spoil the last step; then any equilibrium has to do.
    return flattest if (matrix @ flattest).max() <= 10 * _TIGHT else widest


def _pivot(matrix: Floats) -> Floats | None:
    """Follow the path of one missing label from the empty mixture; None if it does not end."""
    from scipy.linalg.blas import dger  # slow to import: a reader of a saved fold does without

    size = len(matrix)
    # Positive payoffs; Fortran order so that the rank-one update of a pivot is done in place.
    tableau = np.empty((size, size + 1), order="F")
    tableau[:, :size] = matrix + 1.5
    tableau[:, size] = 1.0
    # Variables: 0..size-1 shares of players, size..2 size - 1 their slacks.
    basic, free = np.arange(size, 2 * size), np.arange(size)
    missing = entering = int(matrix.sum(axis=1).argmax())
    ratio = np.empty(size)
    for _ in range(10 * size + 50):
        column = tableau[:, entering].copy()
        ratio.fill(np.inf)
        np.divide(tableau[:, size], column, out=ratio, where=column > 1e-11)
        at = int(ratio.argmin())
        if not np.isfinite(ratio[at]):
            return None
        pivot = column[at]
        row = tableau[at] / pivot
        column[at] = 0.0
        tableau = dger(-1.0, column, row, a=tableau, overwrite_a=1)
        tableau[:, entering] = -column / pivot
        tableau[at] = row
        tableau[at, entering] = 1.0 / pivot
        leaving = int(basic[at])
        basic[at], free[entering] = free[entering], leaving
        if leaving % size == missing:
            shares = np.zeros(2 * size)
            shares[basic] = tableau[:, size]
            mixture = np.clip(shares[:size], 0.0, None)
            return np.asarray(mixture / mixture.sum())
        entering = int(np.flatnonzero(free == (leaving + size) % (2 * size))[0])
    return None


def _widest(columns: Floats) -> Floats | None:
    """An equilibrium of these players with the largest support; None if the solver fails."""
    rows, size = columns.shape
    solution = _linear_programme(
        {"maxiter": 10 * size},  # near ties would take seconds and then fail
        c=np.repeat([-1.0, 0.0], size),
        A_ub=np.hstack([columns, columns]),
        b_ub=np.zeros(rows),
        bounds=[(0.0, 1.0)] * size + [(0.0, None)] * size,
    )
    if solution.status != 0 or solution.x is None:
        return None
    shares = np.clip(solution.x[:size] + solution.x[size:], 0.0, None)
    return np.asarray(shares / shares.sum())


def _flattest(rows: Floats) -> Floats:
    """The mixture of largest entropy with rows @ mixture = 0, by Newton's method on the dual problem."""
    from scipy.special import logsumexp, softmax  # slow to import, as above

    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    basis = basis[sizes > _TIGHT]
    weights = np.zeros(len(basis))
    for _ in range(100):
        shares = softmax(-weights @ basis)
        gap = basis @ shares
        if not len(gap) or np.abs(gap).max() < 1e-14:
            break
        curvature = (basis * shares) @ basis.T - np.outer(gap, gap)
        step = np.linalg.solve(curvature + 1e-15 * np.eye(len(gap)), gap)
        total, size = logsumexp(-weights @ basis), 1.0
        while size > 1e-9 and logsumexp(-(weights + size * step) @ basis) > total:
            size /= 2
        weights = weights + size * step
    return np.asarray(softmax(-weights @ basis), np.float64)
