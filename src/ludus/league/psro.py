"""Policy-space response oracles (PSRO): meta-solvers, and matchmaking by a meta-strategy over snapshots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ludus.data.addresses import load_address
from ludus.data.checks import require_in, unknown
from ludus.league.equilibrium import check_antisymmetric, max_entropy_nash
from ludus.league.matchmaking import ALL_FROZEN, Candidates, Law, Matchmaker, Mixture
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
    """Time average of replicator dynamics in which no share falls below `exploration` / players.

    Players that do better than the mixture grow. The dynamics cycle around an equilibrium and their average
    converges to it: with the defaults a best response gains about a hundredth of the largest payoff.
    """
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
    """Alpha-rank: the share of time that a finite population spends as each player.

    Every other player challenges the resident with equal probability. One that wins d on average takes over
    with probability (1 - e^-x) / (1 - e^-(population x)), x = alpha d; 1 / population if they are even.
    """
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
    """The stationary law of a Markov chain by state reduction (Grassmann, Taksar and Heyman), which never
    subtracts and so keeps its digits between probabilities of 1 and 1e-12."""
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
    """Opponents of each player (row) under rectified Nash: the equilibrium restricted to the players that it
    does not lose to. Rows sum to 1; a player that loses to all of them gets the equilibrium itself."""
    matrix = check_antisymmetric(payoff)
    nash = max_entropy_nash(matrix)
    even = 1e-9 * float(np.abs(matrix).max())
    weights = np.where(matrix >= -even, nash, 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    return np.asarray(np.where(totals > 0, weights / np.where(totals > 0, totals, 1.0), nash))


def rectified_nash(payoff: Any) -> Floats:
    """Opponents of a new player: the `rectified_opponents` of the equilibrium's players, mixed by their shares."""
    return np.asarray(max_entropy_nash(payoff) @ rectified_opponents(payoff))


META_SOLVERS: Mapping[str, MetaSolver] = MappingProxyType(
    {
        "uniform": uniform,
        "nash": max_entropy_nash,
        "projected_replicator": projected_replicator,
        "alpha_rank": alpha_rank,
        "rectified_nash": rectified_nash,
    }
)
"""By the name used in an experiment."""

_SOLVED: OrderedDict[tuple[str, tuple[str, ...]], tuple[Floats, Floats]] = OrderedDict()
"""(solver, pool) -> its latest payoff and strategy: matches are drawn far more often than payoffs change."""
_MOST_SOLVED = 8


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
    """Snapshots of the pool `over`, drawn from the meta-strategy of their payoff against each other.

    The payoff is the mean score of each pair, scaled into [-1, 1]; 0 for pairs that have met too seldom. Only
    evaluation lets snapshots meet: with `decide_on="combined"` every snapshot is evaluated against all earlier
    ones.
    """

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
        strategy = _solve(self.solver, pool, payoff.mean_scores(pool))
        law = (1.0 - self.explore) * strategy + self.explore / len(pool)
        return dict(zip(pool, law.tolist(), strict=True))


def reads_every_pair(rules: LeagueRules) -> bool:
    """Whether a role uses a meta-strategy and reads a payoff that can hold games between snapshots."""
    return rules.decide_on != "training" and any(_has_meta(role.matchmaking) for role in rules.roles.values())


def _has_meta(matchmaking: Matchmaker) -> bool:
    if isinstance(matchmaking, Mixture):
        return any(_has_meta(branch) for _, branch in matchmaking.branches)
    return isinstance(matchmaking, MetaStrategy)


def _solve(solver: str, pool: tuple[str, ...], payoff: Floats) -> Floats:
    """The meta-strategy, cached while the payoff stays the same."""
    known = _SOLVED.get((solver, pool))
    if known is not None and (known[0] is payoff or np.array_equal(known[0], payoff)):
        _SOLVED.move_to_end((solver, pool))
        return known[1]
    strategy = np.asarray(find_solver(solver)(payoff / max(1.0, float(np.abs(payoff).max()))), np.float64)
    total = float(strategy.sum())
    if strategy.shape != (len(pool),) or not (strategy >= -1e-9).all() or not abs(total - 1.0) < 1e-6:
        raise ValueError(
            f"meta-solver {solver!r} gave no distribution over {len(pool)} players: shape {strategy.shape}, "
            f"least {strategy.min(initial=np.inf):g}, sum {total:g}"
        )
    strategy = np.clip(strategy, 0.0, None)
    strategy /= strategy.sum()
    _SOLVED[solver, pool] = (payoff, strategy)
    _SOLVED.move_to_end((solver, pool))
    while len(_SOLVED) > _MOST_SOLVED:
        _SOLVED.popitem(last=False)
    return strategy
