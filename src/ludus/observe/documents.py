"""The documents that the pages show, as records that become JSON. An unknown number is null, never NaN."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.league.measures import LeagueMeasures
from ludus.observe.league_fold import Counts, LeaguePlayer, LostPlayer
from ludus.observe.run_state import GpuUse
from ludus.store.run_control import Bottleneck, WorkerStatus
from ludus.store.run_folder import read_metrics


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A curve over decisions."""

    name: str
    unit: str = ""
    meaning: str = ""
    x: list[float]
    y: list[float | None]


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should look at."""

    what: str
    why: str
    advice: str


class LearnerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A player that learns, at a glance."""

    player: str
    role: str
    decisions: int
    step: int | None
    lag: float | None
    entropy: float | None
    policy_loss: float | None
    value_loss: float | None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    experiment: str
    trial: str | None
    game: str
    state: str
    ended: bool
    """Nothing more will come."""
    time: float | None
    """Unix time of what is said here; None if the run has never said anything."""
    silent_s: float
    """Nothing was heard of a run that trains for so long; 0 if all is well."""
    decisions: int
    budget: int
    decisions_per_s: float | None
    time_left_s: float | None
    """At the speed of now, or up to the time limit, whatever comes first."""
    left_by: str
    """budget or time limit"""
    up_s: float | None
    trained_s: float | None
    """Seconds of training over all its starts; None until that is measured."""
    mean_per_s: float | None
    """Decisions per second of them."""
    cpu_s: float | None
    """Seconds of CPU of the last start, with all its processes, once it has ended."""
    episodes: int
    restarts: int
    matches: Counts
    learners: list[LearnerLine]
    workers: list[WorkerStatus]
    gpus: list[GpuUse]
    bottleneck: Bottleneck | None
    warnings: list[Concern]
    curves: list[Series]
    facts: dict[str, str]
    """Command, seed, versions and time of creation."""


class LeagueView(msgspec.Struct, frozen=True, kw_only=True):
    game: str
    teams: int
    anchor: str
    players: list[LeaguePlayer]
    lost: list[LostPlayer]
    """Frozen players whose weights cannot be read, with their records."""
    win_rates: list[list[float | None]]
    """Row against column, in the order of the players; null where they have met too seldom."""
    games: list[list[float]]
    """After old ones have faded."""
    matches: Counts
    events: int
    """Rows of the ledger that this follows from."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Elo over decisions."""

    anchor: str
    decisions: list[float]
    elo: dict[str, list[float | None]]
    error: dict[str, list[float | None]]
    learning: list[str]
    weights: dict[str, str | None]
    """"live" or "average", by player; None for a bot."""


class Top(msgspec.Struct, frozen=True, kw_only=True):
    """The spinning top: strength against how many beat each other in circles there."""

    why_not: str | None = None
    """The reason that there is no spinning top; None if there is one."""
    measures: LeagueMeasures | None = None


class MatchSide(msgspec.Struct, frozen=True, kw_only=True):
    players: list[str]
    trains: bool
    model: str
    """Its last one; "" for a scripted player, or before it has ended."""
    score: float | None


