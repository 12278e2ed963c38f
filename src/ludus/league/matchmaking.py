"""Matchmaking: rules for the probability of each opponent. A rule with an empty pool falls back to self-play."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from ludus.data.checks import require_in, unknown
from ludus.league.payoff import Floats, Payoff
from ludus.league.players import SCRIPTED, Player

ALL_FROZEN = "all_frozen"
OWN = "own"
POOLS = (ALL_FROZEN, OWN, SCRIPTED)
"""Pools that are not named after a role."""

Law = dict[str, float]
"""Opponent -> probability."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """The current players, in joining order."""

    players: tuple[Player, ...]
    roles: tuple[str, ...]
    """The learning roles of the league. A misspelt role is an error rather than an empty pool."""
    qualities: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Learning player -> opponent -> quality, for players matched by `QualityScores`."""

    def __iter__(self) -> Iterator[str]:
        return (player.id for player in self.players)

    def __len__(self) -> int:
        return len(self.players)

    def __contains__(self, player: object) -> bool:
        return any(candidate.id == player for candidate in self.players)

    def frozen(self) -> tuple[str, ...]:
        return tuple(player.id for player in self.players if player.frozen)

    def scripted(self) -> tuple[str, ...]:
        return tuple(player.id for player in self.players if player.scripted)

    def learning(self, role: str | None = None) -> tuple[str, ...]:
        """Learning players, of one role or of all."""
        if role is None:
            return tuple(player.id for player in self.players if player.learning)
        self._check_role(role, self.roles)
        return tuple(player.id for player in self.players if player.role == role)

    def history_of(self, parent: str) -> tuple[str, ...]:
        return tuple(player.id for player in self.players if player.frozen and player.parent == parent)

    def history_of_role(self, role: str) -> tuple[str, ...]:
        """Snapshots of every player of a learning role, oldest first."""
        self._check_role(role, self.roles)
        return tuple(player.id for player in self.players if player.frozen and player.parent_role == role)

    def others(self, player: str) -> tuple[str, ...]:
        return tuple(other for other in self if other != player)

    def past(self, over: str, player: str, *, include_scripted: bool = False) -> tuple[str, ...]:
        """The pool `over`: "all_frozen", "own" (snapshots of `player`), "scripted", or a role's snapshots."""
        if over == SCRIPTED:
            return self.scripted()
        if over == ALL_FROZEN:
            pool = self.frozen()
        elif over == OWN:
            pool = self.history_of(player)
        else:
            self._check_role(over, (*self.roles, *POOLS))
            pool = self.history_of_role(over)
        return pool + self.scripted() if include_scripted else pool

    @staticmethod
    def _check_role(role: str, known: tuple[str, ...]) -> None:
        if role not in known:
            raise ValueError(unknown("role", role, known))


class Matchmaker(Protocol):
    """Chooses opponents. A subclass implements `probabilities`; `choose` draws from it."""

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        """The exact law that `choose` draws from. Probabilities sum to 1."""
        ...

    def choose(self, player: str, candidates: Candidates, payoff: Payoff, rng: np.random.Generator) -> tuple[str, ...]:
        """At least one opponent. The league calls it again while teams are without a side."""
        return (draw(self.probabilities(player, candidates, payoff), rng),)


def draw(law: Mapping[str, float], rng: np.random.Generator) -> str:
    """One outcome. Uses a single `random()`, whose stream numpy keeps stable between versions."""
    outcomes = [outcome for outcome, probability in law.items() if probability > 0]
    bounds = np.cumsum([law[outcome] for outcome in outcomes])
    place = int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))
    return outcomes[min(place, len(outcomes) - 1)]


def uniform(pool: Sequence[str], otherwise: str) -> Law:
    """The uniform law over the pool; `otherwise` with certainty if the pool is empty."""
    return {other: 1.0 / len(pool) for other in pool} if pool else {otherwise: 1.0}


_WEIGHTINGS: dict[str, Callable[[Floats], Floats]] = {
    "squared": lambda w: (1.0 - w) ** 2,
    "linear": lambda w: 1.0 - w,
    "variance": lambda w: w * (1.0 - w),
    "linear_capped": lambda w: np.minimum(0.5, 1.0 - w),
}
_MAX_POWER = 16.0
_NO_WEIGHT = 1e-10


def pfsp_probabilities(win_rates: Floats, weighting: str | float) -> Floats:
    """f(w) / sum f(w); uniform if all weights are (nearly) zero. A NaN win rate counts as 0.5."""
    rates = np.clip(np.where(np.isnan(win_rates), 0.5, win_rates), 0.0, 1.0)
    weights = _WEIGHTINGS[weighting](rates) if isinstance(weighting, str) else (1.0 - rates) ** weighting
    total = float(weights.sum())
    if total < _NO_WEIGHT:
        return np.full(len(rates), 1.0 / len(rates))
    return np.asarray(weights / total)


