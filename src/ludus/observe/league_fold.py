"""A run's ledger as the views need it: the current league, and every match in columns.

A league folds its matches one by one, which takes seconds for a hundred thousand. A view needs no leases, checks
or draws: here the matches go into columns, and the payoff takes them all at once. All other events go to the
league as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.config import apply_encoded, apply_read, decode, read
from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    MatchVoid,
    PlayerReset,
    Result,
    RunStarted,
    Settings,
    SettingsChanged,
)
from ludus.data.specs import GameSpec
from ludus.league.league import League
from ludus.league.matches import changed_incarnation
from ludus.league.payoff import PairRows, Payoff, pair_counts
from ludus.league.quality import quality_rules
from ludus.league.ratings import fit_elo
from ludus.league.rules import EvaluationConfig, LeagueRules
from ludus.public_names import find_public
from ludus.store.ledger import Ledger
from ludus.store.run_folder import RunFolder, RunFolderError

Floats = NDArray[np.float64]


class Columns:
    """Rows of numbers. Appending is as cheap as to a list; reading joins what is new to an array."""

    def __init__(self, *names: str) -> None:
        self._place = {name: place for place, name in enumerate(names)}
        self._rows: Floats = np.empty((1024, len(names)))
        self._length = 0
        self._new: list[Sequence[float]] = []

    def __len__(self) -> int:
        return self._length + len(self._new)

    def append(self, row: Sequence[float]) -> None:
        self._new.append(row)

    def column(self, name: str, start: int = 0, end: int | None = None) -> Floats:
        """Part of a column, to be read only."""
        self._join()
        return self._rows[: self._length][start:end, self._place[name]]

    def _join(self) -> None:
        if not self._new:
            return
        width, length = self._rows.shape[1], len(self)
        if length > len(self._rows):
            grown = np.empty((max(length, 2 * len(self._rows)), width))
            grown[: self._length] = self._rows[: self._length]
            self._rows = grown
        count = len(self._new) * width
        new = np.fromiter(chain.from_iterable(self._new), np.float64, count).reshape(-1, width)
        self._rows[self._length : length] = new
        self._length, self._new = length, []


_BUILT_IN = "ludus.games.builtin."
"""Games of Ludus itself, which need no library."""
_OPPONENTS = ("evaluation", "evaluation.opponents")
"""Settings that name the bots that snapshots are measured against."""


def league_of(game: GameSpec, rules: LeagueRules, evaluation: EvaluationConfig, seed: int) -> League:
    """Before its first event. The opponents of the evaluation are among its bots."""
    return League(
        _with_opponents(rules, evaluation),
        num_teams=game.num_teams,
        seats_per_team=tuple(len(seats) for seats in game.seats_of_team),
        seed=seed,
        change_rules=apply_encoded,
    )


def _with_opponents(rules: LeagueRules, evaluation: EvaluationConfig) -> LeagueRules:
    return replace(rules, bots=tuple(dict.fromkeys((*rules.bots, *evaluation.opponents))))


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedLeague:
    """A league before its first event, and what is shown beside it."""

    league: League
    evaluation: EvaluationConfig
    """As the run began with it."""

    @property
    def opponents(self) -> tuple[str, ...]:
        """The bots that every snapshot is measured against, by what the league has heard so far."""
        changes = {path: value for path, value in self.league.settings.items() if path in _OPPONENTS}
        whole = apply_read({"evaluation": self.evaluation}, changes)
        return whole["evaluation"].opponents


def read_league(folder: RunFolder) -> SavedLeague:
    """The league that a run's ledger is folded into. Imports nothing that the run names."""
    experiment = msgspec.json.decode(folder.facts.experiment)
    parts = read({name: experiment[name] for name in ("league", "evaluation")})
    rules, evaluation = parts["league"], parts["evaluation"]
    if not isinstance(rules, LeagueRules) or not isinstance(evaluation, EvaluationConfig):
        raise RunFolderError(f"{folder.path}: its league is code of its own, which reading a run does not run")
    seats = _seats_per_team(folder, experiment)
    league = League(
        _with_opponents(rules, evaluation),
        num_teams=len(seats),
        seats_per_team=seats,
        seed=experiment["seed"],
        change_rules=apply_read,
        checked=False,
    )
    return SavedLeague(league=league, evaluation=evaluation)


def _seats_per_team(folder: RunFolder, experiment: dict[str, Any]) -> tuple[int, ...]:
    """As `run.json` says; of a folder that does not say it, the game is asked if it is built in."""
    if folder.facts.game is not None:
        return folder.facts.game.seats_per_team
    public = find_public(str(experiment["game"].get("type", "")))
    if public is None or not public.address.startswith(_BUILT_IN):
        raise RunFolderError(f"{folder.path / 'run.json'} does not say how many seats the teams of its game have")
    game: GameSpec = decode(experiment["game"]).spec
    return tuple(len(seats) for seats in game.seats_of_team)


