"""OpenAI Five's matchmaking: every past opponent has a quality that falls when it is beaten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ludus.data.checks import require_in
from ludus.data.records import Match, Result
from ludus.league.matchmaking import OWN, Candidates, Law, Matchmaker, branches_of
from ludus.league.payoff import Floats, Payoff
from ludus.league.players import Player
from ludus.league.rules import Role

_LEAST_PROBABILITY = 1e-6
"""Bounds the step of an opponent that is hardly ever drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityScores(Matchmaker):
    """Snapshots of the pool `over`, drawn by the softmax of their quality. A snapshot joins with the highest quality. A
    match subtracts step / (N p_i), times the share of its episodes won, from that of opponent i of N, drawn with
    p_i."""

    over: str = OWN
    step: float = 0.01

    def __post_init__(self) -> None:
        require_in(self, "[0, 1]", step=self.step)

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        pool = candidates.past(self.over, player)
        if not pool:
            return {player: 1.0}
        law = _probabilities(candidates.qualities.get(player, {}), pool)
        return dict(zip(pool, law.tolist(), strict=True))


def _probabilities(qualities: Mapping[str, float], pool: Sequence[str]) -> Floats:
    from scipy.special import softmax  # slow to import, and few leagues have this rule

    return np.asarray(softmax([qualities.get(other, 0.0) for other in pool]))


def quality_rules(roles: Mapping[str, Role]) -> dict[str, QualityScores]:
    """The roles with a `QualityScores` rule, and the first such rule of each."""
    found = {
        name: [rule for rule in branches_of(role.matchmaking) if isinstance(rule, QualityScores)]
        for name, role in roles.items()
    }
    return {name: rules[0] for name, rules in found.items() if rules}


QualityState = tuple[
    list[tuple[str, list[tuple[str, float]]]], list[tuple[int, tuple[str, tuple[tuple[int, str, float], ...]]]]
]


class QualityBook:
    """The qualities of opponents for all players with the rule, folded from snapshots and matches."""

    def __init__(self, rules: Mapping[str, QualityScores]) -> None:
        """`rules` are keyed by role."""
        self.rules = rules
        self._scores: dict[str, dict[str, float]] = {}
        self.scores: Mapping[str, Mapping[str, float]] = self._scores
        """Learning player -> opponent -> quality."""
        self._open: dict[int, tuple[str, tuple[tuple[int, str, float], ...]]] = {}
        """Match -> its player, and (side, opponent, step of a win over it) of the others."""

    def join(self, joined: Player, candidates: Candidates) -> None:
        """A snapshot joined: it gets the highest quality of each pool that it is in."""
        for player in candidates.players:
            rule = self.rules.get(player.role)
            pool = candidates.past(rule.over, player.id) if rule else ()
            if joined.id in pool:
                scores = self._scores.setdefault(player.id, {})
                others = [scores.get(other, 0.0) for other in pool if other != joined.id]
                scores[joined.id] = max(others, default=0.0)

    def issue(self, match: Match, role: str, candidates: Candidates) -> None:
        """Store the step of a win in this training match, given the current probabilities."""
        sides = [side.stands_for or "" for side in match.sides]
        rule, player = self.rules.get(role), sides[0]
        pool = () if rule is None else candidates.past(rule.over, player)
        if rule is None or not pool:
            return
        law = dict(zip(pool, _probabilities(self._scores.get(player, {}), pool).tolist(), strict=True))
        takes = tuple(
            (number, other, rule.step / (len(pool) * max(law[other], _LEAST_PROBABILITY)))
            for number, other in enumerate(sides)
            if other in law
        )
        if takes:
            self._open[match.id] = (player, takes)

    def finish(self, result: Result) -> None:
        if result.match_id not in self._open:
            return
        player, takes = self._open.pop(result.match_id)
        scores = self._scores.setdefault(player, {})
        wins = {pair.other: pair.wins for pair in result.pairs if pair.side == 0}
        for side, opponent, take in takes:
            scores[opponent] = scores.get(opponent, 0.0) - take * wins[side] / result.episodes

    def cancel(self, match_id: int) -> None:
        self._open.pop(match_id, None)

    def restart(self) -> None:
        self._open.clear()

    def forget(self, player: str) -> None:
        """The player was reset: drop the qualities of its opponents and its open matches."""
        self._scores.pop(player, None)
        self._open = {match_id: entry for match_id, entry in self._open.items() if entry[0] != player}

    def load(self, state: QualityState) -> None:
        """Become what a state describes; this book is new."""
        scores, entries = state
        self._scores.update((player, dict(own)) for player, own in scores)
        self._open = dict(entries)

    def state(self) -> QualityState:
        """The whole state as plain values, for the league's digest."""
        scores = [(player, sorted(scores.items())) for player, scores in sorted(self._scores.items())]
        return scores, sorted(self._open.items())