def check_weighting(owner: object, weighting: str | float) -> None:
    if isinstance(weighting, str):
        if weighting not in _WEIGHTINGS:
            raise ValueError(unknown("PFSP weighting", weighting, _WEIGHTINGS))
    elif not 0.0 <= weighting <= _MAX_POWER:
        # Much higher powers underflow, and the law would jump to uniform.
        raise ValueError(
            f"{type(owner).__name__}.weighting as a power must be from 0 to {_MAX_POWER:g}, got {weighting}; "
            f"or one of {', '.join(_WEIGHTINGS)}"
        )


def pfsp_law(player: str, pool: Sequence[str], payoff: Payoff, weighting: str | float) -> Law:
    """The PFSP law over the pool; self-play if the pool is empty."""
    if not pool:
        return {player: 1.0}
    law = pfsp_probabilities(payoff.win_rates(player, pool), weighting)
    return dict(zip(pool, law.tolist(), strict=True))


def mix(laws: Iterable[tuple[float, Law]]) -> Law:
    """The mixture of several laws, given as (share, law)."""
    mixed: Law = {}
    for share, law in laws:
        for other, probability in law.items():
            mixed[other] = mixed.get(other, 0.0) + share * probability
    return mixed


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlay(Matchmaker):
    """The player against its own latest weights."""

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        return {player: 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Live(Matchmaker):
    """A uniformly drawn learning player of `role` with its current weights; exploiters use it."""

    role: str

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        return uniform(candidates.learning(self.role), player)


@dataclass(frozen=True, kw_only=True, slots=True)
class Latest(Matchmaker):
    """The newest snapshot of the pool `over` (see `Candidates.past`)."""

    over: str = OWN

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        return uniform(candidates.past(self.over, player)[-1:], player)


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformPast(Matchmaker):
    """A uniformly drawn snapshot of the pool `over`; `include_current` adds the player itself to the pool."""

    over: str = ALL_FROZEN
    include_current: bool = False
    include_scripted: bool = False

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        pool = candidates.past(self.over, player, include_scripted=self.include_scripted)
        return uniform((*pool, player) if self.include_current else pool, player)


@dataclass(frozen=True, kw_only=True, slots=True)
class PFSP(Matchmaker):
    """Prioritised fictitious self-play: snapshots of the pool `over`, by the win rate w against them. `weighting`:
    "squared" (1-w)^2, "linear" 1-w, "variance" w(1-w), "linear_capped" min(.5, 1-w), or a number k for (1-w)^k."""

    weighting: str | float = "squared"
    over: str = ALL_FROZEN
    include_scripted: bool = False

    def __post_init__(self) -> None:
        check_weighting(self, self.weighting)

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        pool = candidates.past(self.over, player, include_scripted=self.include_scripted)
        return pfsp_law(player, pool, payoff, self.weighting)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture(Matchmaker):
    """A randomly drawn branch of ((probability, matchmaker), ...). A branch may be a mixture itself."""

    branches: tuple[tuple[float, Matchmaker], ...]

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.branches]
        _check_shares("Mixture probabilities", shares, shown=shares)

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        total = sum(share for share, _ in self.branches)
        return mix((share / total, branch.probabilities(player, candidates, payoff)) for share, branch in self.branches)

    def choose(self, player: str, candidates: Candidates, payoff: Payoff, rng: np.random.Generator) -> tuple[str, ...]:
        branch = draw({str(index): share for index, (share, _) in enumerate(self.branches)}, rng)
        return self.branches[int(branch)][1].choose(player, candidates, payoff, rng)


def branches_of(matchmaking: Matchmaker) -> Iterator[Matchmaker]:
    """The rule itself or, for a mixture, the rules that it is made of."""
    if isinstance(matchmaking, Mixture):
        for _, branch in matchmaking.branches:
            yield from branches_of(branch)
    else:
        yield matchmaking


def remembered_until(win_rates: Floats) -> int:
    """The number of a rival's snapshots (oldest first) up to the last rise of the win rate; 0 if there is none. After
    it, the win rate falls with each snapshot because the rival improved, which is not forgetting."""
    rises = np.flatnonzero(win_rates[:-1] < win_rates[1:])
    return int(rises[-1]) + 2 if len(rises) else 0


