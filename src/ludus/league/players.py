"""Players of a league: their ids, the progress and lineage of learning players, and their random streams."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from ludus.data.records import LearnerProgress, LossAccepted, ModelId, PlayerAdded, PlayerReset, Result, Settings

FROZEN = "frozen"
SCRIPTED = "scripted"

INITIAL = "initial"
BY_HAND = "by hand"
FINAL = "final"
EXTERNAL = "external"
POPULATION = "population"
BEST_VALIDATION = "best validation"
"""Reason of the one snapshot that cloning keeps of a player."""
RETIRED = "retired"
"""Reason of the removal of snapshots that `Role.history` has no room for."""
UNPROMPTED = (INITIAL, BY_HAND, FINAL, POPULATION)
"""Reasons of snapshots that no promotion rule asked for. These snapshots never lead to a reset."""

MAX_ID_LENGTH = 64
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def check_player_id(player: str) -> str:
    """Return the id, or raise. Ids become file names and parts of model ids, so the alphabet is small."""
    if not player:
        raise ValueError("a player id must not be empty")
    if len(player) > MAX_ID_LENGTH:
        raise ValueError(f"player id {player[:16]!r}... has {len(player)} characters, of at most {MAX_ID_LENGTH}")
    if not _ID.fullmatch(player):
        raise ValueError(
            f"player id {player!r} is refused: use ASCII letters, digits, '_', '-' and '.', "
            "and do not start with '-' or '.'"
        )
    return player


@dataclass(frozen=True, kw_only=True, slots=True)
class Player:
    """A member of the league. Its id is never reused, not even after the player was removed."""

    id: str
    role: str
    """A learning role of the rules, "frozen" or "scripted"."""
    parent: str | None = None
    parent_role: str | None = None
    model: str | None = None
    """The model that a frozen player is pinned to or a learning player starts from (None: fresh weights)."""
    weights: Literal["live", "average"] = "live"
    digest: str = ""
    """Of the weights of a frozen player; "" in ledgers that do not name it."""
    parent_decisions: int = 0
    joined: int = 0
    """Index of the event that added the player."""
    reason: str = ""

    @property
    def frozen(self) -> bool:
        return self.role == FROZEN

    @property
    def scripted(self) -> bool:
        return self.role == SCRIPTED

    @property
    def learning(self) -> bool:
        return not (self.frozen or self.scripted)

    @property
    def played_weights(self) -> Literal["live", "average"] | None:
        """The weights that it plays league matches with: those of a learning player are live. None for a bot."""
        return None if self.scripted else self.weights


def with_weights(player: str, weights: str | None) -> str:
    """The name of a player and the weights that it plays with; a bot has none."""
    return f"{player} ({weights})" if weights else player


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one learning player, folded from the ledger. Each event returns the next standing."""

    player: Player
    incarnation: int = 0
    step: int | None = None
    """The latest published step of this incarnation; None before the first, when nothing can be frozen."""
    decisions: int = 0
    """Decisions trained on, as the learner last reported."""
    trained: int = 0
    """Decisions for turns: never falls after a resume, and a late joiner starts at the minimum of the others."""
    trained_before: int = 0
    """`trained` before its latest increase."""
    reset_at: int = 0
    """`trained` at the latest reset, or when the player joined."""
    takeovers: int = 0
    """How often the player took over the weights of another."""
    interval_start: int = 0
    """`decisions` at the latest snapshot or reset."""
    seconds: float = 0.0
    """Seconds that the run had trained at the latest report that says so. A late joiner starts level."""
    interval_step: int = 0
    """`step` at the latest snapshot or reset."""
    interval_seconds: float = 0.0
    """`seconds` at the latest snapshot or reset, or when the player joined."""
    episodes_issued: int = 0
    """Episodes of training matches issued, by which the next match is given. A late joiner starts level."""
    matches_issued: int = 0
    """Training matches made for this player. Breaks ties between players that always train together."""
    snapshots: int = 0
    reset_pending: bool = False
    """A snapshot asked for a reset that has not happened yet."""
    counter_may_restart: bool = False
    """Whether the next report may count decisions from zero again: none has come since the reset."""
    score_sum: float = 0.0
    score_square_sum: float = 0.0
    score_episodes: float = 0.0
    """Decayed sums of scores, squared scores and episodes of training; for games with one team."""
    ancestor: str | None = None
    """The model that the weights come from: the latest snapshot since the start, or the starting model."""
    best_frozen_score: float | None = None
    """Recent mean score at the best snapshot that a promotion asked for."""
    value_only_until: int = 0
    """`decisions` up to which only the value is trained, after a reset or from the start on."""

    @property
    def decisions_since_snapshot(self) -> int:
        # A resumed learner may report fewer decisions than before the crash.
        return max(0, self.decisions - self.interval_start)

    @property
    def updates_since_snapshot(self) -> int:
        return max(0, (self.step or 0) - self.interval_step)

    @property
    def seconds_since_snapshot(self) -> float:
        """Seconds of training of the run; 0 unless a promotion rule reads the time."""
        return max(0.0, self.seconds - self.interval_seconds)

    @property
    def value_only_left(self) -> int:
        """Decisions that are still to train the value only."""
        return max(0, self.value_only_until - self.decisions)

    @property
    def latest_model(self) -> ModelId | None:
        return None if self.step is None else ModelId(self.player.id, self.incarnation, self.step)

    def progressed(self, event: LearnerProgress) -> Standing:
        if event.incarnation < self.incarnation:
            return self  # a late report from before a reset or resume
        restarted = self.counter_may_restart and event.decisions < self.decisions
        rise = max(0, event.decisions - self.decisions)
        return replace(
            self,
            incarnation=event.incarnation,
            step=event.step,
            decisions=event.decisions,
            trained=self.trained + rise,
            trained_before=self.trained if rise else self.trained_before,
            seconds=max(self.seconds, event.seconds),
            interval_start=0 if restarted else self.interval_start,
            interval_step=0 if restarted else self.interval_step,
            counter_may_restart=False,
            value_only_until=self.value_only_until - (self.decisions if restarted else 0),
        )

    @property
    def recent_score(self) -> float | None:
        return self.score_sum / self.score_episodes if self.score_episodes else None

    @property
    def recent_score_error(self) -> float | None:
        """Standard error of `recent_score`; decayed episodes make it rather too large."""
        if (mean := self.recent_score) is None:
            return None
        variance = max(0.0, self.score_square_sum / self.score_episodes - mean**2)
        return math.sqrt(variance / self.score_episodes)

    def played(self, result: Result, fade: float) -> Standing:
        """After a training match in a game with one team. Earlier scores are multiplied by `fade`."""
        return replace(
            self,
            score_sum=self.score_sum * fade + result.score_sum[0],
            score_square_sum=self.score_square_sum * fade + result.score_square_sum[0],
            score_episodes=self.score_episodes * fade + result.episodes,
        )

    def frozen(self, model: str | None, *, promoted: bool, reset: bool) -> Standing:
        """After `model` became a snapshot. If a promotion rule asked for it, its score is the one to beat."""
        return replace(
            self,
            snapshots=self.snapshots + 1,
            interval_start=self.decisions,
            interval_step=self.step or 0,
            interval_seconds=self.seconds,
            reset_pending=reset,
            ancestor=model,
            best_frozen_score=self.recent_score if promoted else self.best_frozen_score,
        )

    def after_reset(self, event: PlayerReset) -> Standing:
        return replace(
            self,
            incarnation=event.incarnation,
            step=None,
            trained_before=self.trained,
            reset_at=self.trained,
            takeovers=self.takeovers + (event.donor is not None),
            interval_start=self.decisions,
            interval_step=self.interval_step if self.step is None else self.step,
            interval_seconds=self.seconds,
            reset_pending=False,
            ancestor=event.model,
            counter_may_restart=True,
            score_sum=0.0,
            score_square_sum=0.0,
            score_episodes=0.0,
            value_only_until=self.decisions + event.value_only,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """The start of a learning player, or one of its resets."""

    decisions: int
    """Decisions trained on before it."""
    model: str | None
    """The model that the player continued from; None: fresh weights."""
    donor: str | None
    """The player that it took over from, if any."""
    settings: Settings
    """The player's own settings from then on."""
    reason: str

    @classmethod
    def of(cls, event: PlayerAdded | PlayerReset, decisions: int, settings: Settings) -> Descent:
        donor = event.donor if isinstance(event, PlayerReset) else None
        return cls(decisions=decisions, model=event.model, donor=donor, settings=dict(settings), reason=event.reason)

    @classmethod
    def after_loss(cls, event: LossAccepted, model: str | None, standing: Standing, settings: Settings) -> Descent:
        return cls(decisions=standing.decisions, model=model, donor=None, settings=settings, reason=event.reason)


_MATCH, _RESET, _MEMBER = 0, 1, 2
"""Keys of the random streams."""


def match_generator(seed: int, match_id: int) -> np.random.Generator:
    """The generator for all draws of one match."""
    return _generator(seed, _MATCH, match_id)


def reset_draw(seed: int, joined: int, snapshots: int) -> float:
    """A draw in [0, 1) that decides on a reset of the player that joined at event `joined`, per snapshot."""
    return float(_generator(seed, _RESET, joined, snapshots).random())


def member_generator(seed: int, player: str, takeovers: int, interval: int) -> np.random.Generator:
    """The generator for one judgement of a member of a population; a new member has interval 0."""
    # Keyed by name, because a player's first settings are drawn before it has joined.
    name = int.from_bytes(hashlib.blake2b(player.encode(), digest_size=8).digest())
    return _generator(seed, _MEMBER, name, takeovers, interval)


def _generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
