"""Who is in the league: players, their ids, and what is known about each learning player."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from ludus.data.records import LearnerProgress, ModelId, PlayerAdded, PlayerReset, Settings

FROZEN = "frozen"
SCRIPTED = "scripted"

INITIAL = "initial"
BY_HAND = "by hand"
FINAL = "final"
EXTERNAL = "external"
POPULATION = "population"
UNPROMPTED = (INITIAL, BY_HAND, FINAL, POPULATION)
"""Reasons of snapshots that no promotion rule asked for. They never lead to a reset."""

MAX_ID_LENGTH = 64
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def check_player_id(player: str) -> str:
    """The id itself, or an error. Ids become file names and parts of model ids, so the alphabet is small."""
    if not player:
        raise ValueError("a player id must not be empty")
    if len(player) > MAX_ID_LENGTH:
        raise ValueError(
            f"player id {player[:16]!r}... has {len(player)} characters; at most {MAX_ID_LENGTH} are allowed"
        )
    if not _ID.fullmatch(player):
        raise ValueError(
            f"player id {player!r} is refused: use ASCII letters, digits, '_', '-' and '.', "
            "and do not start with '-' or '.'"
        )
    return player


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The text of an error about a name that does not exist: the nearest one, or all when there are few."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"unknown {kind} {name!r}; did you mean {near[0]!r}?"
    listed = ", ".join(map(repr, names[:12])) or "none"
    return f"unknown {kind} {name!r}; known: {listed}{', ...' if len(names) > 12 else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Player:
    """A member of the league. Its id is never used again, even after it was removed."""

    id: str
    role: str
    """A learning role of the rules, "frozen" or "scripted"."""
    parent: str | None = None
    parent_role: str | None = None
    model: str | None = None
    """What a frozen player is pinned to, or a learning one starts from (None: fresh weights)."""
    weights: Literal["live", "average"] = "live"
    parent_decisions: int = 0
    joined: int = 0
    """Index of the event that added it."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What the ledger says about one learning player. Events turn one standing into the next."""

    player: Player
    incarnation: int = 0
    step: int | None = None
    """The latest published step of this incarnation; None before the first, when nothing can be frozen."""
    decisions: int = 0
    """Decisions trained on, as the learner last reported."""
    trained: int = 0
    """The same, for turns: it counts on when a resumed learner reports fewer, and a late joiner starts level
    with whoever has trained least."""
    trained_before: int = 0
    """`trained` before it last rose."""
    reset_at: int = 0
    """`trained` at the latest reset, or when it joined."""
    takeovers: int = 0
    """How often it went on from the weights of another player."""
    interval_start: int = 0
    """`decisions` at the latest snapshot or reset."""
    episodes_issued: int = 0
    """Episodes of training matches issued for it, level with the others when it joined or its turn began;
    the next match goes to the player with the fewest."""
    matches_issued: int = 0
    """Training matches made for it, so that players that always train together have them in turns."""
    snapshots: int = 0
    reset_pending: bool = False
    """A snapshot asked for a reset that has not happened yet."""
    counter_may_restart: bool = False
    """No report since the reset: its learner may count decisions on, or from zero again."""
    score_sum: float = 0.0
    score_square_sum: float = 0.0
    score_episodes: float = 0.0
    """Sums of scores and of their squares, and number of episodes, of recent training, old ones faded; for
    games with one team."""
    ancestor: str | None = None
    """The model its weights come from: its latest snapshot since it started, or else what it started from."""
    best_frozen_score: float | None = None
    """Recent mean score at the best snapshot that a promotion asked for."""
    value_only_until: int = 0
    """`decisions` up to which it trains its value alone, after a reset or from its start on."""

    @property
    def decisions_since_snapshot(self) -> int:
        # A resumed learner may report fewer decisions than before the crash.
        return max(0, self.decisions - self.interval_start)

    @property
    def value_only_left(self) -> int:
        """Decisions on which it still trains its value alone."""
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
            interval_start=0 if restarted else self.interval_start,
            counter_may_restart=False,
            value_only_until=self.value_only_until - (self.decisions if restarted else 0),
        )

    @property
    def recent_score(self) -> float | None:
        """Mean score of recent training episodes."""
        return self.score_sum / self.score_episodes if self.score_episodes else None

    @property
    def recent_score_error(self) -> float | None:
        """Standard error of that mean; with faded episodes rather too large."""
        if (mean := self.recent_score) is None:
            return None
        variance = max(0.0, self.score_square_sum / self.score_episodes - mean**2)
        return math.sqrt(variance / self.score_episodes)

    def played(self, episodes: int, score_sum: float, fade: float, square_sum: float = 0.0) -> Standing:
        """After a training match in a game with one team; what came before counts `fade` as much."""
        return replace(
            self,
            score_sum=self.score_sum * fade + score_sum,
            score_square_sum=self.score_square_sum * fade + square_sum,
            score_episodes=self.score_episodes * fade + episodes,
        )

    def frozen(self, model: str | None, *, promoted: bool, reset: bool) -> Standing:
        """After `model` was made a snapshot. `promoted`: a promotion rule asked for it, so its score is the
        one to beat."""
        kept = self.recent_score if promoted else self.best_frozen_score
        return replace(
            self,
            snapshots=self.snapshots + 1,
            interval_start=self.decisions,
            reset_pending=reset,
            ancestor=model,
            best_frozen_score=kept,
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
    """That it had trained on by then."""
    model: str | None
    """What it went on from; None: fresh weights."""
    donor: str | None
    """The player that it took over from, if it was one."""
    settings: Settings
    """Of its own, from then on."""
    reason: str


class LineageBook:
    """The descents of every learning player that ever was, oldest first."""

    def __init__(self) -> None:
        self._descents: dict[str, list[Descent]] = {}

    def join(self, event: PlayerAdded) -> None:
        first = Descent(decisions=0, model=event.model, donor=None, settings=dict(event.settings), reason=event.reason)
        self._descents[event.player] = [first]

    def reset(self, event: PlayerReset, decisions: int, settings: Settings) -> None:
        descent = Descent(
            decisions=decisions,
            model=event.model,
            donor=event.donor,
            settings=dict(settings),
            reason=event.reason,
        )
        self._descents[event.player].append(descent)

    @property
    def descents(self) -> Mapping[str, list[Descent]]:
        return MappingProxyType(self._descents)


_MATCH, _RESET, _MEMBER = 0, 1, 2
"""Keys that keep the streams apart."""


def match_generator(seed: int, match_id: int) -> np.random.Generator:
    """All draws of one match."""
    return _generator(seed, _MATCH, match_id)


def reset_draw(seed: int, joined: int, snapshots: int) -> float:
    """In [0, 1): whether the player that joined at event `joined` is reset after its n-th snapshot."""
    return float(_generator(seed, _RESET, joined, snapshots).random())


def member_generator(seed: int, player: str, takeovers: int, interval: int) -> np.random.Generator:
    """All draws of one judgement of a member of a population; those of its start have the numbers 0 and 0."""
    # By name, because a player's first settings are drawn before it has joined.
    name = int.from_bytes(hashlib.blake2b(player.encode(), digest_size=8).digest())
    return _generator(seed, _MEMBER, name, takeovers, interval)


def _generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
