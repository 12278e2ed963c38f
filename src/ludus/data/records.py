"""The records that the ledger keeps and the league folds: matches, results and events.

All are frozen msgspec structs, so they cross process and machine borders as plain JSON.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

Purpose = Literal["training", "evaluation", "human"]
Settings = dict[str, Any]
"""Path in the experiment -> value as plain JSON."""


class ModelId(msgspec.Struct, frozen=True, gc=False, order=True):
    """Weights of one player at one version. A resume or reset raises the incarnation, so that an id
    never means two contents."""

    player: str
    incarnation: int
    step: int

    def __str__(self) -> str:
        return f"{self.player}:{self.incarnation}:{self.step}"

    @classmethod
    def parse(cls, text: str) -> ModelId:
        player, incarnation, step = text.rsplit(":", 2)
        return cls(player, int(incarnation), int(step))


class Side(msgspec.Struct, frozen=True, gc=False):
    """One team's line-up in a match: one player on all its seats, or one player per seat of the team."""

    players: tuple[str, ...]
    trains: bool | tuple[str, ...] = False
    """Whose trajectories go to their learners: of all its players, of none, or of those that are named."""
    captain: str | None = None
    """Of several players, the one that the line-up was made for."""

    @property
    def trainees(self) -> tuple[str, ...]:
        """The players of this side that train."""
        if isinstance(self.trains, bool):
            return self.players if self.trains else ()
        return self.trains

    @property
    def is_mixed(self) -> bool:
        """Several players sit on its seats."""
        return len(self.players) > 1 and len({*self.players}) > 1

    @property
    def stands_for(self) -> str | None:
        """Whose result its result is: its only player's, or its captain's; None: nobody's."""
        return self.captain if self.is_mixed else self.players[0]


class Match(msgspec.Struct, frozen=True, gc=False):
    """Sides put on the teams of one or more tables. Every table plays `episodes_per_table` episodes, in
    rotation: side s sits on team (s + episode) % teams, so that each side has each team equally often."""

    id: int
    purpose: Purpose
    sides: tuple[Side, ...]
    tables: int
    episodes_per_table: int

    @property
    def episodes(self) -> int:
        return self.tables * self.episodes_per_table


class Pair(msgspec.Struct, frozen=True, gc=False):
    """How one side did against another over all episodes of a match."""

    side: int
    other: int
    wins: int
    draws: int
    losses: int


class Result(msgspec.Struct, frozen=True, gc=False):
    """What happened in a match, in sums over its episodes."""

    match_id: int
    episodes: int
    steps: int
    """Calls of `step` summed over episodes."""
    decisions: tuple[int, ...]
    """Decisions per side."""
    pairs: tuple[Pair, ...]
    """Every pair of sides once, lower index first; empty for games with one team."""
    score_sum: tuple[float, ...]
    """Per side: sum and sum of squares of its score over the episodes."""
    score_square_sum: tuple[float, ...]
    first_models: tuple[str, ...]
    """Per side: model id at its first and last decision ("" for scripted players)."""
    last_models: tuple[str, ...]
    reward_sum: tuple[float, ...] = ()
    """Per side: sum over the episodes of what a seat of it earned, on average. Empty where that is not known,
    or no number."""

    def mean_score(self, side: int) -> tuple[float, float]:
        """Of a side, with its standard error."""
        mean = self.score_sum[side] / self.episodes
        variance = max(self.score_square_sum[side] / self.episodes - mean**2, 0.0)
        return mean, math.sqrt(variance / self.episodes)


class Event(msgspec.Struct, frozen=True, gc=False, tag_field="event"):
    """One row of the ledger. The league's state is a fold over these, in order."""


class RunStarted(Event, frozen=True, tag="run_started"):
    """The run began or was resumed; all leased matches of earlier starts are void."""

    start: int
    """0 for the first start, then counting up."""


class PlayerAdded(Event, frozen=True, tag="player_added"):
    player: str
    role: str
    """A learning role of the experiment, "frozen" or "scripted"."""
    parent: str | None = None
    model: str | None = None
    """The model a frozen player is pinned to, or a learning one starts from."""
    weights: Literal["live", "average"] = "live"
    """Which of the learner's two sets of weights a snapshot froze."""
    parent_decisions: int = 0
    """Decisions its parent had trained on when it was frozen."""
    reason: str = ""
    settings: Settings = {}
    """Of a learning player alone, instead of the experiment's."""
    value_only: int = 0
    """Decisions on which a learning player first trains its value alone."""


