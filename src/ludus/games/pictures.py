"""Pictures of tables: which games have them, and a drawing of boards for those that are played on one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array
from ludus.games.game import GameBatch, HasPicture
from ludus.games.seat_groups import GroupedTables

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


BOARD_WIDTH = 448
"""In pixels, or a little less: all cells are equally wide."""
_BOARD, _HOLE = (38, 44, 56), (24, 26, 32)


def pictured(tables: GameBatch) -> HasPicture | None:
    """What draws these tables; None if nothing does."""
    plain = tables.game if isinstance(tables, GroupedTables) else tables
    return plain if isinstance(plain, HasPicture) else None


def draw_board(own: Array, other: Array) -> NDArray[np.uint8]:
    """[rows, columns], top row first: whether a stone of team 0 lies there, and one of team 1. Stones are
    discs in the colours of the teams; the picture is RGB."""
    rows, columns = own.shape
    cell = BOARD_WIDTH // columns
    across = np.arange(cell) - (cell - 1) / 2
    disc = across[:, None] ** 2 + across**2 <= (0.375 * cell) ** 2
    colours = np.array([_HOLE, colour_of_team(0), colour_of_team(1)], np.uint8)
    stones = colours[np.where(own, 1, np.where(other, 2, 0))]
    # [rows, cell, columns, cell, RGB]: the axes of a cell beside those of the board.
    picture = np.empty((rows, cell, columns, cell, 3), np.uint8)
    picture[:] = _BOARD
    np.copyto(picture, stones[:, None, :, None], where=disc[None, :, None, :, None])
    return picture.reshape(rows * cell, columns * cell, 3)
