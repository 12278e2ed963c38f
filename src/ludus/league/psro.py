"""Policy-space response oracles (PSRO): opponents drawn from a meta-strategy over the frozen population."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.addresses import load_address
from ludus.league.equilibrium import check_antisymmetric, max_entropy_nash
from ludus.league.matchmaking import ALL_FROZEN, Candidates, Law, Matchmaker, Mixture
from ludus.league.payoff import Payoff
from ludus.league.players import unknown
from ludus.league.rules import LeagueRules

Floats = NDArray[np.float64]
MetaSolver = Callable[[Any], Floats]

_NEVER = 1e-12
"""Chance of a takeover that selection all but rules out: keeps one long-run law, whoever is first."""


def uniform(payoff: Any) -> Floats:
    """Every player alike: fictitious play."""
    size = len(check_antisymmetric(payoff))
    return np.full(size, 1.0 / size)


def projected_replicator(
    payoff: Any, *, steps: int = 1000, step_size: float = 0.5, exploration: float = 1e-3
) -> Floats:
    """Time average of replicator dynamics in which nobody falls below `exploration` / players.

    Players that do better than the mixture grow. The dynamics circle round an equilibrium and their average
    closes in on it: after these steps a best response gains about a hundredth of the largest payoff.
    """
    matrix = check_antisymmetric(payoff)
    size = len(matrix)
    matrix = matrix / (float(np.abs(matrix).max()) or 1.0)
    mixture = np.full(size, 1.0 / size)
    total = np.zeros(size)
    before = matrix @ mixture
    for _ in range(steps):
        gain = matrix @ mixture
        # Second order in time (Adams and Bashforth): plain steps leave the circle outwards.
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
    """Share of time that a finite population spends as each player, when mutants take over if they win.

    A resident is challenged by every other player alike. One that wins d on average takes over with
    probability (1 - e^-x) / (1 - e^-(population x)), x = alpha d; 1 / population when they are even.
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
    """The stationary law of a chain by state reduction, which only adds, multiplies and divides.

    No digits are lost between chances of 1 and of 1e-12 (Grassmann, Taksar and Heyman).
    """
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
    """Whom each player (row) trains against under rectified Nash: the equilibrium's players that it does not
    lose to, in the proportions of the equilibrium. Rows sum to 1; a player that loses to all of them trains
    against the equilibrium itself.
    """
    matrix = check_antisymmetric(payoff)
    nash = max_entropy_nash(matrix)
    even = 1e-9 * float(np.abs(matrix).max())
    weights = np.where(matrix >= -even, nash, 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    return np.asarray(np.where(totals > 0, weights / np.where(totals > 0, totals, 1.0), nash))


def rectified_nash(payoff: Any) -> Floats:
    """Opponents of a newcomer that takes after a player of the equilibrium, drawn by its share, and trains
    against that player's `rectified_opponents`."""
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
"""By the name that an experiment calls them."""


_Key = tuple[str, tuple[str, ...]]
_SOLVED: OrderedDict[_Key, tuple[Floats, Floats]] = OrderedDict()
"""The latest answers: a payoff between frozen players changes seldom, and a match is drawn every moment."""
_MOST_SOLVED = 8


def find_solver(name: str) -> MetaSolver:
    """By name, or by address: `my_file.py:solver`."""
    if ":" in name:
        solver: MetaSolver = load_address(name)
        return solver
    if name not in META_SOLVERS:
        raise ValueError(unknown("meta-solver", name, META_SOLVERS))
    return META_SOLVERS[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class MetaStrategy(Matchmaker):
    """Snapshots of the pool `over`, drawn from the meta-strategy of their payoff against each other.

    The payoff is the mean score between each two of them, scaled into [-1, 1]; 0 for those that have met too
    seldom. Only evaluation makes snapshots meet each other: let the league decide on the combined payoff, and
    every snapshot is evaluated against all earlier ones.
    """

    solver: str = "nash"
    over: str = ALL_FROZEN
    explore: float = 0.0
    """The share of matches against any of the pool alike, so that no opponent is never met."""

    def __post_init__(self) -> None:
        find_solver(self.solver)
        if not 0.0 <= self.explore <= 1.0:
            raise ValueError(f"MetaStrategy.explore must be from 0 to 1, got {self.explore}")

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        pool = candidates.past(self.over, player)
        if not pool:
            return {player: 1.0}
        strategy = _solve(self.solver, pool, payoff.mean_scores(pool))
        law = (1.0 - self.explore) * strategy + self.explore / len(pool)
        return dict(zip(pool, law.tolist(), strict=True))


def reads_every_pair(rules: LeagueRules) -> bool:
    """Whether a role draws from a meta-strategy, and the payoff it reads can hold games between snapshots."""
    return rules.decide_on != "training" and any(_has_meta(role.matchmaking) for role in rules.roles.values())


def _has_meta(matchmaking: Matchmaker) -> bool:
    if isinstance(matchmaking, Mixture):
        return any(_has_meta(branch) for _, branch in matchmaking.branches)
    return isinstance(matchmaking, MetaStrategy)


def _solve(solver: str, pool: tuple[str, ...], payoff: Floats) -> Floats:
    """The meta-strategy; the same payoff is not solved twice in a row."""
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
