"""Games on a board of cells: connect four and tic-tac-toe."""

from __future__ import annotations

from typing import Any

import numpy as np

from ludus.data.trees import Array
from ludus.games.builtin import connect_four_board
from ludus.games.game import GameBatch, Seat

STONES = ".XO"
"""Nobody's cell, and those of seat 0 and seat 1, in a terminal."""
EMPTY = -1


class _BoardView:
    """Stones of two seats on cells, all of them seen by both."""

    hides = False
    real_time = False

    def __init__(self, rows: int, columns: int, *, in_line: int, falls: bool) -> None:
        self._shape = (rows, columns)
        self._in_line = in_line
        self._falls = falls

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> dict[str, Any]:
        rows, columns = self._shape
        board = tables.view.observation[0]["board"][0, 0].reshape(2, rows, columns)
        own, other = board[:, ::-1] if self._falls else board
        stones = np.where(own > 0, 0, np.where(other > 0, 1, EMPTY))
        return {
            "kind": "board",
            "rows": rows,
            "columns": columns,
            "falls": self._falls,
            "stones": stones.ravel().tolist(),
            "latest": self._cell(stones, latest),
            "line": _line(stones, self._in_line),
        }

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        rows, columns = self._shape
        return [str(number + 1) for number in range(columns if self._falls else rows * columns)]

    def written(self, shown: dict[str, Any]) -> str:
        rows, columns = self._shape
        stones = np.array(shown["stones"]).reshape(rows, columns)
        if self._falls:
            lines = [" ".join(STONES[stone + 1] for stone in row) for row in stones]
            return "\n".join([*lines, " ".join(str(column + 1) for column in range(columns))])
        # A free cell shows its number: it is what the person types.
        cells = [
            str(cell + 1) if stone == EMPTY else STONES[stone + 1] for cell, stone in enumerate(stones.flat)
        ]
        return "\n".join(" ".join(cells[row * columns : (row + 1) * columns]) for row in range(rows))

    def _cell(self, stones: Array, latest: int | None) -> int | None:
        """The cell of the latest stone."""
        if latest is None or not self._falls:
            return latest
        row = int((stones[:, latest] != EMPTY).argmax())
        return row * self._shape[1] + latest


class ConnectFourView(_BoardView):
    def __init__(self) -> None:
        super().__init__(connect_four_board.ROWS, connect_four_board.COLUMNS, in_line=4, falls=True)


class TicTacToeView(_BoardView):
    def __init__(self) -> None:
        super().__init__(3, 3, in_line=3, falls=False)


def _line(stones: Array, length: int) -> list[int]:
    """The cells of lines that are complete, top row first."""
    rows, columns = stones.shape
    found: set[int] = set()
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + step * down, column + step * right) for step in range(length)]
                if not all(0 <= y < rows and 0 <= x < columns for y, x in cells):
                    continue
                owners = {int(stones[cell]) for cell in cells}
                if len(owners) == 1 and EMPTY not in owners:
                    found.update(y * columns + x for y, x in cells)
    return sorted(found)
