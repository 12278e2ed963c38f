"""A law that no result changes: whom an exploiter trains against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ludus.league.matchmaking import Candidates, Law, Matchmaker
from ludus.league.payoff import Payoff
from ludus.league.players import unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedLaw(Matchmaker):
    """These players with these shares, drawn for every match."""

    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        total = sum(self.shares.values())
        if not all(share >= 0 for share in self.shares.values()) or not abs(total - 1.0) <= 1e-6:
            raise ValueError(
                f"FixedLaw.shares must be at least 0 and sum to 1, got {dict(self.shares)}, "
                f"which sum to {total:g}"
            )

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        for other in self.shares:
            if other not in candidates:
                raise ValueError(unknown("player", other, candidates))
        return dict(self.shares)
