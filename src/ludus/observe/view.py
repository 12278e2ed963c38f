"""A run folder as the documents that pages show. Reads only: no lock, no write."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from ludus.observe.documents import Concern, MetricsTable
from ludus.observe.league_fold import RunFold
from ludus.observe.league_page import MatchFilter, history_page, league_page, match_list, player_page, top_page
from ludus.observe.overview import (
    LeagueGlance,
    concerns_of_matches,
    concerns_of_metrics,
    concerns_of_ratings,
    concerns_of_status,
    overview,
)
from ludus.observe.recorded_games import GameFolder
from ludus.observe.run_state import ENDED, GpuWatch, UseMeter, look_at_run, state_without_status
from ludus.observe.strength import strength_page
from ludus.store.files import StoreError
from ludus.store.ledger import DamagedLedger
from ludus.store.run_control import RunStatus
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.system.text import without_logins

OVERVIEW, STRENGTH, LEAGUE, HISTORY, TOP, MATCHES = "overview", "strength", "league", "history", "top", "matches"
GAMES = "games"
QUICK = (OVERVIEW, GAMES)
"""Documents that need no look at the ledger."""
PLAYER = "player/"
PACE = 100.0
"""A document is made again only after so many times as long as it took: looking on must not cost."""


class ViewError(Exception):
    """There is no such document, or not of this run; the text says why."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A document as it was last made."""

    encoded: bytes
    version: tuple[int, ...]
    """Version of the data that it was made from."""
    due: float
    """From then on it may be made again."""