class MatchLine(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    purpose: str
    state: str
    """finished, void, open"""
    sides: list[MatchSide]
    episodes: int
    wins: int | None
    """Episodes won by the first side; with more than two sides, against all others together."""
    draws: int | None
    losses: int | None
    steps_per_episode: float | None
    reason: str
    """The reason that the match is void."""
    left_open: bool
    """It is void because the run was stopped or changed, not because something failed."""
    replay: str | None
    """A file with it, if it was recorded."""


class Matches(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first."""

    matches: list[MatchLine]
    more: int | None
    """Ask for what comes before this id; None: that was all."""
    counts: Counts
    voids: dict[str, int]
    replays: list[str]


class OpponentLine(msgspec.Struct, frozen=True, kw_only=True):
    player: str
    weights: str | None
    win_rate: float | None
    low: float
    high: float
    games: float
    share: float | None
    """Probability in the next match."""


class SettingsChange(msgspec.Struct, frozen=True, kw_only=True):
    decisions: int
    settings: dict[str, Any]
    reason: str
    whose: str
    """this player, all"""


class PlayerView(msgspec.Struct, frozen=True, kw_only=True):
    line: LeaguePlayer
    lineage: list[SettingsChange]
    opponents: list[OpponentLine]
    over_time: list[Series]
    """Win rate against each opponent, those it met most first."""
    metrics: list[Series]
    settings: dict[str, Any]
    """Settings that now differ from the experiment."""
    hyper_parameters: dict[str, Any]
    """Settings of the experiment with those changes."""
    changes: list[SettingsChange]
    children: list[str]


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run at a glance."""

    key: str
    """Its path below the folder of the list, as addresses name it."""
    name: str
    experiment: str
    trial: str | None
    game: str
    study: str | None
    """Key of the study that it belongs to."""
    setting: str
    seed: int | None
    state: str
    """As `ludus status` says, or damaged."""
    is_live: bool
    silent_s: float
    decisions: int
    budget: int
    decisions_per_s: float | None
    created: str
    updated: float | None
    """Unix time of the latest status."""
    is_read: bool
    """Whether what follows is known; it is read after the list is shown."""
    verdict: list[str]
    best: str | None
    best_rating: float | None
    rating_unit: str
    problem: str
    """The reason that it is damaged, or that there is no verdict."""


class StudyLine(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    name: str
    objective: str
    lower_is_better: bool
    is_complete: bool
    done: int
    planned: int
    failed: int
    best: str | None
    """Setting with the best mean."""
    mean: float | None
    interval: tuple[float, float] | None


class OtherFolder(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    why: str


class RunListing(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    study: str | None
    """The key of the study, if the folder is one."""
    runs: list[RunLine]
    """Newest first."""
    studies: list[StudyLine]
    others: list[OtherFolder]
    """Folders that are no runs."""
    unread: int
    """Runs whose verdict is not known yet."""
    left_out: int
    """Runs beyond the most that are listed."""


class StudyPage(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    name: str
    lower_is_better: bool
    metric: str
    """The one that `ludus study show --plot` draws."""
    results: dict[str, Any]
    """As `ludus study show --json` prints them."""


Floats = NDArray[np.float64]
POINTS = 240
"""A curve has at most so many points: more than a screen can show says nothing more."""


class MetricsTable:
    """All numbers of all rows. A row that lacks a number has NaN there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._columns: dict[str, array[float]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def names(self) -> Iterator[str]:
        return iter(list(self._columns))

    @property
    def bytes(self) -> int:
        """Of memory that its numbers take."""
        return sum(len(column) * column.itemsize for column in self._columns.values())

    def follow(self) -> bool:
        """Read what is new; whether anything was."""
        try:
            rows, self._offset = read_metrics(self._path, self._offset)
        except OSError:
            return False
        for row in rows:
            for name, value in row.items():
                if isinstance(value, int | float):
                    column = self._columns.get(name)
                    if column is None:
                        column = self._columns[name] = array("d")
                    if len(column) < self._length:
                        column.extend([math.nan] * (self._length - len(column)))
                    column.append(value)
            self._length += 1
        return bool(rows)

    def column(self, name: str) -> Floats:
        found = np.array(self._columns.get(name, ()), np.float64)
        return np.pad(found, (0, self._length - len(found)), constant_values=np.nan)

    def latest(self, name: str, default: float = math.nan) -> float:
        """The newest value that there is."""
        for value in reversed(self._columns.get(name, ())):
            if math.isfinite(value):
                return value
        return default


def thinned(x: Floats, *curves: Floats, points: int = POINTS) -> list[Floats]:
    """A long curve as the means of equal stretches of it; gaps stay gaps."""
    length = len(x)
    if length <= points:
        return [x, *curves]
    edges = np.linspace(0, length, points + 1).astype(int)
    result = [x[edges[1:] - 1]]
    for curve in curves:
        known = np.isfinite(curve)
        sums = np.add.reduceat(np.where(known, curve, 0.0), edges[:-1])
        counts = np.add.reduceat(known.astype(np.float64), edges[:-1])
        result.append(np.divide(sums, counts, out=np.full(points, np.nan), where=counts > 0))
    return result
