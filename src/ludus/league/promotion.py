"""Promotion rules, which decide when a snapshot of a learning player is taken; which snapshots stay; and resets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

from ludus.data.checks import require_in, require_one_of
from ludus.league.matchmaking import ALL_FROZEN, POOLS, Candidates
from ludus.league.payoff import Payoff
from ludus.league.players import Standing

MAX_DECISIONS = 10**15
Beats = Literal["each", "mean"]
EVERYONE = "everyone"
"""All frozen players and all other learning players."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Freeze the player now."""

    reason: str


class Promotion(Protocol):
    """Decides whether to freeze a learning player now. A rule of your own that reads `Standing.seconds_since_snapshot`
    sets `timed = True`: only then does the ledger hold the time."""

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
class ByUpdates(Promotion):
    """A snapshot every `every` updates of the player, whatever the size of a batch."""

    every: int

    def __post_init__(self) -> None:
        require_in(self, f"[1, {MAX_DECISIONS}]", every=self.every)

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        since = standing.updates_since_snapshot
        return Snapshot(reason=f"{since} updates") if since >= self.every else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ByTime(Promotion):
    """A snapshot every `seconds` of training, without pauses. The time is a fact of the ledger: the controller writes
    it into the rows of learners' progress, so that a replay decides the same."""

    timed: ClassVar[bool] = True
    seconds: float

    def __post_init__(self) -> None:
        require_in(self, "(0, inf)", seconds=self.seconds)

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        since = standing.seconds_since_snapshot
        return Snapshot(reason=f"{since:.6g} seconds") if since >= self.seconds else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ByWinRate(Promotion):
    """A snapshot when the win rate against every opponent of `against` exceeds `threshold`, not before `min_decisions`
    since the last snapshot, and in any case at `max_decisions`. For an interval in seconds or updates, put the rule
    into `AllOf` and `AnyOf`."""

    min_decisions: int = 1
    max_decisions: int | None = None
    """None: never for this reason alone."""
    threshold: float = 0.7
    beats: Beats = "each"
    """Whether the win rate against each of them counts, or the mean. One opponent that cannot be beaten, as in a game
    with an equilibrium, stops the former for good."""
    against: str = ALL_FROZEN
    """"all_frozen", "own" (the player's snapshots), "scripted", "everyone" (frozen and live), or a role, which
    means its live players."""
    min_games: float = 0.0
    """Decayed games that the player must have played against each of them."""

    def __post_init__(self) -> None:
        least, most = self.min_decisions, self.max_decisions
        require_in(self, f"[1, {MAX_DECISIONS}]", min_decisions=least, max_decisions=most)
        require_one_of(self, get_args(Beats), beats=self.beats)
        if most is not None and most < least:
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
        rate, games = 0.0, 0.0
        if rivals:
            rates = payoff.win_rates(standing.player.id, rivals)
            rate = float(rates.min() if self.beats == "each" else rates.mean())
            games = float(payoff.games_against(standing.player.id, rivals).min())
        if rate > self.threshold and games >= self.min_games:
            how = "or more" if self.beats == "each" else "in the mean"
            return Snapshot(reason=f"beats {self.against} at {rate:.0%} {how}")
        overdue = self.max_decisions is not None and since >= self.max_decisions
        return Snapshot(reason=f"timeout at {since} decisions") if overdue else None

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
class AllOf(Promotion):
    """A snapshot when all of several rules ask for it: `AllOf(rules=(ByTime(seconds=5), ByWinRate(threshold=0.6)))` for
    one that beats the pool, but none within 5 seconds."""

    rules: tuple[Promotion, ...]

    def __post_init__(self) -> None:
        if not self.rules:
            raise ValueError("AllOf.rules is empty: a snapshot would be due at once; use Never() for none")

    def decide(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> Snapshot | None:
        decisions = [rule.decide(standing, candidates, payoff) for rule in self.rules]
        reasons = [decision.reason for decision in decisions if decision is not None]
        return Snapshot(reason=" and ".join(reasons)) if len(reasons) == len(decisions) else None


def is_timed(rule: Promotion) -> bool:
    """Whether a rule, or one that it is made of, reads the time."""
    if isinstance(rule, AnyOf | AllOf):
        return any(map(is_timed, rule.rules))
    return bool(getattr(rule, "timed", False))


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedHistory:
    """Bounds the snapshots of a learning player that stay in the league. If there are more than `size`, those leave
    that are close in age to others: the ages of the rest grow by a constant factor, so that the first snapshot, the
    newest ones and some of every time between stay. Snapshots taken by hand stay and do not count."""

    size: int = 32
    strongest: int = 4
    """So many stay whatever their age: those that a learning player wins least against, or with the best scores in a
    game of one team. The best one by evaluation stays too."""
    delete_models: bool = False
    """Delete the weights of those that left, at the checkpoint after the next one, unless something still names them: a
    tag, a pin, an open match, or a player that goes on from them. Their records and lineage stay."""

    def __post_init__(self) -> None:
        require_in(self, "[4, inf]", size=self.size)
        require_in(self, f"[0, {self.size - 3}]", strongest=self.strongest)

    def surplus(self, ages: Mapping[str, int], kept: Collection[str]) -> list[str]:
        """The snapshots that leave. `ages`: by snapshot, the oldest first, how many were taken since and with it;
        `kept`: those that stay whatever their age."""
        left, leave = list(ages), []
        while len(left) > self.size:
            inner = [place for place in range(1, len(left) - 1) if left[place] not in kept]
            if not inner:
                break
            least = min(inner, key=lambda place: ages[left[place - 1]] / ages[left[place + 1]])
            leave.append(left.pop(least))
        return leave


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
