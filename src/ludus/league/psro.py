"""Policy-space response oracles (PSRO): meta-solvers, and matchmaking by a meta-strategy over snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ludus.data.addresses import load_address
from ludus.data.checks import require_in, unknown
from ludus.league.equilibrium import check_antisymmetric, max_entropy_nash
from ludus.league.matchmaking import ALL_FROZEN, Candidates, Law, Matchmaker, branches_of
from ludus.league.payoff import Floats, Payoff
from ludus.league.rules import LeagueRules

MetaSolver = Callable[[Any], Floats]

_NEVER = 1e-12
"""Least probability of a takeover in alpha-rank, which keeps the stationary law unique."""


def uniform(payoff: Any) -> Floats:
    """The uniform mixture: fictitious play."""
    size = len(check_antisymmetric(payoff))
    return np.full(size, 1.0 / size)


def projected_replicator(
    payoff: Any, *, steps: int = 1000, step_size: float = 0.5, exploration: float = 1e-3
) -> Floats:
    """Time average of replicator dynamics in which no share falls below `exploration` / players. It converges to an
    equilibrium: with the defaults a best response gains about a hundredth of the largest payoff."""
    matrix = check_antisymmetric(payoff)
    size = len(matrix)
    matrix = matrix / (float(np.abs(matrix).max()) or 1.0)
    mixture = np.full(size, 1.0 / size)
    total = np.zeros(size)
    before = matrix @ mixture
    for _ in range(steps):
        gain = matrix @ mixture
        # Second order in time (Adams-Bashforth): plain Euler steps spiral outwards.
        slope = 1.5 * gain - 0.5 * before
        before = gain
        grown = mixture * (1.0 + step_size * (slope - mixture @ slope))
        mixture = _keep_floor(grown, exploration / size)
        total += mixture
    return np.asarray(total / total.sum())


def _keep_floor(mixture: Floats, floor: float) -> Floats:
    """The nearest mixture with no share below `floor`. Replicator steps keep the sum at 1 by themselves."""
    if mixture.min() >= floor:
        return mixture
    above = np.sort(mixture - floor)[::-1]
    excess = (np.cumsum(above) - (1.0 - floor * len(mixture))) / np.arange(1, len(mixture) + 1)
    shift = excess[np.flatnonzero(above > excess)[-1]]
    return np.asarray(floor + np.maximum(mixture - floor - shift, 0.0))


def alpha_rank(payoff: Any, *, alpha: float = 100.0, population: int = 50) -> Floats:
    """Alpha-rank: the share of time that a finite population spends as each player. A challenger that wins d on average
    takes over with probability (1 - e^-x) / (1 - e^-(population x)), x = alpha d."""
    matrix = check_antisymmetric(payoff)
    size = len(matrix)
    if size == 1:
        return np.ones(1)
    lead = -matrix  # lead[resident, mutant]
    distance = np.clip(alpha * np.abs(lead), 1e-6, 700.0)
    once, often = np.exp(-distance), np.exp(-population * distance)
    ahead = (1.0 - once) / (1.0 - often)
    # For a mutant that is as far behind the same formula is e^-((population - 1) x) times as much.
    chance = np.where(lead < 0, ahead * often / once, ahead)
    moves = np.maximum(chance, _NEVER) / (size - 1)
    np.fill_diagonal(moves, 0.0)
    return _long_run(moves)


def _long_run(moves: Floats) -> Floats:
    """The stationary law of a Markov chain by state reduction (Grassmann, Taksar and Heyman), without subtractions."""
    size = len(moves)
    moves = moves.copy()
    for last in range(size - 1, 0, -1):
        moves[:last, last] /= moves[last, :last].sum()
        moves[:last, :last] += np.outer(moves[:last, last], moves[last, :last])
    shares = np.zeros(size)
    shares[0] = 1.0
    for state in range(1, size):
        shares[state] = shares[:state] @ moves[:state, state]
        shares[: state + 1] /= shares[: state + 1].sum()
    return shares


def rectified_opponents(payoff: Any) -> Floats:
    """Opponents of each player (row) under rectified Nash: the equilibrium of the players that it does not lose to."""
    matrix = check_antisymmetric(payoff)
    nash = max_entropy_nash(matrix)
    even = 1e-9 * float(np.abs(matrix).max())
    weights = np.where(matrix >= -even, nash, 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    return np.asarray(np.where(totals > 0, weights / np.where(totals > 0, totals, 1.0), nash))


def rectified_nash(payoff: Any) -> Floats:
    """Opponents of a new player: the `rectified_opponents` of the equilibrium's players, mixed by their shares."""
    return np.asarray(max_entropy_nash(payoff) @ rectified_opponents(payoff))


META_SOLVERS: Mapping[str, MetaSolver] = {
    "uniform": uniform,
    "nash": max_entropy_nash,
    "projected_replicator": projected_replicator,
    "alpha_rank": alpha_rank,
    "rectified_nash": rectified_nash,
}
"""By the name used in an experiment."""


def find_solver(name: str) -> MetaSolver:
    """A meta-solver by name, or by address: `my_file.py:solver`."""
    if ":" in name:
        solver: MetaSolver = load_address(name)
        return solver
    if name not in META_SOLVERS:
        raise ValueError(unknown("meta-solver", name, META_SOLVERS))
    return META_SOLVERS[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class MetaStrategy(Matchmaker):
    """Snapshots of the pool `over`, drawn from the meta-strategy of their mean scores against each other. Only
    evaluation lets snapshots meet: with `decide_on="combined"` each is evaluated against all earlier ones."""

    solver: str = "nash"
    over: str = ALL_FROZEN
    explore: float = 0.0
    """Share of matches against a uniformly drawn opponent, so that every one is met."""

    def __post_init__(self) -> None:
        find_solver(self.solver)
        require_in(self, "[0, 1]", explore=self.explore)

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        pool = candidates.past(self.over, player)
        if not pool:
            return {player: 1.0}
        strategy = _solve(self.solver, len(pool), payoff.mean_scores(pool).tobytes())
        law = (1.0 - self.explore) * strategy + self.explore / len(pool)
        return dict(zip(pool, law.tolist(), strict=True))


def reads_every_pair(rules: LeagueRules) -> bool:
    """Whether a role uses a meta-strategy and reads a payoff that can hold games between snapshots."""
    rules_of_roles = (rule for role in rules.roles.values() for rule in branches_of(role.matchmaking))
    return rules.decide_on != "training" and any(isinstance(rule, MetaStrategy) for rule in rules_of_roles)


@lru_cache(maxsize=8)
def _solve(solver: str, size: int, payoff_bytes: bytes) -> Floats:
    """The meta-strategy. It is cached, because matches are drawn far more often than payoffs change."""
    payoff = np.frombuffer(payoff_bytes).reshape(size, size)
    strategy = np.asarray(find_solver(solver)(payoff / max(1.0, float(np.abs(payoff).max()))), np.float64)
    total = float(strategy.sum())
    if strategy.shape != (size,) or not (strategy >= -1e-9).all() or not abs(total - 1.0) < 1e-6:
        raise ValueError(
            f"meta-solver {solver!r} gave no distribution over {size} players: shape {strategy.shape}, "
            f"least {strategy.min(initial=np.inf):g}, sum {total:g}"
        )
    strategy = np.clip(strategy, 0.0, None)
    return np.asarray(strategy / strategy.sum())
