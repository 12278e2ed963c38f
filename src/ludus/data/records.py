"""Records: matches, results, the events of the ledger, and the edits and orders for a running league. All are frozen
msgspec structs, so that they travel between processes and machines as plain JSON."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

Purpose = Literal["training", "evaluation", "human"]
Settings = dict[str, Any]  # path in the experiment -> value as plain JSON


class ModelId(msgspec.Struct, frozen=True, gc=False, order=True):
    """The id of a player's weights. A resume or reset raises the incarnation, so that an id never has two contents."""

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
    """Whether the trajectories of its players go to their learners: of all, none or the named ones."""
    captain: str | None = None
    """The player that a line-up of several was made for."""

    @property
    def trainees(self) -> tuple[str, ...]:
        """The players of this side that train."""
        if isinstance(self.trains, bool):
            return self.players if self.trains else ()
        return self.trains

    @property
    def is_mixed(self) -> bool:
        """Whether different players sit on its seats."""
        return len(self.players) > 1 and len({*self.players}) > 1

    @property
    def stands_for(self) -> str | None:
        """The player that the side's result counts for: its only player, or its captain, if any."""
        return self.players[0] if len(self.players) == 1 or not self.is_mixed else self.captain


class Match(msgspec.Struct, frozen=True, gc=False):
    """Sides put on the teams of one or more tables. It has `episodes_per_table` episodes per table. Side s
    sits on team (s + episode) % teams, so that every side plays every team equally often."""

    id: int
    purpose: Purpose
    sides: tuple[Side, ...]
    tables: int
    episodes_per_table: int

    @property
    def episodes(self) -> int:
        return self.tables * self.episodes_per_table


class Pair(msgspec.Struct, frozen=True, gc=False):
    """Outcomes of one side against another over all episodes of a match: which of them scored more in an episode or,
    if the game compares roles (`GameSpec.compares_roles`), on the same team in one rotation of the sides."""

    side: int
    other: int
    wins: int
    draws: int
    losses: int


class Result(msgspec.Struct, frozen=True, gc=False):
    """The result of a match, in sums over its episodes."""

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
    """Per side: sum over the episodes of the mean reward of its seats. Empty if unknown or not finite."""
    role_score_sum: tuple[tuple[float, ...], ...] = ()
    """[side][team]: sum and sum of squares of the score of a side over the `episodes` / teams in which it sat on the
    team. Empty unless the game compares roles."""
    role_score_square_sum: tuple[tuple[float, ...], ...] = ()

    def mean_score(self, side: int) -> tuple[float, float]:
        """The mean score of a side and its standard error."""
        return mean_and_error(self.episodes, self.score_sum[side], self.score_square_sum[side])


def mean_and_error(number: float, total: float, squares: float) -> tuple[float, float]:
    """The mean of `number` values and its standard error, from their sum and their sum of squares."""
    mean = total / number
    return mean, math.sqrt(max(squares / number - mean**2, 0.0) / number)


class Event(msgspec.Struct, frozen=True, gc=False, tag_field="event"):
    """One row of the ledger. The league is a fold over them, in order."""


class RunStarted(Event, frozen=True, tag="run_started"):
    """The run started or was resumed; all open matches of earlier starts are void."""

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
    """A learning player's own settings, in place of the experiment's."""
    value_only: int = 0
    """First decisions of a learning player, which train only its value."""
    digest: str = ""
    """Of the weights that a frozen player is pinned to, as the model pool has it."""


class PlayerRemoved(Event, frozen=True, tag="player_removed"):
    player: str
    reason: str = ""


class PlayerAbsent(Event, frozen=True, tag="player_absent"):
    """The weights of a frozen player cannot be read; it plays no match until `PlayerReturned`."""

    player: str
    reason: str


class PlayerReturned(Event, frozen=True, tag="player_returned"):
    """The weights of an absent player can be read again."""

    player: str


class PlayerReset(Event, frozen=True, tag="player_reset"):
    """A learning player starts again from `model` (None: fresh weights) with a new incarnation."""

    player: str
    incarnation: int
    model: str | None
    value_only: int = 0
    """Decisions that then train only the value."""
    settings: Settings = {}
    """Own settings that are added to those it has."""
    donor: str | None = None
    """The player whose weights and settings it took over."""
    reason: str = ""


class SettingsChanged(Event, frozen=True, tag="settings_changed"):
    """Settings that have other values from now on, for all players or for one. They change together."""

    settings: Settings
    player: str | None = None
    reason: str = ""


class LearnerProgress(Event, frozen=True, tag="learner_progress", omit_defaults=True):
    """A learner has published step `step` of `player`, trained on `decisions` decisions in all."""

    player: str
    incarnation: int
    step: int
    decisions: int
    seconds: float = 0.0
    """Seconds that the run had trained by then, over all its starts; 0 unless a promotion rule reads the time."""


class LossAccepted(Event, frozen=True, tag="loss_accepted"):
    """A part of the run was lost, and a person let it go on with the rest."""

    reason: str
    models: dict[str, str | None] = {}
    """Learning player whose checkpoint was lost -> the model that it goes on from; None: fresh weights."""


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
    | PlayerAbsent
    | PlayerReturned
    | PlayerReset
    | SettingsChanged
    | LearnerProgress
    | LossAccepted
    | MatchIssued
    | MatchLeased
    | MatchFinished
    | MatchVoid
    | ScoreMeasured
)


RECORDED = "recorded as match "  # prefix of the answer to `RecordGame`, followed by the number of the match


class Edit(msgspec.Struct, frozen=True, kw_only=True, tag_field="edit", forbid_unknown_fields=True):
    """One atomic change of a league by hand."""


class ChangeSettings(Edit, frozen=True, kw_only=True, tag="set"):
    settings: dict[str, str]
    player: str | None = None
    """The only learning player that it concerns; None: all."""


class AddPlayer(Edit, frozen=True, kw_only=True, tag="add"):
    player: str
    role: str
    source: str | None = None
    """The player, PLAYER@TAG or model that it starts from or is pinned to; None: fresh weights."""
    settings: dict[str, str] = {}


class RemovePlayer(Edit, frozen=True, kw_only=True, tag="remove"):
    player: str
    reason: str = "by hand"


class FreezePlayer(Edit, frozen=True, kw_only=True, tag="freeze"):
    player: str


class ResetPlayer(Edit, frozen=True, kw_only=True, tag="reset"):
    player: str
    source: str | None = None
    """The player, PLAYER@TAG or model that it starts from; None: its role decides."""


class RecordGame(Edit, frozen=True, kw_only=True, tag="game"):
    """A game played by a person: a match of purpose "human" that is issued and ended at once, so it is never open."""

    sides: tuple[tuple[str, ...], ...]
    """Per team: its only player, or the player of each of its seats."""
    result: Result | None = None
    """None: the game ended without one. Its match id is ignored; the league assigns a new one."""
    void: str = ""
    """Why there is no result."""


class Pause(Edit, frozen=True, kw_only=True, tag="pause"):
    """Stop playing and learning until `Continue`. It is not in the ledger: a resumed run trains."""


class Continue(Edit, frozen=True, kw_only=True, tag="continue"):
    """End a pause."""


class Stop(Edit, frozen=True, kw_only=True, tag="stop"):
    now: bool = False
    """Stop without saving; progress since the latest checkpoint is lost."""


AnyEdit = ChangeSettings | AddPlayer | RemovePlayer | FreezePlayer | ResetPlayer | RecordGame
Order = Pause | Continue | Stop  # commands to the process that trains the run; they do not change the league
