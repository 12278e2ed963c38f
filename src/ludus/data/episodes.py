"""Decoded episodes: what any source of replays gives to a dataset, and which of them are wanted.

A source of another kind of replay is an `EpisodeSource`; all else (filters, thinning out, files, resuming) is
the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import Choice, SeatKind
from ludus.data.trees import Tree

Outcome = Literal["win", "draw", "loss"]
OUTCOMES: dict[Outcome, float] = {"win": 1.0, "draw": 0.0, "loss": -1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeFacts:
    """One seat's part in one game, as far as it is known without the observations."""

    replay: str
    game: str
    map: str
    version: str
    """Of the game."""
    matchup: tuple[str, ...]
    """The player, or race, of each team."""
    player: str
    seat: int
    outcome: Outcome | None
    """None in a game of one team."""
    score: float
    length: int
    """Decisions of the seat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """All that a dataset keeps of one seat's part in one game."""

    facts: EpisodeFacts
    columns: Tree
    """Name -> [rows, ...], see `dataset_format.column_specs`: one row per decision, in time."""
    has_bootstrap: bool = False
    """The episode was cut off, and the last row is no decision but what the seat saw then."""
    build_order: NDArray[np.int16] | None = None
    """What the seat had built in the end, see `games.game.StrategyView`."""
    built: NDArray[np.bool_] | None = None

    @property
    def num_decisions(self) -> int:
        return len(self.columns["reward"]) - self.has_bootstrap


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedReplay:
    """What was taken from one replay."""

    name: str
    episodes: tuple[Episode, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Filter -> seats that it left out."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason -> actions of its players that have no place in the dataset."""
    skipped: str = ""
    """Why nothing could be taken: damaged, of another version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeFilter:
    """Which seats of which replays a dataset is made from. None and empty let everything pass."""

    map: str | None = None
    matchup: tuple[str, ...] = ()
    """Of players, in any order."""
    player: tuple[str, ...] = ()
    outcome: Outcome | None = None
    min_length: int = 0
    max_length: int | None = None
    game_version: str | None = None

    def drops(self, facts: EpisodeFacts) -> str | None:
        """The first filter that leaves this seat out."""
        if self.map is not None and facts.map != self.map:
            return "map"
        if self.game_version is not None and facts.version != self.game_version:
            return "game_version"
        if self.matchup and sorted(facts.matchup) != sorted(self.matchup):
            return "matchup"
        if self.player and facts.player not in self.player:
            return "player"
        if self.outcome is not None and facts.outcome != self.outcome:
            return "outcome"
        if facts.length < self.min_length:
            return "min_length"
        if self.max_length is not None and facts.length > self.max_length:
            return "max_length"
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOp:
    """A decision to do nothing: this value of this head."""

    head: str
    value: int = 0


EVERY = 8
"""Of decisions to do nothing, those whose number is divisible by this stay."""


def kept_decisions(is_no_op: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which decisions of an episode stay: all that do something, the first, the last and every eighth."""
    kept = ~is_no_op
    kept[::EVERY] = True
    kept[:1] = kept[-1:] = True
    return kept


def first_choice(kind: SeatKind) -> str | None:
    """The first head that chooses one of several options."""
    return next((name for name, head in kind.action.heads.items() if isinstance(head, Choice)), None)


class EpisodeSource(Protocol):
    """Where the episodes of a dataset come from."""

    @property
    def game(self) -> str: ...
    @property
    def kind(self) -> SeatKind:
        """Of all seats that it gives."""

    @property
    def strategy(self) -> tuple[int, int] | None:
        """Places of a build order and facts of what was built; None: episodes come without."""

    def replays(self) -> Sequence[str]:
        """The names of all replays, in an order that is the same every time."""

    def decode(self, names: Sequence[str], wanted: EpisodeFilter) -> Iterator[DecodedReplay]:
        """These replays, in this order, one after the other; seats that the filter drops are counted. Never
        raises for a replay that is damaged or cannot be played: that one is skipped, with the reason."""
