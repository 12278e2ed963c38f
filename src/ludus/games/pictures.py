"""Pictures of tables: which tables can be drawn, the moment that is drawn, team colours, boards and averaging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array
from ludus.games.game import GameBatch, HasPicture

TEAM_COLOURS = ((235, 92, 72), (84, 146, 255), (232, 179, 57), (84, 190, 120), (186, 120, 232), (70, 196, 205))
"""RGB by team, in pictures and beside names; further teams start again from the first colour."""

BOARD_WIDTH = 448  # pixels at most: all cells are equally wide
_BOARD, _HOLE = (38, 44, 56), (24, 26, 32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The state of a table after a reset or a step."""

    game: str
    players: tuple[str, ...]
    score: tuple[float, ...] | None
    """Current score by team; None if the game only scores at the end."""
    episode: int
    """Number of the episode from 1, over all line-ups."""
    episodes: int
    step: int
    clock: int | None
    seat: int | None
    """The seat whose view is drawn; None: everything."""
    ended: bool
    draw: Callable[[], NDArray[np.uint8]]
    """Draws the picture, RGB [height, width, 3]; valid until the next moment."""

    @property
    def winner(self) -> int | None:
        """The winning team; None before the end, for a draw, and with a single team."""
        if not self.ended or self.score is None or len(self.score) < 2:
            return None
        best = max(self.score)
        return self.score.index(best) if self.score.count(best) == 1 else None

    @property
    def outcome(self) -> str:
        """The result in words; "" before the end."""
        if not self.ended:
            return ""
        if len(self.players) < 2:
            return "ended"
        return "draw" if self.winner is None else f"{self.players[self.winner]} wins"


def colour_of_team(team: int) -> tuple[int, int, int]:
    return TEAM_COLOURS[team % len(TEAM_COLOURS)]


def written_score(score: float) -> str:
    """Such as 12, 0.5 or -1."""
    return f"{round(score, 2) + 0.0:g}"  # adding 0 turns -0 into 0


def pictured(tables: GameBatch) -> HasPicture | None:
    """The tables as something that draws; None if the game draws no pictures."""
    return tables if isinstance(tables, HasPicture) else None


def draw_board(own: Array, other: Array) -> NDArray[np.uint8]:
    """RGB picture of a board [rows, columns], top row first: stones are discs in the colours of teams 0 and 1."""
    rows, columns = own.shape
    cell = BOARD_WIDTH // columns
    across = np.arange(cell) - (cell - 1) / 2
    disc = across[:, None] ** 2 + across**2 <= (0.375 * cell) ** 2
    colours = np.array([_HOLE, colour_of_team(0), colour_of_team(1)], np.uint8)
    stones = colours[np.where(own, 1, np.where(other, 2, 0))]
    # [rows, cell, columns, cell, RGB]: each axis of the board is followed by that of a cell.
    picture = np.empty((rows, cell, columns, cell, 3), np.uint8)
    picture[:] = _BOARD
    np.copyto(picture, stones[:, None, :, None], where=disc[None, :, None, :, None])
    return picture.reshape(rows * cell, columns * cell, 3)


def averaging(length: int, size: int) -> NDArray[np.float32]:
    """[size, length]: a matrix that averages a line of pixels down to `size`, splitting pixels at the borders."""
    edges = np.linspace(0, length, size + 1)
    starts, ends = edges[:-1, None], edges[1:, None]
    pixels = np.arange(length)
    covered = np.minimum(ends, pixels + 1) - np.maximum(starts, pixels)
    return (covered.clip(0) * (size / length)).astype(np.float32)