class RunView:
    """`refresh` looks at the folder, `document` gives what a view shows. Threads may share it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._experiment: Mapping[str, Any] = msgspec.json.decode(folder.facts.experiment)
        self._run = str(folder.path)
        self._front = threading.RLock()
        """Guards status and metrics, which are quick to read."""
        self._back = threading.RLock()
        """Guards the ledger and everything computed from it. A thread that needs both locks takes this one first."""
        self._missing: dict[str, tuple[int, ...]] = {}
        """Asked for when there was none yet, as of a run that has just begun -> the version then."""
        self._made: dict[str, _Made] = {}
        self._status: RunStatus | None = None
        self._looked = 0
        self._meter: UseMeter | None = None
        self._gpus = GpuWatch()
        self._metrics = MetricsTable(folder.metrics / "train.jsonl")
        self._games = GameFolder(folder.path)
        self._faults: list[dict[str, Any]] = []
        self._faults_offset = 0
        self._glance = LeagueGlance()
        self._fold: RunFold | None = None
        self._why_no_league = ""
        self._broken = False
        """An event did not fit: what is folded is of no use."""

    # --- looking ---

    def refresh(self) -> None:
        """Look at everything again."""
        self.look()
        self.follow()

    def look(self) -> None:
        """Read status and metrics: a few milliseconds. No request for a document waits for nvidia-smi."""
        if self.folder.holder() is not None:
            self._gpus.look()
        with self._front:
            if self._meter is None:
                self._meter = UseMeter()
            status = look_at_run(self.folder, partial(self._meter.look, on_gpus=self._gpus.memory))
            read = self._metrics.follow()
            if status != self._status or read:
                self._looked += 1
            self._status = status
            with suppress(OSError):  # there are none yet
                path = self.folder.metrics / "faults.jsonl"
                rows, self._faults_offset = read_metrics(path, self._faults_offset)
                self._faults += rows

    def follow(self) -> None:
        """Fold new events of the ledger. The first call reads all of it."""
        with self._back:
            fold = self._open()
            if fold is None or self._broken:
                return
            try:
                fold.follow()
                self._why_no_league = ""
            except DamagedLedger as error:
                self._why_no_league, self._broken = str(error), True
            except StoreError as error:  # may pass: a disk, a lock
                self._why_no_league = str(error)
            self._glance = self._glanced(fold)

    def is_quick(self, name: str) -> bool:
        """Whether the document needs no look at the ledger."""
        return name in QUICK

    @property
    def is_live(self) -> bool:
        """More may come."""
        return self._status is not None and self._status.state not in ENDED

    # --- documents ---

    def names(self) -> list[str]:
        """Names of all documents."""
        with self._back:
            fold = self._fold
            players = (
                []
                if fold is None
                else [f"{PLAYER}{player}" for player in (*fold.league.candidates, *fold.league.absent)]
            )
        return [OVERVIEW, GAMES, STRENGTH, LEAGUE, HISTORY, TOP, MATCHES, *players]

    def document(self, name: str) -> msgspec.Struct:
        """As of the last refresh; ViewError if there is none."""
        if name == OVERVIEW:
            with self._front:
                return overview(
                    self.folder, self._experiment, self._status, state_without_status(self.folder),
                    self._glance, self._metrics, self._concerns(), self._gpus.gpus, time.time(),
                )  # fmt: skip
        if name == GAMES:
            try:
                return self._games.listed()
            except StoreError as error:
                raise ViewError(str(error)) from error
        with self._back:
            fold = self._require_league()
            if name == STRENGTH:
                with self._front:
                    return strength_page(fold.league, fold.summary(), self._metrics)
            if name == LEAGUE:
                return league_page(fold, fold.summary(), str(self._experiment.get("name", "")))
            if name == HISTORY:
                return history_page(fold, fold.summary())
            if name == TOP:
                return top_page(fold)
            if name == MATCHES:
                return self.matches(MatchFilter())
            player = name.removeprefix(PLAYER)
            if name.startswith(PLAYER) and (player in fold.league.candidates or player in fold.league.absent):
                with self._front:
                    return player_page(fold, fold.summary(), self._metrics, self._experiment, player)
        raise ViewError(f"there is no document {name!r}")

    def matches(self, asked: MatchFilter) -> msgspec.Struct:
        """Those that pass the filter, newest first."""
        with self._back:
            return match_list(self._require_league(), asked, self.replays())

    def filtered_matches(self, asked: Mapping[str, str]) -> bytes:
        """The same as JSON; the filter in words, as they stand in an address."""
        try:
            chosen = msgspec.convert(dict(asked), MatchFilter, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        return encoded_document(self.matches(chosen))

    def replays(self) -> list[str]:
        """Files with recorded games, newest first."""
        found = [path for path in (self.folder.path / "replays").glob("*.replay") if path.is_file()]
        return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]

    def game(self, name: str) -> msgspec.Struct:
        """A recorded game; ViewError if there is none of this name."""
        try:
            return self._games.read(name)
        except StoreError as error:
            raise ViewError(str(error)) from error

    def encoded_game(self, name: str) -> bytes:
        return encoded_document(self.game(name))

    def encoded(self, name: str) -> tuple[bytes, str]:
        """A document as JSON, and a tag that changes with it. A costly one is not made again for every change."""
        with self._front if name in QUICK else self._back:
            made = self._made.get(name)
            version = self._version(name)
            if made is None or (made.version != version and time.monotonic() >= made.due):
                began = time.monotonic()
                if name in (GAMES, STRENGTH, LEAGUE, HISTORY, TOP, MATCHES):
                    self._missing[name] = version
                content = encoded_document(self.document(name))
                self._missing.pop(name, None)
                ended = time.monotonic()
                made = self._made[name] = _Made(content, version, ended + PACE * (ended - began))
            return made.encoded, "-".join(map(str, made.version))

    def due(self) -> list[str]:
        """Documents that were requested before and can be made anew."""
        now = time.monotonic()
        early = [name for name, was in list(self._missing.items()) if was != self._version(name)]
        return early + [
            name for name, made in list(self._made.items()) if now >= made.due and made.version != self._version(name)
        ]

    def close(self) -> None:
        with self._back:
            if self._fold is not None:
                self._fold.close()
                self._fold = None

    # --- parts ---

    def _version(self, name: str) -> tuple[int, ...]:
        """Version of the data that a document is made from. The overview also depends on the time."""
        seen = 0 if self._fold is None else self._fold.seen
        if name == OVERVIEW:
            return seen, self._looked, int(time.time() / 10) if self.is_live else 0
        if name == GAMES:
            return (self._games.changed,)
        return (seen, self._looked) if name.startswith(PLAYER) else (seen,)

    def _open(self) -> RunFold | None:
        """The fold, begun when there is something to fold."""
        if self._fold is None:
            if "league" not in self._experiment:
                self._why_no_league = "this run has none: it is a player that was cloned from replays"
                return None
            try:
                self._fold = RunFold(self.folder)
            except Exception as error:  # run.json may hold anything
                kind = "" if isinstance(error, StoreError) else f"{type(error).__name__}: "
                self._why_no_league = f"{kind}{error}"
                return None
            self._why_no_league = ""
        return self._fold

    def _require_league(self) -> RunFold:
        if self._why_no_league or self._fold is None:
            raise ViewError(f"the league cannot be shown: {self._why_no_league or 'not read yet'}")
        if not self._fold.league.players:
            raise ViewError("the run has no players yet: it has not started")
        return self._fold

    def _glanced(self, fold: RunFold) -> LeagueGlance:
        standings = fold.league.standings
        concerns = [*concerns_of_matches(fold.counts, fold.voids, fold.league.absent, self._run)]
        with self._front:
            concerns += concerns_of_ratings(fold.newest_elo, fold.snapshots, self._metrics)
        return LeagueGlance(
            counts=fold.counts, decisions=fold.decisions, learners=(*standings.values(),), concerns=(*concerns,)
        )

    def _concerns(self) -> list[Concern]:
        learners = [one.player.id for one in self._glance.learners]
        found = [
            *concerns_of_status(self._status, time.time(), self._faults, self._run),
            *concerns_of_metrics(self._metrics, learners, self._run, self._experiment.get("budget")),
        ]
        if self._why_no_league:
            found.append(
                Concern(
                    what="the league cannot be shown",
                    why=self._why_no_league,
                    advice=f"`ludus league {self._run}` shows the whole error",
                )
            )
        return found


def encoded_document(document: object) -> bytes:
    """As JSON, without the logins of addresses in commands and settings: a page has more readers than a run folder."""
    return without_logins(msgspec.json.encode(document).decode()).encode()
