"""Pictures of tables: what the boards show, and which games have any."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.catalog import resolve
from ludus.games.game import GameBatch, GameSource, allocate_actions
from ludus.games.pictures import colour_of_team, pictured
from ludus.games.seat_groups import group_seats


def started(game: GameSource) -> GameBatch:
    tables = game.tables(2)
    tables.reset(np.arange(2), np.arange(2, dtype=np.uint64))
    return tables


def move(tables: GameBatch, chosen: int) -> None:
    actions = allocate_actions(tables.spec, tables.num_tables)
    actions[0]["move"][:] = chosen
    tables.step(actions)


def cells(tables: GameBatch, rows: int, columns: int) -> NDArray[np.uint8]:
    """The colour in the middle of each cell of table 1."""
    drawn = pictured(tables)
    assert drawn is not None
    picture = drawn.render(1)
    assert picture.dtype == np.uint8
    height, width = picture.shape[0] // rows, picture.shape[1] // columns
    assert height == width
    return picture[height // 2 :: height, width // 2 :: width]


@pytest.mark.parametrize(
    ("game", "rows", "columns", "moves", "first", "second"),
    [("connect_four", 6, 7, (3, 3), (5, 3), (4, 3)), ("tic_tac_toe", 3, 3, (3, 2), (1, 0), (0, 2))],
)
def test_a_board_shows_whose_stone_lies_where(
    game: str, rows: int, columns: int, moves: tuple[int, int], first: tuple[int, int], second: tuple[int, int]
) -> None:
    tables = started(resolve(game))
    empty = cells(tables, rows, columns)[0, 0].tolist()
    for chosen in moves:
        move(tables, chosen)
    shown = cells(tables, rows, columns)
    assert shown[first].tolist() == list(colour_of_team(0))
    assert shown[second].tolist() == list(colour_of_team(1))
    others = [
        shown[row, column].tolist()
        for row in range(rows)
        for column in range(columns)
        if (row, column) not in (first, second)
    ]
    assert all(colour == empty for colour in others)


@pytest.mark.parametrize("game", ["beacon", "skirmish", "connect_four", "tic_tac_toe"])
def test_a_table_can_be_drawn_whoever_the_seats_belong_to(game: str) -> None:
    source = resolve(game)
    plain, grouped = started(source), started(group_seats(source, "per_seat"))
    drawn, drawn_in_groups = pictured(plain), pictured(grouped)
    assert drawn is not None
    assert drawn_in_groups is not None
    picture = drawn.render(0)
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    assert (picture != picture[-1, -1]).any()
    np.testing.assert_array_equal(picture, drawn_in_groups.render(0))
    assert drawn.render(0, 0).shape == picture.shape


def test_a_game_without_pictures_has_none() -> None:
    assert pictured(resolve("kuhn").tables(1)) is None
