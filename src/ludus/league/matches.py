"""Open and ended matches, and the checks of new matches and of results."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations

import msgspec
from msgspec.structs import replace

from ludus.data.checks import unknown
from ludus.data.records import Match, ModelId, Result, Side
from ludus.league.players import check_player_id
from ludus.league.roster import Roster


class UnknownMatchError(LookupError):
    """An event about a match that was never issued."""


class MatchConflictError(ValueError):
    """A second end of a match, or a reused match id."""


class OpenMatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A match that was issued and has not ended."""

    match: Match
    holder: str | None = None
    """The actor that holds the lease."""
    stale: bool = False
    """One of its players was reset since it was issued, so its result does not count."""


MatchState = tuple[
    tuple[int, int, int, int, int], list[tuple[Match, str | None, bool]], list[int], list[tuple[tuple[str, ...], int]]
]


@dataclass(kw_only=True, slots=True)
class MatchBook:
    """Open matches and counts. `issued == finished + void + len(open_matches)` always holds."""

    issued: int = 0
    finished: int = 0
    void: int = 0
    last_id: int = -1
    evaluations: int = 0
    """Finished matches of purpose "evaluation"."""
    failed_evaluations: Counter[tuple[str, ...]] = field(default_factory=Counter, init=False)
    """Evaluations that ended without a result since the run last started, counted by their sides."""
    open_matches: dict[int, OpenMatch] = field(default_factory=dict, init=False)
    _void_by_restart: set[int] = field(default_factory=set, init=False)
    """Matches counted as void when the run restarted; void rows of their own may still follow."""

    def find(self, match_id: int) -> OpenMatch:
        """An open match; raises if it was never issued or has ended."""
        entry = self.open_matches.get(match_id)
        if entry is not None:
            return entry
        if not 0 <= match_id <= self.last_id:
            raise UnknownMatchError(f"match {match_id} was never issued; the last id is {self.last_id}")
        how = "was void when the run restarted" if match_id in self._void_by_restart else "has already ended"
        raise MatchConflictError(f"match {match_id} {how}: an end is recorded once, and the first stands")

    def check_new(self, match_id: int) -> None:
        if match_id < 0:
            raise ValueError(f"a match id must be at least 0, got {match_id}")
        if match_id <= self.last_id:
            raise MatchConflictError(f"match id {match_id} is not new: ids count up, and {self.last_id} was issued")

    def issue(self, match: Match) -> None:
        self.check_new(match.id)
        self.open_matches[match.id] = OpenMatch(match=match)
        self.issued += 1
        self.last_id = match.id

    def lease(self, match_id: int, holder: str) -> None:
        entry = self.find(match_id)
        self.open_matches[match_id] = OpenMatch(match=entry.match, holder=holder, stale=entry.stale)

    def finish(self, result: Result) -> OpenMatch:
        entry = self.find(result.match_id)
        check_result(entry.match, result)
        del self.open_matches[result.match_id]
        self.finished += 1
        self.evaluations += entry.match.purpose == "evaluation"
        return entry

    def cancel(self, match_id: int) -> None:
        if match_id in self._void_by_restart:
            self._void_by_restart.remove(match_id)
            return
        match = self.find(match_id).match
        del self.open_matches[match_id]
        self.void += 1
        if match.purpose == "evaluation":
            self.failed_evaluations[first_players(match)] += 1

    def restart(self) -> None:
        """The run (re)started: no lease is held any more, so all open matches are void."""
        self._void_by_restart.update(self.open_matches)
        self.void += len(self.open_matches)
        self.open_matches.clear()
        self.failed_evaluations.clear()

    def outdate(self, player: str) -> None:
        """Mark the open matches of a player that was reset as stale."""
        for match_id, entry in self.open_matches.items():
            if any(player in side.players for side in entry.match.sides):
                self.open_matches[match_id] = replace(entry, stale=True)

    def load(self, state: MatchState) -> None:
        """Become what a state describes; this book is new."""
        counts, entries, void_by_restart, failed = state
        self.issued, self.finished, self.void, self.last_id, self.evaluations = counts
        for match, holder, stale in entries:
            self.open_matches[match.id] = OpenMatch(match=match, holder=holder, stale=stale)
        self._void_by_restart.update(void_by_restart)
        self.failed_evaluations.update(dict(failed))

    def state(self) -> MatchState:
        """The whole state as plain values, for the league's digest."""
        entries = [(entry.match, entry.holder, entry.stale) for entry in self.open_matches.values()]
        counts = (self.issued, self.finished, self.void, self.last_id, self.evaluations)
        return counts, entries, sorted(self._void_by_restart), sorted(self.failed_evaluations.items())


