"""Promotion rules, which decide when a snapshot of a learning player is taken, and the rules of resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ludus.data.checks import require_in
from ludus.league.matchmaking import ALL_FROZEN, POOLS, Candidates
from ludus.league.payoff import Payoff
from ludus.league.players import Standing

MAX_DECISIONS = 10**15
EVERYONE = "everyone"
"""All frozen players and all other learning players."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Freeze the player now."""

    reason: str


class Promotion(Protocol):
    """Decides whether to freeze a learning player now."""

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None: ...


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
        require_in(self, f"[1, {MAX_DECISIONS}]", every=self.every)

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        since = standing.decisions_since_snapshot
        return Snapshot(reason=f"{since} decisions") if since >= self.every else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ByWinRate(Promotion):
    """A snapshot when the win rate against every opponent of `against` exceeds `threshold`, not before `min_decisions`
    since the last snapshot, and in any case at `max_decisions`."""

    min_decisions: int
    max_decisions: int
    threshold: float = 0.7
    against: str = ALL_FROZEN
    """"all_frozen", "own" (the player's snapshots), "scripted", "everyone" (frozen and live), or a role, which
    means its live players."""
    min_games: float = 0.0
    """Decayed games that the player must have played against each of them."""

    def __post_init__(self) -> None:
        least, most = self.min_decisions, self.max_decisions
        require_in(self, f"[1, {MAX_DECISIONS}]", min_decisions=least, max_decisions=most)
        if most < least:
            raise ValueError(f"ByWinRate.max_decisions={most} is below min_decisions={least}")
        require_in(self, "[0.5, 1)", threshold=self.threshold)  # an unplayed pair has 0.5, which is not a win
        require_in(self, "[0, inf)", min_games=self.min_games)

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
    """A snapshot when any of several rules asks for it."""

    rules: tuple[Promotion, ...]

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        decisions = (rule.decide(standing, candidates, payoff) for rule in self.rules)
        return next((decision for decision in decisions if decision is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ByScore(Promotion):
    """For games with one team: a snapshot when the recent mean score exceeds the best by over `min_improvement`."""

    min_improvement: float = 0.0
    min_episodes: int = 100
    """Recent episodes needed for a mean."""
    min_decisions: int = 0
    """Decisions between two snapshots."""

    def __post_init__(self) -> None:
        require_in(self, "[0, inf)", min_improvement=self.min_improvement)
        require_in(self, "[1, inf]", min_episodes=self.min_episodes)
        require_in(self, "[0, inf]", min_decisions=self.min_decisions)

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        score, kept = standing.recent_score, standing.best_frozen_score
        if score is None or standing.score_episodes < self.min_episodes:
            return None
        improved = kept is None or score > kept + self.min_improvement
        due = improved and standing.decisions_since_snapshot >= self.min_decisions
        return Snapshot(reason=f"score {score:.6g}") if due else None


class Restart(Protocol):
    """Chooses the model that a reset player starts from; None: fresh weights."""

    def model(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> str | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FromStart(Restart):
    """The model that the player first started from: a supervised model, or fresh weights."""

    def model(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> str | None:
        return standing.player.model


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterReset:
    """How a player continues after a reset."""

    value_only_decisions: int = 0
    """Decisions that train only the value, so that an untrained value does not spoil the policy."""
    clear_payoff: bool = True
    """Forget the player's games, which were played with other weights. Open games never count either way."""

    def __post_init__(self) -> None:
        require_in(self, "[0, inf]", value_only_decisions=self.value_only_decisions)
