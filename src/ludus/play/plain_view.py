"""Any game with one choice a turn: its picture if it has one, else the numbers that the seat sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ludus.data.specs import CRITIC_PREFIX
from ludus.games.game import GameBatch, Seat

NAMES = {"rock_paper_scissors": ("rock", "paper", "scissors")}
"""Game -> what its options are called."""
MOST_NUMBERS = 64
"""Of a part of the observation; more say nothing to a person."""


class PlainView:
    hides = True  # nobody says whether it does
    real_time = False

    def __init__(self, draw: Callable[[GameBatch, Seat | None], str] | None) -> None:
        self._draw = draw

    @property
    def is_picture(self) -> bool:
        return self._draw is not None

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> dict[str, Any]:
        if self._draw is not None:
            return {"kind": "picture", "picture": self._draw(tables, seat)}
        seats = range(tables.spec.num_seats) if seat is None else [seat]
        return {"kind": "numbers", "seats": [{"seat": one, "parts": _parts(tables, one)} for one in seats]}

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        kind = tables.spec.kinds[tables.spec.seats[seat]]
        known = NAMES.get(tables.spec.name)
        return (
            list(known)
            if known
            else [str(one) for one in range(kind.num_options(next(iter(kind.action.heads))))]
        )

    def written(self, shown: dict[str, Any]) -> str:
        if shown["kind"] != "numbers":
            return ""
        lines = []
        for seen in shown["seats"]:
            lines.append(f"seat {seen['seat']} sees")
            lines += [
                f"  {part['name']}: {' '.join(f'{number:g}' for number in part['numbers'])}"
                for part in seen["parts"]
            ]
        return "\n".join(lines)


def _parts(tables: GameBatch, seat: Seat) -> list[dict[str, Any]]:
    """What the seat sees; not what only its critic does."""
    kind, column = tables.spec.seats[seat], tables.spec.column_of_seat[seat]
    return [
        {
            "name": name,
            "numbers": [round(float(number), 4) for number in array[0, column].flat[:MOST_NUMBERS]],
        }
        for name, array in tables.view.observation[kind].items()
        if not name.startswith(CRITIC_PREFIX)
    ]
