from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.builtin.connect_four import ConnectFour, ConnectFourTables
from ludus.games.game import Bot, allocate_actions

ROWS, COLUMNS = 6, 7
DRAWN_GAME = "436014551150160155104632660465204242223333"
LINES = [
    [(row + step * down, column + step * right) for step in range(4)]
    for row, column in product(range(ROWS), range(COLUMNS))
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    if row + 3 * down < ROWS and 0 <= column + 3 * right < COLUMNS
]


class SlowBoard:
    """The rules, as a person would write them down."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], int] = {}
        self.ply = 0

    def legal(self) -> list[bool]:
        return [(ROWS - 1, column) not in self.cells for column in range(COLUMNS)]

    def drop(self, column: int, seat: int) -> tuple[int, int]:
        cell = next((row, column) for row in range(ROWS) if (row, column) not in self.cells)
        self.cells[cell] = seat
        return cell

    def has_won(self, seat: int) -> bool:
        return any(all(self.cells.get(cell) == seat for cell in line) for line in LINES)

    def wins_at(self, column: int, seat: int) -> bool:
        if not self.legal()[column]:
            return False
        cell = self.drop(column, seat)
        won = self.has_won(seat)
        del self.cells[cell]
        return won

    def board(self, seat: int) -> list[float]:
        cells = list(product(range(ROWS), range(COLUMNS)))
        return [float(self.cells.get(cell) == who) for who in (seat, 1 - seat) for cell in cells]

    def threats(self, seat: int) -> list[float]:
        return [float(self.wins_at(column, who)) for who in (seat, 1 - seat) for column in range(COLUMNS)]

    def all_threats(self, seat: int) -> list[float]:
        return [
            float(cell not in self.cells and any(self._completes(line, cell, who) for line in LINES))
            for who in (seat, 1 - seat)
            for cell in product(range(ROWS), range(COLUMNS))
        ]

    def _completes(self, line: list[tuple[int, int]], cell: tuple[int, int], seat: int) -> bool:
        return cell in line and all(self.cells.get(other) == seat for other in line if other != cell)


def play_moves(game: ConnectFourTables, moves: str) -> None:
    actions = allocate_actions(game.spec, game.num_tables)
    for move in moves:
        actions[0]["move"][:] = int(move)
        game.step(actions)


def fresh_tables(num_tables: int = 1) -> ConnectFourTables:
    game = ConnectFour(all_threats=True).tables(num_tables)
    assert isinstance(game, ConnectFourTables)
    game.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    return game


def test_follows_the_rules_on_random_games() -> None:
    num_tables = 40
    game = fresh_tables(num_tables)
    slow = [SlowBoard() for _ in range(num_tables)]
    actions = allocate_actions(game.spec, num_tables)
    rng = np.random.default_rng(0)
    view = game.view
    while not view.over.all():
        for table in np.flatnonzero(~view.over).tolist():
            board = slow[table]
            mover = board.ply % 2
            assert view.to_act[table].tolist() == [mover == 0, mover == 1]
            assert view.legal[0]["move"][table, mover].tolist() == board.legal()
            assert view.observation[0]["board"][table, mover].tolist() == board.board(mover)
            assert view.observation[0]["threats"][table, mover].tolist() == board.threats(mover)
            assert view.observation[0]["all_threats"][table, mover].tolist() == board.all_threats(mover)
            column = int(rng.choice(np.flatnonzero(board.legal())))
            actions[0]["move"][table, mover] = column
            board.drop(column, mover)
            board.ply += 1
        game.step(actions)
        for table, board in enumerate(slow):
            mover = (board.ply - 1) % 2
            won = board.has_won(mover)
            expected = [0.0, 0.0] if not won else [1.0 - 2 * mover, 2.0 * mover - 1]
            assert view.over[table] == (won or board.ply == ROWS * COLUMNS)
            assert view.reward[table].tolist() == expected


def test_a_full_board_without_a_line_is_a_draw() -> None:
    game = fresh_tables()
    play_moves(game, DRAWN_GAME[:-1])
    assert not game.view.over[0]
    play_moves(game, DRAWN_GAME[-1])
    assert game.view.over[0]
    assert not game.view.truncated[0]
    assert game.view.score[0].tolist() == [0.0, 0.0]
    assert not game.view.to_act[0].any()


@pytest.mark.parametrize("moves", ["0101010", "0414243", "3344556", "00", "6655443"])
def test_tree_state_is_the_position_of_the_table(moves: str) -> None:
    game = fresh_tables()
    play_moves(game, moves)
    state = game.tree_state(0)
    assert (state.seat() < 0) == game.view.over[0]
    if state.seat() < 0:
        assert list(state.returns()) == game.view.score[0].tolist()
    else:
        for part, row in state.observation().items():
            assert row.tolist() == game.view.observation[0][part][0, state.seat()].tolist()


def test_names_the_move_that_is_not_legal() -> None:
    game = fresh_tables()
    play_moves(game, "000000")
    with pytest.raises(ValueError, match=r"table 0, seat 0: move 0 is not one of \[1, 2, 3, 4, 5, 6\]"):
        play_moves(game, "0")
    with pytest.raises(ValueError, match="move 7 is not one of"):
        play_moves(game, "7")


def test_without_threats_only_the_board_is_shown(play: Callable[..., NDArray[np.float32]]) -> None:
    source = ConnectFour(threats=False)
    assert set(source.spec.kinds[0].observation.arrays) == {"board"}
    rules: Bot = source.bots()["rules"]
    assert play(source, [rules, source.bots()["random"]])[:, 0].mean() > 0.8


def test_cannot_be_walked_as_a_tree() -> None:
    assert ConnectFour().tree() is None  # type: ignore[func-returns-value]