class PlayerRemoved(Event, frozen=True, tag="player_removed"):
    player: str
    reason: str = ""


class PlayerReset(Event, frozen=True, tag="player_reset"):
    """A learning player starts again from `model` (None: fresh weights) with a new incarnation."""

    player: str
    incarnation: int
    model: str | None
    value_only: int = 0
    """Decisions on which it then trains its value alone."""
    settings: Settings = {}
    """Settings of its own that it goes on with, besides those it has."""
    donor: str | None = None
    """The player whose weights and settings it took over."""
    reason: str = ""


class SettingsChanged(Event, frozen=True, tag="settings_changed"):
    """From now on the experiment has other values at these paths, for all players or for one. All at once:
    shares that sum to 1 can only be changed together."""

    settings: Settings
    player: str | None = None
    reason: str = ""


class LearnerProgress(Event, frozen=True, tag="learner_progress"):
    """A learner has published step `step` of `player`, trained on `decisions` decisions in all."""

    player: str
    incarnation: int
    step: int
    decisions: int


class MatchIssued(Event, frozen=True, tag="match_issued"):
    match: Match


class MatchLeased(Event, frozen=True, tag="match_leased"):
    match_id: int
    holder: str


class MatchFinished(Event, frozen=True, tag="match_finished"):
    result: Result


class MatchVoid(Event, frozen=True, tag="match_void"):
    match_id: int
    reason: str


class ScoreMeasured(Event, frozen=True, tag="score_measured"):
    """The mean score of a player in a one-team game, or any evaluation number promotion may use."""

    player: str
    model: str
    mean: float
    standard_error: float
    episodes: int


AnyEvent = (
    RunStarted
    | PlayerAdded
    | PlayerRemoved
    | PlayerReset
    | SettingsChanged
    | LearnerProgress
    | MatchIssued
    | MatchLeased
    | MatchFinished
    | MatchVoid
    | ScoreMeasured
)


RECORDED = "recorded as match "
"""How the answer to `RecordGame` begins; then the number of the match."""


class Edit(msgspec.Struct, frozen=True, kw_only=True, tag_field="edit", forbid_unknown_fields=True):
    """One change of a league: all of it happens or nothing."""


class ChangeSettings(Edit, frozen=True, kw_only=True, tag="set"):
    settings: dict[str, str]
    player: str | None = None
    """Of this learning player alone."""


class AddPlayer(Edit, frozen=True, kw_only=True, tag="add"):
    player: str
    role: str
    source: str | None = None
    """What it starts from or is pinned to: a player, PLAYER@TAG or a model; None: fresh weights."""
    settings: dict[str, str] = {}


class RemovePlayer(Edit, frozen=True, kw_only=True, tag="remove"):
    player: str
    reason: str = "by hand"


class FreezePlayer(Edit, frozen=True, kw_only=True, tag="freeze"):
    player: str


class ResetPlayer(Edit, frozen=True, kw_only=True, tag="reset"):
    player: str
    source: str | None = None
    """What it starts again from; None: what its role says."""


class RecordGame(Edit, frozen=True, kw_only=True, tag="game"):
    """A game that a person has played: it becomes a match of purpose "human", issued and ended at once, so
    that nothing is left open if the person goes away."""

    sides: tuple[tuple[str, ...], ...]
    """Per team: its one player, or the player of each of its seats."""
    result: Result | None = None
    """None: it ended without one. What it says of the match's id is not read: that is given now."""
    void: str = ""
    """Why there is no result."""


class Pause(Edit, frozen=True, kw_only=True, tag="pause"):
    """Nobody plays or learns until somebody says so. Not in the ledger: a resume trains."""


class Continue(Edit, frozen=True, kw_only=True, tag="continue"):
    """The end of a pause."""


class Stop(Edit, frozen=True, kw_only=True, tag="stop"):
    now: bool = False
    """Without saving: what was learned since the latest checkpoint is lost."""


AnyEdit = ChangeSettings | AddPlayer | RemovePlayer | FreezePlayer | ResetPlayer | RecordGame
Order = Pause | Continue | Stop
"""What the process that trains the run does, and the league does not notice."""
