"""Matches that failed, players that never finished a match, and frozen players without readable weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import msgspec

from ludus.data.records import AnyEvent, Match, PlayerAbsent, PlayerRemoved, PlayerReturned
from ludus.store.files import StoreError
from ludus.store.ledger import Ledger
from ludus.store.run_folder import RunFolder
from ludus.system.text import shortened

NO_FAULT = ("restart", "stopped", "time limit reached", "league edited", "scaled down", "a player was reset")
"""Reasons of void matches that are no failures: a stop or a change left the match open."""
MOST_REASONS = 3
MOST_NAMES = 4
LONGEST_REASON = 150
LONGEST_ABSENCE = 400
"""It names a file, whose path is needed whole."""

_CLASS = re.compile(r"^\w+: (?:ProgramLost: )?")
"""The same fault has another class where it ended the whole actor."""
_NUMBER = re.compile(r"('[^']*')|(?<![\w.])\d+(?!\w)")
"""A quoted name, which stays as it is, or a number that stands alone, as a table or an exit code."""


class LostMatches(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Failures in the matches of a run so far."""

    void: int
    """Without what a stop left open."""
    ended: int
    """Finished or void."""
    reasons: dict[str, int]
    """Reason -> matches that are void for it, the most frequent first."""
    never_finished: dict[str, str]
    """Player that was to play and has not finished a single match -> why."""
    absent: dict[str, str]
    """Frozen player whose weights cannot be read -> why."""
    unreadable: str = ""
    """Why the ledger cannot be read; the other fields are then empty or old."""

    def lines(self) -> list[str]:
        """For people; none if nothing has failed."""
        found = [self.unreadable] if self.unreadable else []
        if self.absent:
            found.append(absences(self.absent))
        return found + self._failures() if self.void else found

    def _failures(self) -> list[str]:
        found = [f"{self.void:,} of {self.ended:,} matches are void because something failed:"]
        width = len(f"{max(self.reasons.values()):,}")
        shown = list(self.reasons.items())[:MOST_REASONS]
        found += [f"  {count:>{width},}  {on_one_line(reason)}" for reason, count in shown]
        if others := len(self.reasons) - len(shown):
            left = self.void - sum(count for _, count in shown)
            found.append(f"  {left:>{width},}  for {others:,} other reason{'s' * (others > 1)}")
        by_reason: dict[str, list[str]] = {}
        for player, reason in self.never_finished.items():
            by_reason.setdefault(reason, []).append(player)
        found += [
            f"{_named(players)} never finished a match: {on_one_line(reason)}" for reason, players in by_reason.items()
        ]
        return found


class SavedLosses(msgspec.Struct, frozen=True, kw_only=True):
    ended: int
    void: int
    counts: dict[str, int]
    wording: dict[str, str]
    finished: list[str]
    failed: dict[str, dict[str, int]]
    absent: dict[str, str]


class LossCount:
    """Counts what failed: it is told every end of a match and every absence, or follows a ledger. Games of people are
    left out: they may leave as they like."""

    def __init__(self, after: int = 0) -> None:
        """`after`: the number of the event after which it begins."""
        self._seen = self._absences_seen = self._verified = after
        self._ended = self._void = 0
        self._counts: Counter[str] = Counter()
        self._wording: dict[str, str] = {}
        """The first wording of a reason; later ones may have other numbers in it."""
        self._finished: set[str] = set()
        self._failed: dict[str, Counter[str]] = {}
        """Player that has finished nothing yet -> what its matches failed for."""
        self._absent: dict[str, str] = {}

    def follow(self, ledger: Ledger) -> LostMatches:
        """Count what is new; return all counts so far."""
        for row, match, void in ledger.ends(self._seen):
            self._seen = row
            self.end(match, None if void is None else void.reason)
        last, _ = ledger.position  # before the query: rows up to it are looked at once
        for row, event in ledger.absences(self._absences_seen):
            last = max(last, row)
            self.note(event)
        self._absences_seen = last
        return self.lost()

    def end(self, match: Match, void: str | None) -> None:
        """A match was finished, or is `void` for this reason."""
        if match.purpose == "human":
            return
        if void is None:
            self._ended += 1
            self._finish(match)
        elif void not in NO_FAULT:
            self._ended += 1
            self._fail(match, void)

    def note(self, event: AnyEvent) -> None:
        """An event that is no end of a match."""
        if isinstance(event, PlayerAbsent):
            self._absent[event.player] = event.reason
        elif isinstance(event, PlayerReturned | PlayerRemoved):
            self._absent.pop(event.player, None)

    def lost(self) -> LostMatches:
        reasons = {self._wording[key]: count for key, count in self._counts.most_common()}
        never = {player: self._why(player, causes) for player, causes in self._failed.items()}
        return LostMatches(
            void=self._void, ended=self._ended, reasons=reasons, never_finished=never, absent=dict(self._absent)
        )

    def follow_run(self, folder: RunFolder) -> LostMatches:
        """The same for the ledger of a run, whose new rows are compared with their checksums."""
        try:
            with folder.ledger(read_only=True) as ledger:
                self._verified = ledger.verify(self._verified)
                return self.follow(ledger)
        except StoreError as error:
            return LostMatches(void=0, ended=0, reasons={}, never_finished={}, absent={}, unreadable=str(error))

    def save(self) -> SavedLosses:
        return SavedLosses(
            ended=self._ended,
            void=self._void,
            counts=self._counts,
            wording=self._wording,
            finished=sorted(self._finished),
            failed={player: dict(causes) for player, causes in self._failed.items()},
            absent=self._absent,
        )

    def load(self, saved: SavedLosses) -> None:
        """Become what was saved; this count is new."""
        self._ended, self._void = saved.ended, saved.void
        self._counts, self._wording, self._finished = Counter(saved.counts), saved.wording, {*saved.finished}
        self._failed = {player: Counter(causes) for player, causes in saved.failed.items()}
        self._absent = saved.absent

    def _finish(self, match: Match) -> None:
        for side in match.sides:
            for player in side.players:
                if player not in self._finished:
                    self._finished.add(player)
                    self._failed.pop(player, None)

    def _fail(self, match: Match, reason: str) -> None:
        self._void += 1
        wording = _CLASS.sub("", reason)
        key = _NUMBER.sub(lambda found: found[1] or "#", wording)
        self._wording.setdefault(key, wording)
        self._counts[key] += 1
        for player in {player for side in match.sides for player in side.players} - self._finished:
            self._failed.setdefault(player, Counter())[key] += 1

    def _why(self, player: str, causes: Counter[str]) -> str:
        """The most frequent cause that names the player, if any does: a bot that fails takes others with it."""
        own = {key: count for key, count in causes.items() if f"'{player}'" in key}
        return self._wording[Counter(own or causes).most_common(1)[0][0]]


def absences(absent: Mapping[str, str]) -> str:
    """Of at least one player."""
    why = on_one_line(next(iter(absent.values())), LONGEST_ABSENCE)
    return f"{_named([*absent])} no readable weights and no matches until a start finds them: {why}"


def on_one_line(reason: str, longest: int = LONGEST_REASON) -> str:
    return shortened(" ".join(reason.split()), longest)


def _named(players: list[str]) -> str:
    more = len(players) - MOST_NAMES
    names = ", ".join(players[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
    return f"{names} {'has' if len(players) == 1 else 'have'}"
