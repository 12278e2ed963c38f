"""The runs and studies of a folder as a list, and what each has read of itself. Reads only, and executes nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ludus.observe.comparison import MOST_LINES, ComparedStudy, Comparison, ComparisonRequest, ReadRun, compare
from ludus.observe.documents import MetricsTable, OtherFolder, RunLine, RunListing, StudyLine, StudyPage
from ludus.observe.league_fold import RunFold
from ludus.observe.overview import kind_of
from ludus.observe.run_state import ENDED, look_at_run, silence, state_without_status
from ludus.observe.strength import strength_page
from ludus.observe.study_results import StudyResults
from ludus.observe.view import PACE, ViewError, encoded_document
from ludus.store.files import StoreError
from ludus.store.ledger import LedgerError
from ludus.store.run_control import RunStatus
from ludus.store.run_folder import RUN_FILE, RunFolder

RUNS, STUDY = "runs", "study/"
STUDY_FILE = "study.json"
DAMAGED = "damaged"
MOST_RUNS = 1_000
"""More of them are counted, not listed."""
MOST_METRICS = 128 << 20
"""Bytes of the metrics of compared runs that are kept in memory."""
DEPTH = 2
"""Folders inside of the folder that are searched for runs: `runs/monday/kuhn-001`."""
FOLLOW_S = 0.5
"""`follow` returns after about so long, so that what it has read can be shown."""
_LEFT_OF_RUN = ("ledger.db", "models", "checkpoints", "league.fold")
"""A folder with one of these has been a run."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A run folder that was found."""

    key: str
    path: Path
    study: str | None = None
    setting: str = ""
    seed: int | None = None
    problem: str = ""


class _Run:
    """A run and what is known of it. Files are read again when they have changed."""

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.folder: RunFolder | None = None
        self.experiment: Mapping[str, Any] = {}
        self.problem = place.problem
        self.status: RunStatus | None = None
        self.state = DAMAGED
        self.read: ReadRun | None = None
        self.why_unread = ""
        self.is_damaged = False
        """Its ledger is."""
        self.read_of: tuple[object, ...] | None = None
        """The files that `read` follows from."""
        self.due = 0.0
        self._facts_of: object = None
        self._status_of: object = None

    def look(self) -> bool:
        """Read facts and status; whether anything has changed."""
        before = (self._facts_of, self.status, self.state, self.problem)
        if not self.place.problem and (facts := _stamp(self.place.path / RUN_FILE)) != self._facts_of:
            self._facts_of, self.folder, self.problem = facts, None, ""
            try:
                self.folder = RunFolder.open(self.place.path, trusted=False)
                self.experiment = msgspec.json.decode(self.folder.facts.experiment)
            except (OSError, StoreError) as error:
                self.status, self.state, self.problem = None, DAMAGED, str(error)
        if self.folder is not None:
            self._look_at_status(self.folder)
        return before != (self._facts_of, self.status, self.state, self.problem)

    def _look_at_status(self, folder: RunFolder) -> None:
        found = _stamp(folder.status)
        if self.status is not None and self.status.state in ENDED and found == self._status_of:
            return
        try:
            self.status, self._status_of = look_at_run(folder, lambda _: {}), found
            self.state = state_without_status(folder) if self.status is None else self.status.state
        except OSError as error:
            self.status, self.state, self.problem = None, DAMAGED, str(error)

    @property
    def files(self) -> tuple[object, ...]:
        """Changes when there is more to read."""
        path = self.place.path
        return tuple(_stamp(path / name) for name in ("ledger.db", "ledger.db-wal", "metrics/train.jsonl"))

    def follow(self) -> None:
        """Fold the ledger."""
        assert self.folder is not None
        began, self.read_of = time.monotonic(), self.files
        self.why_unread, self.is_damaged = "", False
        try:
            self.read = _read(self.folder, self.experiment)
            if absent := self.read.absent:
                self.why_unread = f"players without readable weights: {absent:,}"
        except (LedgerError, OSError) as error:
            self.why_unread, self.is_damaged = str(error), True
        except Exception as error:  # run.json may hold anything
            named = isinstance(error, StoreError | ViewError)
            self.why_unread = str(error) if named else f"{type(error).__name__}: {error}"
        ended = time.monotonic()
        self.due = ended + PACE * (ended - began)

    def line(self, now: float) -> RunLine:
        status, place, read = self.status, self.place, self.read
        ended = status is None or status.state in ENDED
        strength = None if read is None else read.strength
        facts = None if self.folder is None else self.folder.facts
        decisions = status.decisions if status is not None else 0 if read is None else read.decisions
        return RunLine(
            key=place.key,
            name=Path(place.key).name,
            experiment=str(self.experiment.get("name", "")),
            trial=self.experiment.get("trial"),
            game=facts.game.name if facts is not None and facts.game else kind_of(self.experiment.get("game")),
            study=place.study,
            setting=place.setting,
            seed=place.seed if facts is None else facts.seed,
            state=DAMAGED if self.is_damaged else self.state,
            is_live=not ended and not self.is_damaged,
            silent_s=0.0 if status is None else silence(status, now),
            decisions=decisions,
            budget=status.budget if status is not None else _whole(self.experiment.get("budget")),
            decisions_per_s=None if status is None or ended else status.decisions_per_s or None,
            created="" if facts is None else facts.created,
            updated=None if status is None else status.time,
            is_read=self.read_of is not None or self.folder is None,
            verdict=[] if strength is None else strength.verdict,
            best=None if strength is None else strength.best,
            best_rating=None if strength is None else strength.best_elo,
            rating_unit="" if strength is None else strength.rating_unit,
            problem=self.problem or self.why_unread,
        )


