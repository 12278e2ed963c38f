"""The one fold of a run's ledger: the terminal, `ludus league --json`, `Run.league`, the pages and the report read it.
It imports and executes nothing that the run names."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, cached_property
from hashlib import blake2b
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

import ludus.data.records
import ludus.league.league
import ludus.observe.lost_matches
from ludus.config import apply_encoded, apply_read, decode, read
from ludus.config.encoding import is_plain
from ludus.data.records import (
    AnyEvent,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    MatchVoid,
    ModelId,
    RunStarted,
    SettingsChanged,
)
from ludus.data.specs import GameSpec
from ludus.league.league import League, SavedLeague
from ludus.league.matches import changed_incarnation
from ludus.league.payoff import pair_counts
from ludus.league.players import Descent, Player
from ludus.league.ratings import OpenSkillTable, fit_elo
from ludus.league.role_scores import RoleLine, role_lines
from ludus.league.rules import EvaluationConfig, LeagueRules
from ludus.league.summary import LeagueNumbers, LeagueSummary, best_snapshot, summarise
from ludus.observe.lost_matches import NO_FAULT, LossCount, LostMatches, SavedLosses
from ludus.public_names import find_public
from ludus.store.files import UNREADABLE, atomic_write, read_file
from ludus.store.ledger import DamagedLedger
from ludus.store.model_pool import BEST, UnknownModel
from ludus.store.run_folder import RunFolder, RunFolderError, read_metrics

_BUILT_IN = "ludus.games.builtin."
"""Games of Ludus itself, which need no library."""
_OPPONENTS = ("evaluation", "evaluation.opponents")
"""Settings that name the bots that snapshots are measured against."""
FOLD_FILE = "league.fold"
SAVE_EVERY = 5_000
"""Rows that a saved fold may lack; in a large ledger it may lack a tenth."""
QUICK_ROWS = 30_000
"""Rows that are folded in below a second."""
POINTS = 48
"""Ratings over time have between this number and twice as many points, evenly spaced."""


@cache
def _code_digest() -> str:
    """Digest of the code that a fold depends on: one that other code has saved is not used."""
    league = Path(ludus.league.league.__file__).parent
    files = [*sorted(league.glob("*.py")), Path(__file__), Path(ludus.observe.lost_matches.__file__)]
    digest = blake2b(digest_size=16)
    for path in (*files, Path(ludus.data.records.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _fault_class(row: Mapping[str, Any]) -> str:
    """The kind of a fault. A row of another program need not have one."""
    found = row.get("class")
    return found if isinstance(found, str) else "unknown"


def league_of(game: GameSpec, rules: LeagueRules, evaluation: EvaluationConfig, seed: int) -> League:
    """A league before its first event. The opponents of the evaluation are among its bots."""
    return League(
        _with_opponents(rules, evaluation),
        num_teams=game.num_teams,
        seats_per_team=tuple(len(seats) for seats in game.seats_of_team),
        seed=seed,
        change_rules=apply_encoded,
    )


def _with_opponents(rules: LeagueRules, evaluation: EvaluationConfig) -> LeagueRules:
    return replace(rules, bots=tuple(dict.fromkeys((*rules.bots, *evaluation.opponents))))


def read_league(folder: RunFolder) -> tuple[League, EvaluationConfig]:
    """The league of a run before its first event, and how the run began to evaluate its players."""
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
    return league, evaluation


def best_models(folder: RunFolder) -> dict[str, ModelId | None]:
    """What `PLAYER@best` of each learning player means by the ledger; empty if there is none, or if its league is code
    of its own, which is not run here: then the files of the tags are all there is."""
    try:
        read_league(folder)
    except (RunFolderError, LookupError):
        return {}
    if not folder.ledger_path.exists():
        return {}
    with closing(RunFold(folder, brief=True)) as fold:
        fold.follow()
        league = fold.league
    best = {player: best_snapshot(league, player) for player in league.standings}
    models = {player: None if found is None else league.players[found].model for player, found in best.items()}
    return {f"{player}@{BEST}": None if model is None else ModelId.parse(model) for player, model in models.items()}


def resolve_in(folder: RunFolder, name: str) -> ModelId:
    """The model of a run that a name means: `player`, `player@tag` or `player:incarnation:step`."""
    if name.endswith(f"@{BEST}") and name in (best := best_models(folder)):
        if (model := best[name]) is None:
            raise UnknownModel(f"{folder.path}#{name}: its ledger has no evaluation of a snapshot of that player yet")
        return model
    return folder.models.resolve(name)


def _seats_per_team(folder: RunFolder, experiment: dict[str, Any]) -> tuple[int, ...]:
    """As `run.json` says; of a folder that does not say it, the game is asked if it is built in."""
    if folder.facts.game is not None:
        return folder.facts.game.seats_per_team
    fields = dict(experiment["game"])
    public = find_public(str(fields.pop("type", "")))
    if public is None or not public.address.startswith(_BUILT_IN) or not is_plain(fields):
        raise RunFolderError(f"{folder.path / 'run.json'} does not say how many seats the teams of its game have")
    game: GameSpec = decode(experiment["game"]).spec
    return tuple(len(seats) for seats in game.seats_of_team)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of matches."""

    issued: int = 0
    finished: int = 0
    evaluations: int = 0
    void: int = 0
    open: int = 0