def forgotten(player: str, rival: str, candidates: Candidates, payoff: Payoff, below: float) -> tuple[str, ...]:
    """Snapshots of a rival before the monotone suffix, if the win rate against any of them is below `below`."""
    history = candidates.history_of(rival)
    win_rates = payoff.win_rates(player, history)
    kept = remembered_until(win_rates)
    return history[:kept] if kept and win_rates[:kept].min() < below else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveOrPast(Matchmaker):
    """A uniformly drawn live player of `role` or, if the win rate against it is at most `min_win_rate` and it has
    snapshots, PFSP over them. A main player may draw itself, which is self-play."""

    role: str = "main"
    min_win_rate: float = 0.3
    weighting: str | float = "variance"
    past: Literal["rival", "role"] = "rival"
    """The snapshots of the drawn rival, or those of all players of its role."""

    def __post_init__(self) -> None:
        check_weighting(self, self.weighting)
        require_in(self, "[0, 1]", min_win_rate=self.min_win_rate)

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        rivals = candidates.learning(self.role) or (player,)
        return mix((1 / len(rivals), self.against(rival, player, candidates, payoff)) for rival in rivals)

    def against(self, rival: str, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        own = self.past == "rival"
        pool = candidates.history_of(rival) if own else candidates.history_of_role(self.role)
        if rival == player or not pool or payoff.win_rate(player, rival) > self.min_win_rate:
            return {rival: 1.0}
        return pfsp_law(player, pool, payoff, self.weighting)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Verifying(Matchmaker):
    """The settings of rules that look for opponents which exploit the player or which it has forgotten."""

    role: str = "main"
    exploiter: str | None = "main_exploiter"
    """The role of the exploiters; None: there are none."""
    exploited_below: float = 0.3
    forgotten_below: float = 0.7
    weighting: str | float = "squared"

    def __post_init__(self) -> None:
        check_weighting(self, self.weighting)
        require_in(self, "[0, 1]", exploited_below=self.exploited_below, forgotten_below=self.forgotten_below)

    def exploiters(self, candidates: Candidates) -> tuple[str, ...]:
        return candidates.history_of_role(self.exploiter) if self.exploiter else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification(_Verifying):
    """Verification as in AlphaStar's pseudocode. If the win rate against any exploiter snapshot is below
    `exploited_below`, PFSP over all of them. Else a live player of `role` is drawn: if the win rate against any of its
    snapshots before the monotone suffix is below `forgotten_below`, PFSP over those. Else `otherwise` against it."""

    otherwise: LiveOrPast = field(default_factory=LiveOrPast)

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        exploiters = self.exploiters(candidates)
        if exploiters and payoff.win_rates(player, exploiters).min() < self.exploited_below:
            return pfsp_law(player, exploiters, payoff, self.weighting)
        rivals = candidates.learning(self.role) or (player,)
        return mix((1 / len(rivals), self._against(rival, player, candidates, payoff)) for rival in rivals)

    def _against(self, rival: str, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        pool = forgotten(player, rival, candidates, payoff, self.forgotten_below)
        if pool:
            return pfsp_law(player, pool, payoff, self.weighting)
        return self.otherwise.against(rival, player, candidates, payoff)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgottenOrStrong(_Verifying):
    """Verification as in AlphaStar's paper: PFSP over forgotten main snapshots and strong exploiters together, or a
    uniformly drawn live player of `role`. Forgotten are those before the monotone suffix of a history with a win rate
    below `forgotten_below`, strong those with a win rate below `exploited_below`."""

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        rivals = candidates.learning(self.role) or (player,)
        pool = _unbeaten(player, self.exploiters(candidates), payoff, self.exploited_below)
        for rival in rivals:
            past = forgotten(player, rival, candidates, payoff, self.forgotten_below)
            pool += _unbeaten(player, past, payoff, self.forgotten_below)
        if pool:
            return pfsp_law(player, pool, payoff, self.weighting)
        return {rival: 1 / len(rivals) for rival in rivals}


def _unbeaten(player: str, pool: Sequence[str], payoff: Payoff, below: float) -> tuple[str, ...]:
    win_rates = payoff.win_rates(player, pool)
    return tuple(other for other, rate in zip(pool, win_rates, strict=True) if rate < below)


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedLaw(Matchmaker):
    """Opponents with fixed probabilities."""

    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        _check_shares("FixedLaw.shares", self.shares.values(), shown=dict(self.shares))

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        for other in self.shares:
            if other not in candidates:
                raise ValueError(unknown("player", other, candidates))
        return dict(self.shares)


def _check_shares(setting: str, shares: Collection[float], *, shown: object) -> None:
    total = sum(shares)
    if not all(share >= 0 for share in shares) or not abs(total - 1.0) <= 1e-6:
        raise ValueError(f"{setting} must be at least 0 and sum to 1, got {shown}, which sum to {total:g}")