class RunList:
    """`look` finds the runs of a folder and reads their facts and status; `follow` then folds their ledgers, the newest
    run first. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._front = threading.RLock()
        """Guards what is listed. A thread that needs both locks takes `_back` first."""
        self._back = threading.RLock()
        """Guards ledgers and metrics."""
        self._runs: dict[str, _Run] = {}
        self._studies: dict[str, tuple[tuple[object, ...], StudyResults]] = {}
        self._others: list[OtherFolder] = []
        self._left_out = 0
        self._changes = 0
        self._made: tuple[int, bytes] | None = None
        self._tables: dict[Path, MetricsTable] = {}
        """Metrics of runs that were compared, those that were used longest ago first."""

    # --- looking ---

    def look(self) -> None:
        with self._front:
            before = self._others, self._left_out, {key: stamp for key, (stamp, _) in self._studies.items()}
            places: dict[str, _Place] = {}
            self._others, self._left_out, studies = [], 0, dict(self._studies)
            self._studies = {}
            for place in self._found(self.path, ".", DEPTH, studies):
                if len(places) < MOST_RUNS:
                    places[place.key] = place
                else:
                    self._left_out += 1
            changed = places.keys() != self._runs.keys()
            self._runs = {key: self._known(place) for key, place in places.items()}
            for run in self._runs.values():
                changed |= run.look()
            after = self._others, self._left_out, {key: stamp for key, (stamp, _) in self._studies.items()}
            self._changes += changed or before != after

    def _known(self, place: _Place) -> _Run:
        known = self._runs.get(place.key)
        return known if known is not None and known.place == place else _Run(place)

    def follow(self) -> bool:
        """Read verdicts that are missing or old, for a moment; whether there are more to read."""
        began = time.monotonic()
        for run in self._unread():
            if time.monotonic() - began > FOLLOW_S:
                return True
            with self._back:
                run.follow()
            with self._front:
                self._changes += 1
        return False

    def _unread(self) -> list[_Run]:
        """Those that were never read first, and of them the newest."""
        now = time.monotonic()
        with self._front:
            found = [run for run in self._runs.values() if run.folder is not None]
        due = [run for run in found if run.read_of is None or (now >= run.due and run.read_of != run.files)]
        due.sort(key=_created, reverse=True)
        return sorted(due, key=lambda run: run.read_of is not None)

    @property
    def is_empty(self) -> bool:
        """Whether the last look has found neither runs nor studies."""
        return not self._runs and not self._studies

    def folder(self, key: str) -> RunFolder:
        """The run of this key; ViewError if there is none, or if it cannot be opened."""
        with self._front:
            run = self._runs.get(key)
        if run is None:
            raise ViewError(f"there is no run {key!r} here")
        if run.folder is None:
            raise ViewError(run.problem)
        return run.folder

    def run_keys(self) -> list[str]:
        with self._front:
            return list(self._runs)

    # --- documents ---

    def is_quick(self, _: str) -> bool:
        """No document waits for the ledgers."""
        return True

    def document(self, name: str) -> msgspec.Struct:
        with self._front:
            if name == RUNS:
                return self._listing()
            if name.startswith(STUDY) and (found := self._studies.get(name.removeprefix(STUDY))) is not None:
                return _study_page(name.removeprefix(STUDY), found[1])
        raise ViewError(f"there is no document {name!r}")

    def encoded(self, name: str) -> tuple[bytes, str]:
        with self._front:
            if name != RUNS:
                return encoded_document(self.document(name)), str(self._changes)
            if self._made is None or self._made[0] != self._changes:
                self._made = self._changes, encoded_document(self.document(name))
            return self._made[1], str(self._changes)

    def due(self) -> list[str]:
        with self._front:
            return [] if self._made is None or self._made[0] == self._changes else [RUNS]

    def comparison(self, asked: ComparisonRequest) -> Comparison:
        """Curves of the runs and studies that are asked for; those that are not there are left out."""
        with self._front:
            runs = [key for key in dict.fromkeys(asked.run) if key in self._runs]
            studies = [self._compared(key) for key in asked.study if key in self._studies]
        left_out, runs = len(runs[MOST_LINES:]), runs[:MOST_LINES]
        of_studies = [key for one in studies for keys in one.settings.values() for key in keys]
        with self._back:
            found = {key: one for key in dict.fromkeys((*runs, *of_studies)) if (one := self._read(key)) is not None}
            read = {key: one for key, (one, _) in found.items()}
            return compare(asked, runs, studies, read, lambda key: self._metrics(found[key][1]), left_out=left_out)

    def _metrics(self, path: Path) -> MetricsTable:
        """Metrics as they are now. Those of few runs are kept for the next comparison."""
        table = self._tables.pop(path, None) or MetricsTable(path)
        table.follow()
        self._tables[path] = table
        while len(self._tables) > 1 and sum(one.bytes for one in self._tables.values()) > MOST_METRICS:
            del self._tables[next(iter(self._tables))]
        return table

    def _compared(self, key: str) -> ComparedStudy:
        results = self._studies[key][1]
        settings: dict[str, list[str]] = {one.setting: [] for one in results.settings}
        for run in self._runs.values():
            if run.place.study == key and run.place.setting in settings:
                settings[run.place.setting].append(run.place.key)
        return ComparedStudy(key=key, name=results.path.resolve().name, settings=settings)

    def _read(self, key: str) -> tuple[ReadRun, Path] | None:
        """What is known of a run, read now if that was not done yet, and the file of its metrics. The caller holds
        `_back`."""
        with self._front:
            run = self._runs.get(key)
        if run is None or run.folder is None:
            return None
        if run.read_of is None:
            run.follow()
            with self._front:
                self._changes += 1
        return None if run.read is None else (run.read, run.folder.metrics / "train.jsonl")

    def encoded_comparison(self, asked: Mapping[str, list[str]]) -> bytes:
        """As JSON; what is asked for as the words of an address."""
        plain = {name: values if name in ("run", "study") else values[-1] for name, values in asked.items()}
        try:
            chosen = msgspec.convert(plain, ComparisonRequest)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        return encoded_document(self.comparison(chosen))

    # --- parts ---

    def _listing(self) -> RunListing:
        now = time.time()
        runs = sorted(self._runs.values(), key=_created, reverse=True)
        return RunListing(
            folder=self.path.resolve().name,
            study=next(iter(self._studies)) if (self.path / STUDY_FILE).exists() and self._studies else None,
            runs=[run.line(now) for run in runs],
            studies=[_study_line(key, results) for key, (_, results) in self._studies.items()],
            others=self._others,
            unread=sum(run.read_of is None for run in runs if run.folder is not None),
            left_out=self._left_out,
        )

    def _found(
        self, folder: Path, key: str, depth: int, known: dict[str, tuple[tuple[object, ...], StudyResults]]
    ) -> Iterator[_Place]:
        """Runs in a folder; studies and other folders are noted."""
        if (folder / STUDY_FILE).exists():
            yield from self._found_in_study(folder, key, known)
            return
        try:
            with os.scandir(folder) as entries:
                inside = sorted(
                    (entry for entry in entries if not entry.name.startswith(".")), key=lambda one: one.name
                )
        except OSError as error:
            self._others.append(OtherFolder(name=key, why=f"cannot be read: {error.strerror}"))
            return
        for entry in inside:
            below = _text(entry.name) if key == "." else f"{key}/{_text(entry.name)}"
            if not entry.is_dir():
                continue
            path = folder / entry.name
            if (path / RUN_FILE).exists():
                yield _Place(below, path)
            elif any((path / name).exists() for name in _LEFT_OF_RUN):
                yield _Place(
                    below, path, problem=f"it has no {RUN_FILE}: it was not copied whole, or not deleted whole"
                )
            elif depth and not entry.is_symlink():
                before = len(self._others), len(self._studies)
                inner = list(self._found(path, below, depth - 1, known))
                yield from inner
                if not inner and before == (len(self._others), len(self._studies)):
                    self._others.append(OtherFolder(name=below, why="neither a run nor a study"))
            else:
                self._others.append(OtherFolder(name=below, why="neither a run nor a study"))

    def _found_in_study(
        self, folder: Path, key: str, known: dict[str, tuple[tuple[object, ...], StudyResults]]
    ) -> Iterator[_Place]:
        above = "" if key == "." else f"{key}/"
        key = _text(folder.resolve().name) if key == "." else key
        stamp = (_stamp(folder / STUDY_FILE), _stamp(folder / "results"))
        planned = {}
        try:
            if key not in known or known[key][0] != stamp:
                known[key] = stamp, StudyResults(folder)
            self._studies[key] = known[key]
            planned = {run.name: run for run in known[key][1].runs}
        except (OSError, StoreError) as error:
            self._others.append(OtherFolder(name=key, why=str(error)))
        for path in sorted((folder / "runs").glob("[!.]*")):
            run = planned.get(path.name)
            if (path / RUN_FILE).exists():
                setting, seed = ("", None) if run is None else (run.setting, run.seed)
                yield _Place(f"{above}runs/{_text(path.name)}", path, key, setting, seed)


def _read(folder: RunFolder, experiment: Mapping[str, Any]) -> ReadRun:
    if "league" not in experiment:
        raise ViewError("it has no league: a player that was cloned from replays")
    metrics = MetricsTable(folder.metrics / "train.jsonl")
    metrics.follow()
    with closing(RunFold(folder, brief=True)) as fold:
        fold.follow()
        if not fold.league.players:
            raise ViewError("it has no players yet: it has not started")
        summary = fold.summary()
        strength = strength_page(fold.league, summary, metrics)
        own = fold.league.standings[strength.player].decisions
        return ReadRun(
            name=folder.path.name,
            game=str(experiment.get("name", "")) if folder.facts.game is None else folder.facts.game.name,
            strength=strength,
            anchor=summary.anchor,
            decisions=fold.decisions,
            own_share=own / fold.decisions if fold.decisions else 1.0,
            absent=len(fold.league.absent),
        )


def _study_line(key: str, results: StudyResults) -> StudyLine:
    best = next((one for one in results.settings if one.mean is not None), None)
    mean = None if best is None else best.mean
    return StudyLine(
        key=key,
        name=results.path.resolve().name,
        objective=results.objective,
        lower_is_better=results.lower_is_better,
        is_complete=results.is_complete,
        done=sum(len(one.values) for one in results.settings),
        planned=sum(one.planned for one in results.settings),
        failed=len(results.failures),
        best=None if best is None else best.setting,
        mean=None if mean is None else mean.value,
        interval=None if mean is None else mean.interval,
    )


def _study_page(key: str, results: StudyResults) -> StudyPage:
    return StudyPage(
        key=key,
        name=results.path.resolve().name,
        lower_is_better=results.lower_is_better,
        metric=results.default_metric,
        results=results.to_dict(),
    )


def _created(run: _Run) -> tuple[str, str]:
    return ("" if run.folder is None else run.folder.facts.created, run.place.key)


def _stamp(path: Path) -> object:
    """Changes with the file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _text(name: str) -> str:
    """A file name as text: not every name is."""
    return os.fsencode(name).decode(errors="replace")


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def has_runs(path: Path) -> bool:
    """Whether a folder that is no run holds runs, or is a study or holds some."""
    if not path.is_dir() or (path / RUN_FILE).exists():
        return False
    listed = RunList(path)
    listed.look()
    return not listed.is_empty
