"""Policy-space response oracles (PSRO): opponents drawn from a meta-strategy over the frozen population."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ludus.data.files import load_address
from ludus.league.matchmaking import ALL_FROZEN, Candidates, Floats, Law, Matchmaker, Mixture
from ludus.league.meta_solvers import META_SOLVERS, MetaSolver
from ludus.league.payoff import Payoff
from ludus.league.players import unknown
from ludus.league.rules import LeagueRules

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
