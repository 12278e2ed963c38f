"""What the pages show, as records that become JSON. A number that is not known is null, never NaN."""

from __future__ import annotations

from typing import Any

import msgspec

from ludus.store.run_status import Bottleneck, WorkerStatus


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """One view."""


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


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    utilisation: float
    memory: int
    total_memory: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Matches."""

    issued: int = 0
    finished: int = 0
    evaluations: int = 0
    void: int = 0
    open: int = 0


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


class Overview(_Document, frozen=True, kw_only=True):
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
    episodes: int
    restarts: int
    matches: Counts
    learners: list[LearnerLine]
    workers: list[WorkerStatus]
    gpus: list[Gpu]
    bottleneck: Bottleneck | None
    warnings: list[Concern]
    curves: list[Series]
    facts: dict[str, str]
    """How the run came to be."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """When a learning player began, or was reset."""

    decisions: int
    origin: str | None
    """The player whose weights it went on with; None: fresh ones."""


class PlayerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A player in the table of the league."""

    id: str
    role: str
    parent: str | None
    model: str | None
    reason: str
    decisions: int
    active: bool
    elo: float | None
    low: float | None
    high: float | None
    games: float
    equilibrium: float
    score: float | None
    """Games with one team: mean and standard error."""
    score_error: float | None
    tags: list[str]
    """best, latest"""
    opponents: dict[str, float] | None
    """Of a learning player: the probability of each in its next match."""
    starts: list[Start]
    """Of a learning player."""


class LeagueView(_Document, frozen=True, kw_only=True):
    game: str
    teams: int
    anchor: str
    players: list[PlayerLine]
    win_rates: list[list[float | None]]
    """Row against column, in the order of the players; null where they have met too seldom."""
    games: list[list[float]]
    """After old ones have faded."""
    matches: Counts
    events: int
    """Rows of the ledger that this follows from."""


class History(_Document, frozen=True, kw_only=True):
    """Elo over decisions."""

    anchor: str
    decisions: list[float]
    elo: dict[str, list[float | None]]
    error: dict[str, list[float | None]]
    learning: list[str]


class TopLayer(msgspec.Struct, frozen=True, kw_only=True):
    players: list[str]
    strength: float
    low: float
    high: float


class Top(_Document, frozen=True, kw_only=True):
    """The spinning top: strength against how many beat each other in circles there."""

    why_not: str | None
    """Why there is none."""
    layers: list[TopLayer]
    transitive_share: list[float] | None
    """Value, low, high; of the next two too."""
    effective_players: list[float] | None
    effective_diversity: list[float] | None
    left_out: list[str]
    pairs_met: float


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
    """Of the first side; with more than two, against all others together."""
    draws: int | None
    losses: int | None
    steps_per_episode: float | None
    reason: str
    """Why it is void."""
    replay: str | None
    """A file with it, if it was recorded."""


class Matches(_Document, frozen=True, kw_only=True):
    """Newest first."""

    matches: list[MatchLine]
    more: int | None
    """Ask for what comes before this id; None: that was all."""
    counts: Counts
    voids: dict[str, int]
    replays: list[str]


class Opponent(msgspec.Struct, frozen=True, kw_only=True):
    player: str
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


class PlayerView(_Document, frozen=True, kw_only=True):
    line: PlayerLine
    lineage: list[SettingsChange]
    opponents: list[Opponent]
    over_time: list[Series]
    """Win rate against each opponent, those it met most first."""
    metrics: list[Series]
    settings: dict[str, Any]
    """What differs from the experiment now."""
    hyper_parameters: dict[str, Any]
    """Of the experiment, with those changes."""
    changes: list[SettingsChange]
    children: list[str]