PURPOSES = ("training", "evaluation", "human")
FINISHED, VOID = 0, 1
OWN, COMBINED = 1, 2
"""The payoffs that a row of `pairs` goes into: that of its purpose, and that of training and evaluation."""
LEASED = "match_leased"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Settings that were changed while the run went on."""

    decisions: int
    player: str | None
    """None: for all."""
    settings: Settings
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """From this row of the pairs on, earlier games of a player count no more."""

    row: int
    player: str


class RunFold:
    """Everything that the views read off the ledger. `follow` brings it up to date."""

    def __init__(self, saved: SavedLeague) -> None:
        self.saved = saved
        self.league = saved.league
        self.names: list[str] = []
        """Players by their place in the columns."""
        self.pairs = Columns(
            "first", "second", "wins", "draws", "losses", "margin", "episodes", "purpose", "into", "decisions"
        )
        """One row per pair of players in a finished match that counts."""
        self.ended = Columns("id", "purpose", "state", "first", "second")
        """One row per match that has ended, oldest first."""
        self.line_ups: dict[int, tuple[str, ...]] = {}
        """Match id -> everybody in it, where more than two sit at the table."""
        self.issued = self.finished = self.evaluations = self.void = 0
        self.voids: Counter[str] = Counter()
        """Matches that ended without a result, by cause."""
        self.changes: list[Change] = []
        self.forgotten: list[Forgotten] = []
        self.decisions = 0
        """That all learning players together have trained on."""
        self.seen = 0
        """The last row of the ledger that is in here."""
        self._place: dict[str, int] = {}
        self._open: dict[int, Match] = {}
        self._stale: set[int] = set()
        self._void_by_restart: set[int] = set()
        self._folded = 0
        # Qualities are a fold over matches in their order: such a league must see every one.
        self._one_by_one = bool(quality_rules(self.league.rules.roles))

    def follow(self, ledger: Ledger) -> bool:
        """Fold what is new; whether anything was."""
        before = self.seen
        for self.seen, event in ledger.replay(before, without=LEASED):
            self._apply(event)
        self._fold_pairs()
        return self.seen > before

    @property
    def open_matches(self) -> list[Match]:
        return list(self._open.values())

    def place(self, player: str) -> int:
        """The index of a player in the columns; a new player gets the next one."""
        place = self._place.get(player)
        if place is None:
            place = self._place[player] = len(self.names)
            self.names.append(player)
        return place

    def has_played(self, player: str) -> bool:
        return player in self._place

    def rows(self, start: int, end: int | None, into: int, purpose: int | None = None) -> PairRows:
        """Pairs from row `start` to `end`; only those that go into a payoff, and are of a purpose."""

        def column(name: str) -> Floats:
            return self.pairs.column(name, start, end)

        keep = (column("into").astype(int) & into) > 0
        if purpose is not None:
            keep &= column("purpose") == purpose
        return PairRows(
            first=column("first")[keep].astype(np.intp),
            second=column("second")[keep].astype(np.intp),
            wins=column("wins")[keep],
            draws=column("draws")[keep],
            losses=column("losses")[keep],
            margins=column("margin")[keep],
            episodes=column("episodes")[keep],
        )

    # --- events ---

    def _apply(self, event: AnyEvent) -> None:
        if isinstance(event, MatchIssued):
            self._open[event.match.id] = event.match
            self.issued += 1
        elif isinstance(event, MatchFinished):
            self._finish(event.result)
        elif isinstance(event, MatchVoid):
            self._cancel(event)
        else:
            before = self._decisions(event)
            self._note(event)
            self.league.apply(event)
            self.decisions += self._decisions(event) - before
            return
        if self._one_by_one:
            self.league.apply(event)

    def _decisions(self, event: AnyEvent) -> int:
        """Decisions of the player that has made progress."""
        if isinstance(event, LearnerProgress) and event.player in self.league.standings:
            return self.league.standings[event.player].decisions
        return 0

    def _note(self, event: AnyEvent) -> None:
        match event:
            case RunStarted():
                self._void_by_restart.update(self._open)
                self.void += len(self._open)
                for match in self._open.values():
                    self._end(match, PURPOSES.index(match.purpose), VOID)
                self._open.clear()
            case PlayerReset():
                self._fold_pairs()
                self._stale.update(
                    match.id
                    for match in self._open.values()
                    if any(event.player in side.players for side in match.sides)
                )
                role = self.league.rules.roles[self.league.players[event.player].role]
                if role.after_reset.clear_payoff or event.donor is not None:
                    self.forgotten.append(Forgotten(row=len(self.pairs), player=event.player))
            case SettingsChanged():
                self._fold_pairs()
                self.changes.append(
                    Change(decisions=self.decisions, player=event.player, settings=event.settings, reason=event.reason)
                )
            case _:
                pass

    def _finish(self, result: Result) -> None:
        match = self._open.pop(result.match_id, None)
        if match is None:
            return
        self.finished += 1
        self.evaluations += match.purpose == "evaluation"
        purpose = PURPOSES.index(match.purpose)
        self._end(match, purpose, FINISHED)
        if match.id in self._stale:
            self._stale.discard(match.id)
            return
        if result.first_models != result.last_models and changed_incarnation(result):
            return
        sides = match.sides
        if len(sides) == 2 and len(sides[0].players) == len(sides[1].players) == 1:
            self._add_duel(*sides[0].players, *sides[1].players, result, purpose)
            return
        both = OWN if purpose == 2 else OWN | COMBINED
        if any(side.is_mixed for side in sides):
            self._add_pairs(match, result, purpose, OWN, captains=True)
            if purpose != 2:
                self._add_pairs(match, result, purpose, COMBINED, captains=False)
        else:
            self._add_pairs(match, result, purpose, both, captains=True)

    def _add_duel(self, a: str, b: str, result: Result, purpose: int) -> None:
        """A faster `pair_counts` for matches between two players."""
        if a == b:
            return
        [pair] = result.pairs
        margin = (result.score_sum[0] - result.score_sum[1]) / 2
        wins, losses = pair.wins, pair.losses
        if b < a:
            a, b, wins, losses, margin = b, a, losses, wins, -margin
        into = OWN if purpose == 2 else OWN | COMBINED
        self.pairs.append(
            (self.place(a), self.place(b), wins, pair.draws, losses, margin, result.episodes, purpose, into,
             self.decisions)
        )  # fmt: skip

    def _add_pairs(self, match: Match, result: Result, purpose: int, into: int, *, captains: bool) -> None:
        for (a, b), counts in pair_counts(match, result, captains=captains).items():
            row = (self.place(a), self.place(b), *counts, result.episodes, purpose, into, self.decisions)
            self.pairs.append(row)

    def _cancel(self, event: MatchVoid) -> None:
        self.voids[event.reason.partition(":")[0]] += 1
        if event.match_id in self._void_by_restart:
            self._void_by_restart.discard(event.match_id)
            return
        match = self._open.pop(event.match_id, None)
        if match is not None:
            self._stale.discard(match.id)
            self.void += 1
            self._end(match, PURPOSES.index(match.purpose), VOID)

    def _end(self, match: Match, purpose: int, state: int) -> None:
        players = match.sides[0].players + match.sides[-1].players
        if len(players) > 2 or len(match.sides) > 2:
            players = tuple(player for side in match.sides for player in side.players)
            self.line_ups[match.id] = tuple(dict.fromkeys(players))
        self.ended.append((match.id, purpose, state, self.place(players[0]), self.place(players[-1])))

    def _fold_pairs(self) -> None:
        """Into the payoffs of the league, as far as they are not in yet."""
        start, self._folded = self._folded, len(self.pairs)
        if self._one_by_one or start == self._folded:
            return
        payoffs = self.league.payoffs
        for purpose, payoff in enumerate((payoffs.training, payoffs.evaluation, payoffs.human)):
            payoff.add_rows(self.names, self.rows(start, None, OWN, purpose))
        payoffs.combined.add_rows(self.names, self.rows(start, None, COMBINED))


POINTS = 48
"""Between this number and twice as many points are kept, evenly spaced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingPoint:
    decisions: float
    elo: dict[str, tuple[float, float]]
    """With its standard error, of those that a chain of games joins to the anchor."""


