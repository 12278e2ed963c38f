"""Scores by role, for games whose teams have different roles or are not zero-sum: what a player gets on each team, and
the baseline, which is what its opponents got on the same team in the same matches. Never NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ludus.data.records import Match, Result, mean_and_error
from ludus.league.payoff import Floats, PayoffRules


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleScore:
    """A player on one team. Both means rest on the same matches, and each on `episodes` episodes."""

    episodes: float
    """Decayed, as in the payoff."""
    score: float
    score_error: float
    """Standard error."""
    baseline: float
    """Mean score of the player's opponents on this team."""
    baseline_error: float

    @property
    def lead(self) -> float:
        """Score above the baseline."""
        return self.score - self.baseline

    @property
    def lead_error(self) -> float:
        """Standard error; the two means come from different episodes."""
        return math.hypot(self.score_error, self.baseline_error)


def first_side(result: Result) -> tuple[RoleScore | None, ...]:
    """By team: the first side of a match, and the mean of the other sides as its baseline. Empty if the game does not
    compare roles."""
    if not result.role_score_sum:
        return ()
    tables = np.array([result.role_score_sum, result.role_score_square_sum])  # [2, sides, teams]
    episodes = np.full((1, tables.shape[2]), result.episodes / tables.shape[2])
    sums = np.concatenate([episodes, tables[:, 0], tables[:, 1:].mean(axis=1)])
    return tuple(map(_role_score, sums.T.tolist()))


class RoleLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a player gets in one role, and what its opponents got there in the same matches. Errors are standard errors;
    all numbers are None below two episodes."""

    role: str
    episodes: float | None
    score: float | None
    score_error: float | None
    baseline: float | None
    baseline_error: float | None
    lead: float | None
    """Score above the baseline."""
    lead_error: float | None


_ROLE_NUMBERS = ("episodes", "score", "score_error", "baseline", "baseline_error", "lead", "lead_error")


def role_lines(scores: Sequence[RoleScore | None], names: Sequence[str]) -> tuple[RoleLine, ...]:
    """By team. `names`: of the roles; teams without one are numbered."""
    return tuple(
        RoleLine(
            role=names[team] if team < len(names) else f"team {team}",
            **{name: None if score is None else getattr(score, name) for name in _ROLE_NUMBERS},
        )
        for team, score in enumerate(scores)
    )


class RoleScores:
    """Decayed scores of every ordered pair of players on every team, folded from results. It stays empty in games that
    do not compare roles. Self-play and line-ups of several players do not count."""

    def __init__(self, rules: PayoffRules) -> None:
        self._rules = rules
        self._sums: dict[str, dict[str, Floats]] = {}
        """Player -> opponent -> [5, teams]: episodes, sum and squares of the player, sum and squares of the other."""

    def record(self, match: Match, result: Result) -> None:
        if not result.role_score_sum:
            return
        teams = len(match.sides)
        own = [
            np.array([result.role_score_sum[side], result.role_score_square_sum[side]], np.float64)
            for side in range(teams)
        ]
        episodes = np.full((1, teams), result.episodes / teams)
        names = [None if side.is_mixed else side.players[0] for side in match.sides]
        new: dict[tuple[str, str], list[Floats]] = {}
        for pair in result.pairs:
            for side, other in ((pair.side, pair.other), (pair.other, pair.side)):
                a, b = names[side], names[other]
                if a is not None and b is not None and a != b:
                    new.setdefault((a, b), []).append(np.concatenate([episodes, own[side], own[other]]))
        fade = self._rules.fade(result.episodes)
        for (a, b), sums in new.items():
            others = self._sums.setdefault(a, {})
            # One player against copies of another is one comparison per episode, not several.
            others[b] = others.get(b, 0.0) * fade + np.mean(sums, axis=0)

    def of(self, player: str) -> tuple[RoleScore | None, ...]:
        """By team, against all opponents; None below two episodes, which have no standard error. Empty if the player
        has met nobody."""
        sums = [*self._sums.get(player, {}).values()]
        return tuple(map(_role_score, np.sum(sums, axis=0).T.tolist())) if sums else ()

    def forget(self, player: str) -> None:
        self._sums.pop(player, None)
        for others in self._sums.values():
            others.pop(player, None)

    def change_rules(self, rules: PayoffRules) -> None:
        self._rules = rules

    def fingerprint(self) -> bytes:
        """The exact state, for the league's digest; empty in games that do not compare roles."""
        if not self._sums:
            return b""
        # In the order of the games: `of` adds the numbers up in this order.
        return msgspec.msgpack.encode(
            {a: {b: sums.tobytes() for b, sums in others.items()} for a, others in self._sums.items()}
        )

    def load(self, fingerprint: bytes) -> None:
        """Become what a fingerprint describes; these scores are new."""
        if fingerprint:
            state = msgspec.msgpack.decode(fingerprint, type=dict[str, dict[str, bytes]])
            self._sums = {
                a: {b: np.frombuffer(sums, np.float64).reshape(5, -1) for b, sums in others.items()}
                for a, others in state.items()
            }


def _role_score(sums: list[float]) -> RoleScore | None:
    episodes, total, squares, others, other_squares = sums
    if episodes < 2.0:
        return None
    score, score_error = mean_and_error(episodes, total, squares)
    baseline, baseline_error = mean_and_error(episodes, others, other_squares)
    return RoleScore(
        episodes=episodes, score=score, score_error=score_error, baseline=baseline, baseline_error=baseline_error
    )