class LeaguePlayer(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a league, with the numbers that follow from its games."""

    id: str
    role: str
    parent: str | None
    model: str | None
    """The pinned weights of a frozen player, or those that a learning player began with."""
    latest_model: str | None
    """The newest weights of a learning player."""
    weights: str | None
    """"live" or "average": those that it plays matches of the league with; None for a bot."""
    reason: str
    decisions: int
    """That it was trained on."""
    active: bool
    """Whether the league still gives it matches."""
    games: float
    elo: float | None
    """Relative to the anchor of the league; None where no chain of games leads to the anchor."""
    elo_interval: tuple[float, float] | None
    """Of 95 %."""
    equilibrium: float
    """Its share of the mixture of frozen players that none of them beats."""
    score: tuple[float, float] | None
    """Mean score and standard error, in games with one team."""
    roles: tuple[RoleLine, ...]
    """By team, in games that compare roles; else empty."""
    tags: tuple[str, ...]
    """best, latest"""
    opponents: dict[str, float] | None
    """For a learning player: the probability of each opponent in its next match."""
    lineage: tuple[Descent, ...] | None
    """For a learning player: its start and its resets."""


def league_players(league: League, summary: LeagueSummary, roles: Sequence[str] = ()) -> list[LeaguePlayer]:
    """The members of a league, in the order in which they joined: the rows of every table about it. `roles`: of the
    teams, by name."""
    active = set(league.active)
    tags: dict[str, list[str]] = {}
    for found in summary.tags.values():
        for tag, snapshot in found.items():
            tags.setdefault(snapshot, []).append(tag)
    rows = []
    for player, rating in zip(summary.players, summary.ratings, strict=True):
        standing = league.standings.get(player.id)
        law = league.shown_law(player.id) if player.learning else None
        lineage = league.lineage.get(player.id)
        rows.append(
            LeaguePlayer(
                id=player.id,
                role=player.role,
                parent=player.parent,
                model=player.model,
                latest_model=None if standing is None or standing.step is None else str(standing.latest_model),
                weights=player.played_weights,
                reason=player.reason,
                decisions=trained_on(league, player),
                active=player.id in active,
                games=rating.games,
                elo=rating.elo,
                elo_interval=rating.interval(),
                equilibrium=summary.equilibrium.get(player.id, 0.0),
                score=summary.scores.get(player.id),
                roles=role_lines(summary.role_scores.get(player.id, ()), roles),
                tags=tuple(tags.get(player.id, ())),
                opponents=None if law is None else dict(law),
                lineage=None if lineage is None else tuple(lineage),
            )
        )
    return rows


class LostPlayer(LeaguePlayer, frozen=True, kw_only=True):
    """A frozen player whose weights cannot be read: its record stays, and nobody meets it until a start finds them."""

    win_rate: float | None
    """Of all its games; a draw is half a win."""
    why: str


def lost_players(league: League) -> list[LostPlayer]:
    if not league.absent:
        return []
    members = [*league.candidates, *league.absent]
    anchor = next((one for one in members if league.players[one].scripted), members[0])
    games, points = league.payoffs.combined.counts(members)
    ratings = fit_elo(members, games, points, anchor=anchor)
    rows = []
    for place, (name, why) in enumerate(league.absent.items(), start=len(league.candidates)):
        player, rating, score = league.players[name], ratings[name], league.scores.get(name)
        rows.append(
            LostPlayer(
                id=name,
                role=player.role,
                parent=player.parent,
                model=player.model,
                latest_model=None,
                weights=player.played_weights,
                reason=player.reason,
                decisions=trained_on(league, player),
                active=False,
                games=rating.games,
                elo=rating.elo,
                elo_interval=rating.interval(),
                equilibrium=0.0,
                score=None if score is None else (score.mean, score.standard_error),
                roles=(),
                tags=("weights lost",),
                opponents=None,
                lineage=None,
                win_rate=float(points[place].sum()) / rating.games if rating.games else None,
                why=why,
            )
        )
    return rows


def trained_on(league: League, player: Player) -> int:
    """Decisions that a player was trained on."""
    standing = league.standings.get(player.id)
    return standing.decisions if standing else player.parent_decisions


class ListedMatch(NamedTuple):
    id: int
    purpose: str
    state: str
    """finished, void or open"""
    players: tuple[str, ...]
    """On the seats of all sides."""

    @classmethod
    def of(cls, match: Match, state: str) -> ListedMatch:
        return cls(match.id, match.purpose, state, tuple(player for side in match.sides for player in side.players))


class PairResult(NamedTuple):
    """The games of two players in one match that counts."""

    first: str
    second: str
    points: float
    """Of the first; a draw is half a point."""
    games: int
    decisions: int
    """Decisions that all learning players together had trained on."""


class RatingPoint(NamedTuple):
    decisions: int
    anchor: str
    elo: dict[str, tuple[float, float]]
    """With its standard error, of the players that a chain of games joins to the anchor."""
    matches: int = 0
    """Finished by then."""


class SavedFold(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a `RunFold`. It is only valid for the code, the experiment and the rows that it names."""

    code: str
    experiment: str
    row: int
    chain: bytes
    digest: str
    """Of the league."""
    league: SavedLeague
    ended: bytes
    """MessagePack, decoded when it is needed: tables and `--json` do not show single matches."""
    results: bytes
    changes: list[tuple[int, SettingsChanged]]
    voids: dict[str, int]
    ratings: list[RatingPoint]
    rate_every: int
    rate_at: int
    losses: SavedLosses
    skill: dict[str, tuple[float, float]]
    rated_matches: list[Match]
    """Open matches that OpenSkill is to rate."""
    numbers: LeagueNumbers | None
    """Of the measured summary of these rows; None if nobody has asked for it."""


class RunFold:
    """The league of a run, and its past as far as it is shown. `follow` folds what is new in the ledger. The state is
    saved beside the ledger now and then; the file may be deleted, and is ignored unless it fits."""

    def __init__(self, folder: RunFolder, *, brief: bool = False) -> None:
        """`brief`: a small league is folded without its ratings over time, which take most of the time. It must not be
        followed on."""
        self._folder = folder
        self._brief = brief
        self.league, self._evaluation = read_league(folder)
        self.ledger = folder.ledger(read_only=True)
        self.seen = 0
        """The last row of the ledger that is in here."""
        self._ended = self._results = msgspec.msgpack.encode([])
        self.changes: list[tuple[int, SettingsChanged]] = []
        """With the decisions that all learning players together had trained on."""
        self.voids: Counter[str] = Counter()
        """Matches that ended without a result, by cause."""
        self.ratings: list[RatingPoint] = []
        """Over time, without those of now."""
        self._rate_every = 0
        self._rate_at = 0
        self._summaries: dict[bool, LeagueSummary] = {}
        self._numbers: LeagueNumbers | None = None
        """Of the measured summary of now, once it is known."""
        self._decisions: int | None = None
        self._losses = LossCount()
        self._skills = OpenSkillTable(seats=min(self.league.seats_per_team))
        self._saved = 0
        """The last row in the saved fold."""
        self._saved_numbers: LeagueNumbers | None = None
        """In the saved fold."""
        self._load()

    @cached_property
    def ended(self) -> list[ListedMatch]:
        """Oldest first."""
        return msgspec.msgpack.decode(self._ended, type=list[ListedMatch])

    @cached_property
    def results(self) -> list[PairResult]:
        return msgspec.msgpack.decode(self._results, type=list[PairResult])

    def follow(self) -> bool:
        """Fold new events; return whether there were any."""
        before = self.seen
        if not self._rate_every:
            try:
                finished = self.ledger.counts()["match_finished"]
            except DamagedLedger:
                self.ledger.verify()  # names the row, if it is a row
                raise
            self._rate_every = 1
            while finished // self._rate_every >= 2 * POINTS:
                self._rate_every *= 2
            is_small = self.ledger.position[0] < SAVE_EVERY  # it is not saved either
            self._rate_at = sys.maxsize if self._brief and is_small else self._rate_every
        self.ledger.fold(self._count, before)
        if self.seen > before:
            self._summaries.clear()
            self._numbers = None
        # What the first call reads is saved by `close`, with the numbers that are computed until then.
        if before and self.seen - self._saved >= max(SAVE_EVERY, self.seen // 10):
            self.save()
        return self.seen > before

    def save(self) -> None:
        """Save the state beside the ledger, if that can be written: reading a run needs no more than reading."""
        chain = self.ledger.chain_at(self.seen)
        if "ended" in self.__dict__:  # otherwise it is as it was loaded
            self._ended, self._results = (msgspec.msgpack.encode(rows) for rows in (self.ended, self.results))
        skill, rated_matches = self._skills.save()
        saved = msgspec.msgpack.encode(
            SavedFold(
                code=_code_digest(),
                experiment=self._experiment_digest(),
                row=self.seen,
                chain=chain or b"",
                digest=self.league.state_digest(),
                league=self.league.save(),
                ended=self._ended,
                results=self._results,
                changes=self.changes,
                voids=self.voids,
                ratings=self.ratings,
                rate_every=self._rate_every,
                rate_at=self._rate_at,
                losses=self._losses.save(),
                skill=skill,
                rated_matches=rated_matches,
                numbers=self._numbers,
            )
        )
        with suppress(OSError):
            atomic_write(self._folder.path / FOLD_FILE, blake2b(saved, digest_size=16).digest() + saved, sync=False)
        self._saved, self._saved_numbers = self.seen, self._numbers

    def _load(self) -> None:
        """Go on from the saved state, if it is whole, of this code and experiment, and of rows that the ledger has."""
        try:
            content = read_file(self._folder.path / FOLD_FILE)
            if content[:16] != blake2b(content[16:], digest_size=16).digest():
                return
            saved = msgspec.msgpack.decode(memoryview(content)[16:], type=SavedFold)
        except (OSError, *UNREADABLE):
            return
        fits = (saved.code, saved.experiment) == (_code_digest(), self._experiment_digest())
        if not fits or self.ledger.chain_at(saved.row) != saved.chain:
            return
        self.league.load(saved.league)
        if self.league.state_digest() != saved.digest:
            self.league, _ = read_league(self._folder)
            return
        self.seen = self._saved = saved.row
        self._numbers = self._saved_numbers = saved.numbers
        self._ended, self._results = saved.ended, saved.results
        self.changes, self.ratings = saved.changes, saved.ratings
        self.voids = Counter(saved.voids)
        self._rate_every, self._rate_at = saved.rate_every, saved.rate_at
        self._losses.load(saved.losses)
        self._skills.load(saved.skill, saved.rated_matches)

    def _experiment_digest(self) -> str:
        return blake2b(bytes(self._folder.facts.experiment), digest_size=16).hexdigest()

    def close(self) -> None:
        """Close the ledger. Of a large league, first save what the next reader would have to compute again."""
        if self.seen >= SAVE_EVERY and (self.seen > self._saved or self._numbers != self._saved_numbers):
            self.save()
        self.ledger.close()

    @classmethod
    def save_of(cls, folder: RunFolder) -> None:
        """Bring the saved fold of a run up to date, so that the next reader need not fold much."""
        with folder.ledger(read_only=True) as ledger:
            if ledger.position[0] < SAVE_EVERY:
                return
        with closing(cls(folder)) as fold:
            fold.follow()
            fold.summary(measured=True)

    def require_players(self) -> None:
        if not self.league.players:
            raise RunFolderError(f"{self._folder.path} has no players yet: it has not started")

    @property
    def counts(self) -> Counts:
        book = self.league.matches
        return Counts(
            issued=book.issued,
            finished=book.finished,
            evaluations=book.evaluations,
            void=book.void,
            open=len(book.open_matches),
        )

    @property
    def decisions(self) -> int:
        """That all learning players together have trained on."""
        if self._decisions is None:
            now = sum(standing.decisions for standing in self.league.standings.values())
            self._decisions = now + self.league.decisions_of_removed
        return self._decisions

    @property
    def is_quick(self) -> bool:
        """Whether `follow` takes below a second."""
        return self.ledger.position[0] - self.seen <= QUICK_ROWS

    @property
    def newest_elo(self) -> dict[str, tuple[float, float]]:
        """As the ratings over time last had it, which takes no time."""
        return self.ratings[-1].elo if self.ratings else {}

    @property
    def snapshots(self) -> dict[str, tuple[str, ...]]:
        """Of each learning player, oldest first."""
        candidates = self.league.candidates
        return {player: candidates.history_of(player) for player in self.league.standings}

    @property
    def open_matches(self) -> list[ListedMatch]:
        return [ListedMatch.of(entry.match, "open") for entry in self.league.matches.open_matches.values()]

    @property
    def opponents(self) -> tuple[str, ...]:
        """The bots that every snapshot is measured against."""
        changes = {path: value for path, value in self.league.settings.items() if path in _OPPONENTS}
        whole = apply_read({"evaluation": self._evaluation}, changes)
        opponents: tuple[str, ...] = whole["evaluation"].opponents
        return opponents

    @property
    def lost(self) -> LostMatches:
        """Matches that failed."""
        return self._losses.lost()

    def summary(self, *, measured: bool = False) -> LeagueSummary:
        """`measured` adds the league measures, which take a second in a league of 200."""
        if measured not in self._summaries:
            known = self._numbers if measured else None
            self._summaries[measured] = summarise(
                self.league, measured=measured, with_alpha_rank=measured, numbers=known
            )
            if measured:
                self._numbers = self._summaries[measured].numbers
        return self._summaries[measured]

    def players(self, summary: LeagueSummary) -> list[LeaguePlayer]:
        return league_players(self.league, summary, self.roles)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles by team, where players are compared by role; empty if the run does not say."""
        return () if self._folder.facts.game is None else self._folder.facts.game.roles

    def document(self) -> dict[str, Any]:
        """Everything as plain values, as `ludus league --json` prints it."""
        league, summary = self.league, self.summary(measured=True)
        return {
            "players": [
                {
                    **msgspec.to_builtins(player),
                    "openskill": self._skills.skill(player.id),
                    "settings": league.settings_of(player.id) if player.id in league.standings else None,
                }
                for player in self.players(summary)
            ],
            "lost_players": msgspec.to_builtins(lost_players(league)),
            "anchor": summary.anchor,
            "tags": {
                player: {
                    tag: {"player": snapshot, "model": league.players[snapshot].model} for tag, snapshot in tags.items()
                }
                for player, tags in summary.tags.items()
            },
            "measures": msgspec.to_builtins(summary.measures),
            "win_rates": [[None if isnan(rate) else rate for rate in row] for row in summary.win_rates.tolist()],
            "games": summary.games.tolist(),
            "matches": msgspec.to_builtins(self.counts),
            "settings": league.settings,
            "events": league.num_events,
            "digest": league.state_digest(),
            **self._health(),
            "voids": dict(self.voids),
            "lost_matches": msgspec.to_builtins(self.lost),
        }

    def _health(self) -> dict[str, Any]:
        """Faults so far, by cause, and the latest row of the training metrics."""
        paths = [self._folder.metrics / f"{name}.jsonl" for name in ("faults", "train")]
        faults, rows = (read_metrics(path)[0] if path.exists() else [] for path in paths)
        return {
            "faults": dict(Counter(map(_fault_class, faults))),
            "restarts": dict(Counter(_fault_class(row) for row in faults if "started again" in str(row.get("then")))),
            "latest": rows[-1] if rows else {},
        }

    # --- events ---

    def _count(self, event: AnyEvent) -> None:
        self._apply(event)
        self._skills.apply(event)
        self.seen += 1

    def _apply(self, event: AnyEvent) -> None:
        match event:
            case MatchIssued() | MatchLeased():
                self.league.apply(event)
                return
            case MatchFinished(result=result):
                entry = self.league.matches.open_matches.get(result.match_id)
                self.league.apply(event)
                assert entry is not None, "the league has accepted the result"
                self._losses.end(entry.match, None)
                self.ended.append(ListedMatch.of(entry.match, "finished"))
                if not entry.stale and not changed_incarnation(result):
                    for (a, b), (wins, draws, losses, _) in pair_counts(entry.match, result).items():
                        games = wins + draws + losses
                        self.results.append(PairResult(a, b, wins + draws / 2, games, self.decisions))
                if self.league.matches.finished >= self._rate_at:
                    self._rate()
                return
            case MatchVoid():
                self._end_void(event)
            case RunStarted():
                open_before = self.league.matches.open_matches.values()
                self.ended += [ListedMatch.of(entry.match, "void") for entry in open_before]
            case SettingsChanged():
                self.changes.append((self.decisions, event))
            case _:
                self._losses.note(event)
        self.league.apply(event)
        self._decisions = None

    def _end_void(self, event: MatchVoid) -> None:
        entry = self.league.matches.open_matches.get(event.match_id)
        self.voids[event.reason.partition(":")[0]] += 1
        if entry is not None:
            self.ended.append(ListedMatch.of(entry.match, "void"))
            self._losses.end(entry.match, event.reason)
        elif event.reason not in NO_FAULT and (match := self.ledger.match(event.match_id)) is not None:
            self._losses.end(match, event.reason)  # it was void already when the run started again

    def _rate(self) -> None:
        """Add the ratings of now; of too many, every second is kept. Which are kept depends on the ledger alone, not on
        when it was read."""
        finished = self.league.matches.finished
        self._add_ratings(finished)
        if finished // self._rate_every >= 2 * POINTS:
            self._rate_every *= 2
            self.ratings = [point for point in self.ratings if point.matches % self._rate_every == 0]
        self._rate_at = finished + self._rate_every

    def _add_ratings(self, finished: int) -> None:
        players = self.league.candidates.players
        anchor = next((player.id for player in players if player.scripted), players[0].id)
        games, points = self.league.payoffs.combined.counts([player.id for player in players])
        met = np.flatnonzero(games.sum(axis=1) > 0)
        if anchor not in (names := [players[one].id for one in met]):
            return
        block = np.ix_(met, met)
        elo = {}
        for rating in fit_elo(names, games[block], points[block], anchor=anchor).values():
            if rating.elo is not None and rating.standard_error is not None:
                elo[rating.player] = (rating.elo, rating.standard_error)
        self.ratings.append(RatingPoint(self.decisions, anchor, elo, finished))