class RatingHistory:
    """Folds the pairs once more, by the rules of now, and fits ratings on the way."""

    def __init__(self, fold: RunFold) -> None:
        self._fold = fold
        self._payoff = Payoff(fold.league.rules.payoff)
        self._done = 0
        self._forgotten = 0
        self._step = 0
        self.points: list[RatingPoint] = []

    def follow(self, anchor: str) -> bool:
        """Fit what is due; whether anything was."""
        length = len(self._fold.pairs)
        if self._step == 0:
            if length == 0:
                return False
            self._step = max(1, length // POINTS)
        before = self._done
        while self._done + self._step <= length:
            self._fold_to(self._done + self._step)
            self.points.append(self._fit(anchor))
            if len(self.points) >= 2 * POINTS:
                self.points = self.points[1::2]
                self._step *= 2
        return self._done > before

    def _fold_to(self, end: int) -> None:
        forgotten = self._fold.forgotten
        while self._forgotten < len(forgotten) and forgotten[self._forgotten].row <= end:
            mark = forgotten[self._forgotten]
            self._add(mark.row)
            self._payoff.forget(mark.player)
            self._forgotten += 1
        self._add(end)

    def _add(self, end: int) -> None:
        if end > self._done:
            self._payoff.add_rows(self._fold.names, self._fold.rows(self._done, end, COMBINED))
            self._done = end

    def _fit(self, anchor: str) -> RatingPoint:
        players = list(self._fold.league.candidates)
        games, points = self._payoff.counts(players)
        met = np.flatnonzero(games.sum(axis=1) > 0)
        elo = {}
        if anchor in (names := [players[one] for one in met]):
            block = np.ix_(met, met)
            for rating in fit_elo(names, games[block], points[block], anchor=anchor).ratings:
                if rating.elo is not None and rating.standard_error is not None:
                    elo[rating.player] = (rating.elo, rating.standard_error)
        return RatingPoint(decisions=float(self._fold.pairs.column("decisions", self._done - 1)[0]), elo=elo)
