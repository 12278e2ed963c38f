"""Where a player starts again after a reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ludus.league.matchmaking import Candidates
from ludus.league.payoff import Payoff
from ludus.league.players import Standing


class Restart(Protocol):
    """Chooses the model that a reset player starts again from; None: fresh weights."""

    def model(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> str | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FromStart(Restart):
    """What the player started from in the first place: the supervised model, or fresh weights."""

    def model(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> str | None:
        return standing.player.model


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterReset:
    """What happens to a player whose weights have started again."""

    value_only_decisions: int = 0
    """Decisions on which it trains its value alone, so that a value that knows nothing of these weights does
    not spoil them. `Standing.value_only_left` counts down."""
    clear_payoff: bool = True
    """Forget its games: they say nothing about the weights of now, neither for its own decisions nor for
    those of others about it. Games that are still open never count, whatever this says."""

    def __post_init__(self) -> None:
        if self.value_only_decisions < 0:
            raise ValueError(
                f"AfterReset.value_only_decisions must be at least 0, got {self.value_only_decisions}"
            )
