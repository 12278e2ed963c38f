"""Pictures of tables: which games have them, and a drawing of boards for those that are played on one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ludus.data.moments import colour_of_team
from ludus.data.trees import Array
from ludus.games.game import GameBatch, HasPicture
from ludus.games.seat_groups import GroupedTables

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
