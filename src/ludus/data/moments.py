"""A moment of an episode as a person is shown it: who plays, how it stands, and a picture of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TEAM_COLOURS = (
    (235, 92, 72),
    (84, 146, 255),
    (232, 179, 57),
    (84, 190, 120),
    (186, 120, 232),
    (70, 196, 205),
)
"""RGB by team, in pictures and beside names; where there are more teams, used again from the first on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The state of a table after a reset or a step."""

    game: str
    players: tuple[str, ...]
    """By team."""
    score: tuple[float, ...] | None
    """By team, so far; None while only the end will tell."""
    episode: int
    """Counted from 1, over all line-ups."""
    episodes: int
    """How many will be shown."""
    step: int
    clock: int | None
    """Game time, in a timed game."""
    seat: int | None
    """Whose view is drawn; None: everything is."""
    ended: bool
    draw: Callable[[], NDArray[np.uint8]]
    """Makes the picture, RGB [height, width, 3]. Only until the next moment."""

    @property
    def winner(self) -> int | None:
        """The team that has won; None before the end, for a draw, and where nobody can be beaten."""
        if not self.ended or self.score is None or len(self.score) < 2:
            return None
        best = max(self.score)
        return self.score.index(best) if self.score.count(best) == 1 else None

    @property
    def outcome(self) -> str:
        """How it ended, in words; "" before the end."""
        if not self.ended:
            return ""
        if len(self.players) < 2:
            return "ended"
        return "draw" if self.winner is None else f"{self.players[self.winner]} wins"


def colour_of_team(team: int) -> tuple[int, int, int]:
    return TEAM_COLOURS[team % len(TEAM_COLOURS)]


def written_score(score: float) -> str:
    """Short: 12, 0.5, -1."""
    return f"{round(score, 2) + 0.0:g}"  # adding nothing turns -0 into 0
