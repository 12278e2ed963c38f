"""What a person is shown of a table: plain values that the page draws and the terminal writes.

A view shows what one seat may know. It shows everything when no seat is named, as after the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameBatch, GameSource, Seat
from ludus.games.recording import innermost
from ludus.play.board_views import ConnectFourView, TicTacToeView
from ludus.play.card_views import KuhnView, LeducView
from ludus.play.plain_view import PlainView
from ludus.play.skirmish_page import SkirmishView

Shown = dict[str, Any]


class View(Protocol):
    """Of one game. `tables` are the game's own, and the table that is shown is table 0."""

    hides: bool
    """Seats may know different things: what the opponent thinks would tell what it sees."""
    real_time: bool
    """Orders are given while time goes on, and doing nothing is one of them."""

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> Shown:
        """`latest`: the option that was chosen last at the table, in a game of one choice a turn."""

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        """What each option of the seat's first head is called now."""

    def written(self, shown: Shown) -> str:
        """For a terminal."""


Draw = Callable[[GameBatch, Seat | None], str]
"""A picture of table 0, as the address of an image that holds it."""
FindDrawing = Callable[[GameSource], Draw | None]
"""What draws the tables of a game; None if nothing does."""

_VIEWS: Mapping[type, Callable[[], View]] = {
    ConnectFour: ConnectFourView,
    TicTacToe: TicTacToeView,
    Kuhn: KuhnView,
    Leduc: LeducView,
    Skirmish: SkirmishView,
}


def has_own_view(source: GameSource) -> bool:
    return type(innermost(source)) in _VIEWS


def find_view(source: GameSource, drawing: FindDrawing | None = None) -> View:
    """The view of a game, or one that does for any game with one choice a turn."""
    inner = innermost(source)
    if has_own_view(source):
        return _VIEWS[type(inner)]()
    return PlainView(None if drawing is None else drawing(inner))