def first_players(match: Match) -> tuple[str, ...]:
    """The first player of each side; in evaluations it sits on all seats of the side."""
    return tuple(side.players[0] for side in match.sides)


def changed_incarnation(result: Result) -> bool:
    """Whether a side ended in another incarnation than it began with, because of a reset or resume."""
    return result.first_models != result.last_models and any(
        ModelId.parse(first).incarnation != ModelId.parse(last).incarnation
        for side, end in zip(result.first_models, result.last_models, strict=True)
        for first, last in zip(side.split(","), end.split(","), strict=True)
        if first and last and first != last  # a scripted player has no model
    )


_PER_SIDE = ("decisions", "score_sum", "score_square_sum", "first_models", "last_models")


def check_result(match: Match, result: Result) -> None:
    """Raise for a result that cannot belong to this match, naming the field."""

    def refuse(what: str) -> ValueError:
        return ValueError(f"result of match {match.id} is refused: {what}")

    num_sides, episodes = len(match.sides), match.tables * match.episodes_per_table
    for name in _PER_SIDE:
        length = len(getattr(result, name))
        if length != num_sides:
            raise refuse(f"{name} has {length} entries for {num_sides} sides")
    if not 1 <= result.episodes <= episodes:
        raise refuse(f"episodes={result.episodes}, but the match has 1 to {episodes}")
    if result.steps < 0 or min(result.decisions) < 0:
        raise refuse(f"negative counts: steps={result.steps}, decisions={result.decisions}")
    if not all(map(math.isfinite, (*result.score_sum, *result.score_square_sum))):
        raise refuse(f"scores are not finite: {result.score_sum}, squares {result.score_square_sum}")
    for name in ("role_score_sum", "role_score_square_sum"):
        by_role: tuple[tuple[float, ...], ...] = getattr(result, name)
        if not by_role:
            continue
        if [len(row) for row in by_role] != [num_sides] * num_sides:
            raise refuse(f"{name} must have a number per side and team, {num_sides} each, got {by_role}")
        if not all(math.isfinite(value) for row in by_role for value in row):
            raise refuse(f"scores are not finite: {name} is {by_role}")
    expected = _pairs_of(num_sides)
    pairs = sorted([(pair.side, pair.other) for pair in result.pairs])
    if pairs != expected:
        raise refuse(f"pairs of sides are {pairs}, expected {expected}")
    for pair in result.pairs:
        if pair.wins < 0 or pair.draws < 0 or pair.losses < 0:
            raise refuse(f"negative counts: {pair}")
        if pair.wins + pair.draws + pair.losses != result.episodes:
            raise refuse(f"wins, draws and losses of {pair} do not add up to episodes={result.episodes}")


@cache
def _pairs_of(num_sides: int) -> list[tuple[int, int]]:
    return list(combinations(range(num_sides), 2))


def check_match(match: Match, seats_per_team: tuple[int, ...], roster: Roster) -> None:
    """Raise for a match that does not fit the game or names players that cannot play in it."""
    num_teams = len(seats_per_team)
    if len(match.sides) != num_teams:
        raise ValueError(f"match {match.id} has {len(match.sides)} sides; the game has {num_teams} teams")
    if match.tables < 1 or match.episodes_per_table < 1:
        raise ValueError(
            f"match {match.id} needs at least one table and one episode per table, "
            f"got tables={match.tables}, episodes_per_table={match.episodes_per_table}"
        )
    for side in match.sides:
        _check_side(match, side, seats_per_team, roster)


def _check_side(match: Match, side: Side, seats_per_team: tuple[int, ...], roster: Roster) -> None:
    # Sides rotate through the teams, so a line-up must fit all of them.
    if len(side.players) != 1 and {len(side.players)} != {*seats_per_team}:
        sizes = {1, *seats_per_team} if len({*seats_per_team}) == 1 else {1}
        raise ValueError(
            f"match {match.id}: line-up {side.players} has {len(side.players)} players; "
            f"for teams of {seats_per_team} seats it may have {' or '.join(map(str, sorted(sizes)))}"
        )
    for player in side.players:
        if match.purpose == "human" and player not in roster.players:
            check_player_id(player)
        elif player not in roster:
            raise ValueError(f"match {match.id}: {unknown('player', player, roster.candidates)}")
    for player in side.trainees if side.trains else ():
        if match.purpose != "training" or player not in roster.standings or player not in side.players:
            raise ValueError(
                f"match {match.id}: {player!r} cannot train in it; only learning players that sit on the "
                f"side train, in matches of purpose 'training', and this is {match.purpose!r}"
            )
    if side.captain is not None and side.captain not in side.players:
        raise ValueError(f"match {match.id}: {side.captain!r} is not in its line-up {side.players}")
