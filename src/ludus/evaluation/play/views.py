"""Views of a table for a person: plain values that the page draws and the terminal writes. A view shows what one seat
may know, or everything when no seat is named, as after the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from ludus.data.specs import CRITIC_PREFIX, GameSpec
from ludus.data.trees import Array
from ludus.evaluation.play.skirmish_page import SkirmishView
from ludus.games.builtin import connect_four
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.kuhn import BET, Kuhn, KuhnState
from ludus.games.builtin.leduc import RAISE, Leduc, LeducState, rank
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameBatch, GameSource, HasTrees, Seat
from ludus.games.recording import innermost

NAMES = {"rock_paper_scissors": ("rock", "paper", "scissors")}
"""Game -> what its options are called."""
YOU = "you"
MOST_NUMBERS = 64
"""Numbers of an observation part that are shown; people cannot read more."""


COLOURS = ("red", "blue", "yellow", "green")
"""Names of the teams' colours on the page and in pictures."""


def colour_names(spec: GameSpec) -> list[str]:
    """Names of the seats by the colours of their teams: red and blue, or red 1, red 2, blue 1 and blue 2."""
    names = []
    for seat, team in enumerate(spec.teams):
        colour = COLOURS[team] if spec.num_teams <= len(COLOURS) else f"team {team + 1}"
        mates = spec.seats_of_team[team]
        names.append(colour if len(mates) == 1 else f"{colour} {mates.index(seat) + 1}")
    return names


def named_choice(names: Sequence[str], action: Array) -> str:
    """What a head chose: the name of an option, or its numbers. `names`: of the options."""
    if action.dtype.kind == "f":
        return written_numbers(action)
    chosen = int(action.flat[0])
    return names[chosen] if 0 <= chosen < len(names) else str(chosen)


def written_numbers(action: Array) -> str:
    """All numbers of a head."""
    digits = ".3g" if action.dtype.kind == "f" else "g"
    return " ".join(f"{number:{digits}}" for number in action.ravel().tolist())


class PlainView:
    hides = True  # unknown, so assume that it does
    real_time = False

    def __init__(
        self, draw: Callable[[GameBatch, Seat | None], str] | None, score_range: tuple[float, float] | None = None
    ) -> None:
        self._draw = draw
        self.score_range = score_range

    @property
    def is_picture(self) -> bool:
        return self._draw is not None

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> dict[str, Any]:
        if self._draw is not None:
            return {"kind": "picture", "picture": self._draw(tables, seat)}
        seats = range(tables.spec.num_seats) if seat is None else [seat]
        return {"kind": "numbers", "seats": [{"seat": one, "parts": _parts(tables, one)} for one in seats]}

    def seat_names(self, source: GameSource) -> list[str]:
        return colour_names(source.spec)

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        kind = tables.spec.kinds[tables.spec.seats[seat]]
        known = NAMES.get(tables.spec.name)
        return list(known) if known else [str(one) for one in range(kind.num_options(next(iter(kind.action.heads))))]

    def written(self, shown: dict[str, Any], names: Sequence[str] = ()) -> str:
        if shown["kind"] != "numbers":
            return ""
        lines = []
        for seen in shown["seats"]:
            lines.append(f"{_name(names, seen['seat'])} {'see' if _name(names, seen['seat']) == YOU else 'sees'}")
            lines += [
                f"  {part['name']}: {' '.join(f'{number:g}' for number in part['numbers'])}" for part in seen["parts"]
            ]
        return "\n".join(lines)


def _name(names: Sequence[str], seat: Seat) -> str:
    return names[seat] if names else f"seat {seat}"


def _parts(tables: GameBatch, seat: Seat) -> list[dict[str, Any]]:
    """The observation of the seat, without the parts for its critic."""
    kind, column = tables.spec.seats[seat], tables.spec.column_of_seat[seat]
    return [
        {"name": name, "numbers": [round(float(number), 4) for number in array[0, column].flat[:MOST_NUMBERS]]}
        for name, array in tables.view.observation[kind].items()
        if not name.startswith(CRITIC_PREFIX)
    ]


STONES = ".XO"
"""Nobody's cell, and those of seat 0 and seat 1, in a terminal."""
EMPTY = -1


class _BoardView:
    """Stones of two seats on cells, all of them seen by both."""

    hides = False
    real_time = False
    score_range = (-1.0, 1.0)

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

    def seat_names(self, source: GameSource) -> list[str]:
        return colour_names(source.spec)

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        rows, columns = self._shape
        return [str(number + 1) for number in range(columns if self._falls else rows * columns)]

    def written(self, shown: dict[str, Any], names: Sequence[str] = ()) -> str:
        rows, columns = self._shape
        stones = np.array(shown["stones"]).reshape(rows, columns)
        if self._falls:
            lines = [" ".join(STONES[stone + 1] for stone in row) for row in stones]
            lines.append(" ".join(str(column + 1) for column in range(columns)))
        else:  # a free cell shows its number: it is what the person types
            cells = [str(cell + 1) if stone == EMPTY else STONES[stone + 1] for cell, stone in enumerate(stones.flat)]
            lines = [" ".join(cells[row * columns : (row + 1) * columns]) for row in range(rows)]
        latest = shown["latest"]
        if latest is not None:
            move = latest % columns if self._falls else latest
            lines.append(f"{STONES[stones.flat[latest] + 1]} has played {move + 1}")
        return "\n".join(lines)

    def _cell(self, stones: Array, latest: int | None) -> int | None:
        """The cell of the latest stone."""
        if latest is None or not self._falls:
            return latest
        row = int((stones[:, latest] != EMPTY).argmax())
        return row * self._shape[1] + latest


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


