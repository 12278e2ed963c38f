"""When a learning player is frozen: pure decisions from what the ledger says about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from ludus.league.matchmaking import ALL_FROZEN, POOLS, Candidates
from ludus.league.payoff import Payoff
from ludus.league.players import Standing

MAX_DECISIONS = 10**15
EVERYONE = "everyone"
"""All frozen players and all other learning ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Freeze the player now."""

    reason: str


class Promotion(Protocol):
    """Says whether a learning player should be frozen now."""

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None: ...


def _check_decisions(owner: object, name: str, decisions: int) -> None:
    if not 1 <= decisions <= MAX_DECISIONS:
        raise ValueError(
            f"{type(owner).__name__}.{name} must be from 1 to {MAX_DECISIONS:.0e} decisions, got {decisions}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Never(Promotion):
    """No snapshot but the initial one."""

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class BySteps(Promotion):
    """A snapshot every `every` decisions trained on."""

    every: int

    def __post_init__(self) -> None:
        _check_decisions(self, "every", self.every)

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        since = standing.decisions_since_snapshot
        return Snapshot(reason=f"{since} decisions") if since >= self.every else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ByWinRate(Promotion):
    """A snapshot once every opponent of `against` is beaten more often than `threshold`.

    Not before `min_decisions` since the last snapshot, and in any case at `max_decisions`. With no opponent
    there is nothing to beat, and only `max_decisions` counts; so does it while a pair has too few games.
    """

    min_decisions: int
    max_decisions: int
    threshold: float = 0.7
    against: str = ALL_FROZEN
    """"all_frozen", "own" (its snapshots), "scripted", "everyone" (frozen and live), or a role: the live
    players of it."""
    min_games: float = 0.0
    """Games (decayed) that it must have played against each of them."""

    def __post_init__(self) -> None:
        _check_decisions(self, "min_decisions", self.min_decisions)
        _check_decisions(self, "max_decisions", self.max_decisions)
        if self.max_decisions < self.min_decisions:
            raise ValueError(
                f"ByWinRate.max_decisions={self.max_decisions} is below min_decisions={self.min_decisions}"
            )
        if not 0.5 <= self.threshold < 1.0:
            # Below 0.5 the 0.5 of an unplayed pair would count as beaten.
            raise ValueError(f"ByWinRate.threshold must be in [0.5, 1), got {self.threshold}")
        if not 0.0 <= self.min_games < math.inf:
            raise ValueError(f"ByWinRate.min_games must be at least 0 and finite, got {self.min_games}")

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        if self.min_games >= payoff.rules.memory_games:
            raise ValueError(
                f"ByWinRate.min_games={self.min_games:g} is never reached: the payoff remembers "
                f"{payoff.rules.memory_games:.1f} games of a pair at most; raise league.payoff.decay_games"
            )
        rivals = self._rivals(standing.player.id, candidates)
        since = standing.decisions_since_snapshot
        if since < self.min_decisions:
            return None
        worst, games = 0.0, 0.0
        if rivals:
            worst = float(payoff.win_rates(standing.player.id, rivals).min())
            games = float(payoff.games_against(standing.player.id, rivals).min())
        if worst > self.threshold and games >= self.min_games:
            return Snapshot(reason=f"beats {self.against} at {worst:.0%} or more")
        return Snapshot(reason=f"timeout at {since} decisions") if since >= self.max_decisions else None

    def _rivals(self, player: str, candidates: Candidates) -> tuple[str, ...]:
        if self.against in POOLS:
            return candidates.past(self.against, player)
        if self.against == EVERYONE:
            return candidates.frozen() + tuple(rival for rival in candidates.learning() if rival != player)
        return tuple(rival for rival in candidates.learning(self.against) if rival != player)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnyOf(Promotion):
    """A snapshot as soon as one of several rules asks for it."""

    rules: tuple[Promotion, ...]

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        decisions = (rule.decide(standing, candidates, payoff) for rule in self.rules)
        return next((decision for decision in decisions if decision is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ByScore(Promotion):
    """A snapshot when the recent mean score of training has grown: for games with one team.

    It must exceed that of the best such snapshot so far by more than `min_improvement`. Which snapshot is
    really the best, evaluation says: it moves the tag `best`.
    """

    min_improvement: float = 0.0
    min_episodes: int = 100
    """Recent episodes that are needed for a mean."""
    min_decisions: int = 0
    """At least so many decisions between two snapshots."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.min_improvement) and self.min_improvement >= 0):
            raise ValueError(f"ByScore.min_improvement must be at least 0 and finite, got {self.min_improvement}")
        if self.min_episodes < 1:
            raise ValueError(f"ByScore.min_episodes must be at least 1, got {self.min_episodes}")
        if self.min_decisions < 0:
            raise ValueError(f"ByScore.min_decisions must be at least 0, got {self.min_decisions}")

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        score, kept = standing.recent_score, standing.best_frozen_score
        if score is None or standing.score_episodes < self.min_episodes:
            return None
        if standing.decisions_since_snapshot < self.min_decisions:
            return None
        if kept is not None and not score > kept + self.min_improvement:
            return None
        return Snapshot(reason=f"score {score:.6g}")


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
            raise ValueError(f"AfterReset.value_only_decisions must be at least 0, got {self.value_only_decisions}")
