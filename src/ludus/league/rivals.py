"""The branches of AlphaStar's league: live rivals, the past of those that are too strong, and verification
that no exploiter and no forgotten player is left unbeaten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ludus.league.matchmaking import Candidates, Floats, Law, Matchmaker, check_weighting, mix, pfsp_law
from ludus.league.payoff import Payoff


def remembered_until(win_rates: Floats) -> int:
    """How many of a rival's snapshots (oldest first) are left without their monotone suffix.

    Over the newest snapshots the win rate usually falls with every one: the rival has grown, and nothing was
    forgotten. What comes before, up to the newest snapshot that is beaten more often than the one before it,
    can be compared. 0 where the whole row is monotone.
    """
    rises = np.flatnonzero(win_rates[:-1] < win_rates[1:])
    return int(rises[-1]) + 2 if len(rises) else 0


def forgotten(
    player: str, rival: str, candidates: Candidates, payoff: Payoff, below: float
) -> tuple[str, ...]:
    """Snapshots of a rival before the monotone suffix, if any of them is beaten less often than `below`."""
    history = candidates.history_of(rival)
    win_rates = payoff.win_rates(player, history)
    kept = remembered_until(win_rates)
    return history[:kept] if kept and win_rates[:kept].min() < below else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveOrPast(Matchmaker):
    """A live player of `role`, each alike; in place of one that is too strong, its past as a curriculum.

    The rival is played as it is if the player's win rate against it is above `min_win_rate`, or if it has no
    snapshot yet; else PFSP over snapshots. For a main player this is self-play (it may draw itself), for a
    main exploiter the attack on the main player.
    """

    role: str = "main"
    min_win_rate: float = 0.3
    weighting: str | float = "variance"
    past: Literal["rival", "role"] = "rival"
    """The snapshots of the rival that was drawn, or those of all players of its role."""

    def __post_init__(self) -> None:
        check_weighting(self, self.weighting)
        _check_rates(self, "min_win_rate")

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        rivals = candidates.learning(self.role) or (player,)
        return mix((1 / len(rivals), self.against(rival, player, candidates, payoff)) for rival in rivals)

    def against(self, rival: str, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        """The law once the rival is drawn."""
        own = self.past == "rival"
        pool = candidates.history_of(rival) if own else candidates.history_of_role(self.role)
        if rival == player or not pool or payoff.win_rate(player, rival) > self.min_win_rate:
            return {rival: 1.0}
        return pfsp_law(player, pool, payoff, self.weighting)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification(Matchmaker):
    """AlphaStar's pseudocode: does an exploiter still beat the player, or has it forgotten a rival's past?

    If any snapshot of an exploiter is beaten less often than `exploited_below`: PFSP over all of them. Else
    a live player of `role` is drawn, and if any of its snapshots before the monotone suffix is beaten less
    often than `forgotten_below`: PFSP over those. Else `otherwise`, against the player that was drawn.
    """

    role: str = "main"
    exploiter: str | None = "main_exploiter"
    """The role of the exploiters; None: there are none."""
    exploited_below: float = 0.3
    forgotten_below: float = 0.7
    weighting: str | float = "squared"
    otherwise: LiveOrPast = field(default_factory=LiveOrPast)

    def __post_init__(self) -> None:
        check_weighting(self, self.weighting)
        _check_rates(self, "exploited_below", "forgotten_below")

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        exploiters = candidates.history_of_role(self.exploiter) if self.exploiter else ()
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
class ForgottenOrStrong(Matchmaker):
    """AlphaStar's paper: PFSP over forgotten snapshots of `role` and strong ones of exploiters together.

    A snapshot of `role` is forgotten if it lies before the monotone suffix of its parent's history and is
    beaten less often than `forgotten_below`; one of an exploiter is strong below `exploited_below`. The paper
    prints neither number, so both are those of the pseudocode. Live players of `role` if there is no such
    snapshot.
    """

    role: str = "main"
    exploiter: str | None = "main_exploiter"
    """The role of the exploiters; None: there are none."""
    exploited_below: float = 0.3
    forgotten_below: float = 0.7
    weighting: str | float = "squared"

    def __post_init__(self) -> None:
        check_weighting(self, self.weighting)
        _check_rates(self, "exploited_below", "forgotten_below")

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        rivals = candidates.learning(self.role) or (player,)
        exploiters = candidates.history_of_role(self.exploiter) if self.exploiter else ()
        pool = _unbeaten(player, exploiters, payoff, self.exploited_below)
        for rival in rivals:
            past = forgotten(player, rival, candidates, payoff, self.forgotten_below)
            pool += _unbeaten(player, past, payoff, self.forgotten_below)
        if pool:
            return pfsp_law(player, pool, payoff, self.weighting)
        return {rival: 1 / len(rivals) for rival in rivals}


def _unbeaten(player: str, pool: Sequence[str], payoff: Payoff, below: float) -> tuple[str, ...]:
    win_rates = payoff.win_rates(player, pool)
    return tuple(other for other, rate in zip(pool, win_rates, strict=True) if rate < below)


def _check_rates(owner: object, *names: str) -> None:
    for name in names:
        rate = getattr(owner, name)
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"{type(owner).__name__}.{name} must be a win rate from 0 to 1, got {rate}")