TreeState = TypeVar("TreeState", KuhnState, LeducState)
RANKS = "JQK"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
SUITS = "♠♥"


class _CardView:
    """Everybody has one card, and bets in turn."""

    hides = True
    real_time = False
    score_range: tuple[float, float]

    def seat_names(self, source: GameSource) -> list[str]:
        return [f"{place} to act" for place in ORDINALS[: source.spec.num_seats]]

    def written(self, shown: dict[str, Any], names: Sequence[str] = ()) -> str:
        lines = []
        called = [_name(names, seat) for seat in range(len(shown["hands"]))]
        width = max(map(len, called)) + 1
        for seat, hand in enumerate(shown["hands"]):
            done = [move["name"] for move in shown["moves"] if move["seat"] == seat]
            lines.append(
                f"{called[seat] + ':':{width}} {hand['card'] or '?':3} in the pot {hand['stake']:g}  {', '.join(done)}"
            )
        if shown["public"] is not None:
            lines.append(f"on the table: {shown['public'] or '?'}")
        return "\n".join(line.rstrip() for line in lines)


class KuhnView(_CardView):
    def __init__(self, num_seats: int) -> None:
        self.score_range = (-2.0, 2.0 * (num_seats - 1))

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> dict[str, Any]:
        state = _state(tables, KuhnState)
        bettors = {turn % state.seats for turn, move in enumerate(state.moves) if move == BET}
        moves = [
            {"seat": turn % state.seats, "round": 0, "name": _kuhn_names(state.moves[:turn])[move]}
            for turn, move in enumerate(state.moves)
        ]
        # With more than two seats there are more cards than these names.
        cards = [RANKS[card] if state.seats == 2 else str(card + 1) for card in state.cards]
        return _shown(cards, None, [2.0 if one in bettors else 1.0 for one in range(state.seats)], moves, seat)

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        return _kuhn_names(_state(tables, KuhnState).moves)


class LeducView(_CardView):
    """Two rounds, and a public card before the second."""

    score_range = (-13.0, 13.0)

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> dict[str, Any]:
        state = _state(tables, LeducState)
        moves = [
            {"seat": turn % 2, "round": number, "name": _leduc_names(played[:turn])[move]}
            for number, played in enumerate(state.rounds)
            for turn, move in enumerate(played)
        ]
        cards = [f"{RANKS[rank(card)]}{SUITS[card % 2]}" for card in state.cards]
        return _shown(cards[:2], cards[2] if len(cards) > 2 else "", state.stakes(), moves, seat)

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        state = _state(tables, LeducState)
        return _leduc_names(state.rounds[len(state.cards) - 2])


def _state(tables: GameBatch, kind: type[TreeState]) -> TreeState:
    assert isinstance(tables, HasTrees)
    state = tables.tree_state(0)
    assert isinstance(state, kind)
    return state


def _kuhn_names(before: tuple[int, ...]) -> list[str]:
    return ["fold", "call"] if BET in before else ["check", "bet"]


def _leduc_names(before: tuple[int, ...]) -> list[str]:
    """Names of fold, call and raise."""
    return ["fold", "call" if before and before[-1] == RAISE else "check", "raise"]


def _shown(
    cards: list[str], public: str | None, stakes: list[float], moves: list[dict[str, Any]], seat: Seat | None
) -> dict[str, Any]:
    """`public`: "" before it is turned up, None in a game that has none."""
    return {
        "kind": "cards",
        "hands": [
            {"card": card if seat in (None, owner) else None, "stake": stake}
            for owner, (card, stake) in enumerate(zip(cards, stakes, strict=True))
        ],
        "public": public,
        "moves": moves,
    }


Shown = dict[str, Any]


class GameView(Protocol):
    """Interface of the view of a game. `tables` are the game's own; table 0 is shown."""

    hides: bool
    """Seats may know different things: what the opponent thinks would tell what it sees."""
    real_time: bool
    """Orders are given while time goes on, and doing nothing is one of them."""

    @property
    def score_range(self) -> tuple[float, float] | None:
        """The lowest and the highest score that the game can end with; None: unknown."""

    def seat_names(self, source: GameSource) -> list[str]:
        """What a person calls each seat."""

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> Shown:
        """`latest`: the option that was chosen last at the table, in a game of one choice a turn."""

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        """Names of the options of the seat's first head."""

    def written(self, shown: Shown, names: Sequence[str] = ()) -> str:
        """For a terminal. `names`: the players, by seat."""


Draw = Callable[[GameBatch, Seat | None], str]
"""A picture of table 0, as the address of an image that holds it."""
FindDrawing = Callable[[GameSource], Draw | None]
"""Finds the drawing function for the tables of a game; None if there is none."""

_VIEWS: Mapping[type, Callable[[GameSpec], GameView]] = {
    ConnectFour: lambda _: _BoardView(connect_four.ROWS, connect_four.COLUMNS, in_line=4, falls=True),
    TicTacToe: lambda _: _BoardView(3, 3, in_line=3, falls=False),
    Kuhn: lambda spec: KuhnView(spec.num_seats),
    Leduc: lambda _: LeducView(),
    Skirmish: lambda _: SkirmishView(),
}


def has_own_view(source: GameSource) -> bool:
    return type(innermost(source)) in _VIEWS


def find_view(source: GameSource, drawing: FindDrawing | None = None) -> GameView:
    """The view of a game, or one that does for any game with one choice a turn."""
    inner = innermost(source)
    if has_own_view(source):
        return _VIEWS[type(inner)](inner.spec)
    return PlainView(None if drawing is None else drawing(inner), getattr(inner, "score_range", None))
