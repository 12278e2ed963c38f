"""Numbers for the streams of trajectories: one per table, side and place among the side's seats of a kind."""

from __future__ import annotations

import numpy as np

from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray


class StreamNumbers:
    """A stream follows its side through the rotation of seats, so a trajectory goes on over several
    episodes."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self._num_tables = num_tables
        self._sides = spec.num_teams
        self._place = np.zeros(spec.num_seats, np.int64)
        self._places = [0] * len(spec.kinds)
        self._seats_of_kind = tuple(np.array(seats) for seats in spec.seats_of_kind)
        for team in spec.seats_of_team:
            seen = [0] * len(spec.kinds)
            for seat in team:
                kind = spec.seats[seat]
                self._place[seat] = seen[kind]
                seen[kind] += 1
                self._places[kind] = max(self._places[kind], seen[kind])

    def count(self, kind: int) -> int:
        return self._num_tables * self._sides * self._places[kind]

    def of(self, kind: int, tables: IntArray, seats: IntArray, sides: IntArray) -> IntArray:
        return (tables * self._sides + sides) * self._places[kind] + self._place[seats]

    def places(self, kind: int, streams: IntArray, side_of_seat: IntArray) -> tuple[IntArray, IntArray]:
        """(table, seat) where each stream sits now; any seat for one whose side has none of the kind now."""
        place = streams % self._places[kind]
        side = streams // self._places[kind] % self._sides
        tables = streams // (self._places[kind] * self._sides)
        seats_of_kind = self._seats_of_kind[kind]
        fits = (side_of_seat[tables][:, seats_of_kind] == side[:, None]) & (
            self._place[seats_of_kind] == place[:, None]
        )
        return tables, seats_of_kind[fits.argmax(1)]
