"""Beacon: one seat walks a unit from beacon to beacon on a map of 64 by 64 cells, a small MoveToBeacon.

A decision gives an order and then lasts eight game steps. `move` sends the unit in a straight line to the
middle of a cell at 3/8 of a cell per game step; `no-op` lets it continue to its last destination. A beacon is
reached when the unit is within four cells of its middle. This scores 1, and at the end of the decision the next
beacon appears at a place drawn by the seed, at least 16 cells away. The episode is cut off after 240 decisions.
The seat sees three planes: the unit, the beacon and the unit's destination.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Planes, Point, When
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import RandomBot, Rows
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.seeding import randbelow
from ludus.games.tables import ArrayTables, GameDefaults

WIDTH = 64
GAME_STEPS = 8  # game steps per decision
SPEED = 0.375  # cells that the unit walks per game step
BEACON_RADIUS = 4.0
UNIT_RADIUS = 1.5  # for drawing only: a beacon is reached by the middle of the unit
LEAST_DISTANCE = 16.0  # least distance between the unit and a new beacon, middle to middle
MARGIN = 9  # cells along the edge in which no beacon has its middle
PICTURE = 512  # width of a picture of a table, in pixels

NO_OP, MOVE = range(2)
UNIT, BEACON, DESTINATION = range(3)

_WALKED = SPEED * np.arange(1, GAME_STEPS + 1)
_SPAN = np.arange(MARGIN, WIDTH - MARGIN) + 0.5
_PLACES = np.stack(np.meshgrid(_SPAN, _SPAN), axis=-1).reshape(-1, 2)  # [places, (x, y)]: possible middles of a beacon


@dataclass(frozen=True, kw_only=True)
class Beacon(GameDefaults):
    """One unit, one beacon at a time."""

    decisions: int = 240
    """Decisions per episode."""

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="beacon",
            num_seats=1,
            observation=ObservationSpec(parts={"map": Planes(channels=3, height=WIDTH, width=WIDTH, dtype="bool")}),
            action=ActionSpec(
                heads={
                    "order": Choice(num=2, masked=False),
                    "target": Point(height=WIDTH, width=WIDTH, when=When(head="order", values=(MOVE,))),
                }
            ),
            max_length=self.decisions,
            zero_sum=False,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return BeaconTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), "oracle": OracleBot()}


class BeaconTables(ArrayTables):
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self._seeds = np.zeros(num_tables, np.uint64)
        self._decisions = np.zeros(num_tables, np.int64)
        self._draws = np.zeros(num_tables, np.int64)
        self._unit = np.zeros((num_tables, 2))
        self._destination = np.zeros((num_tables, 2))
        self._beacon = np.zeros((num_tables, 2))

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        self._seeds[tables] = seeds
        self._decisions[tables] = 0
        self._unit[tables] = self._destination[tables] = _PLACES[randbelow(seeds, 0, len(_PLACES))]
        self._draws[tables] = 1
        self._place_beacons(tables)
        self._show(tables)

    def _place_beacons(self, tables: IntArray) -> None:
        """Each place far enough from the unit is as likely as any other."""
        far = _length(_PLACES - self._unit[tables][:, None]) >= LEAST_DISTANCE
        pick = randbelow(self._seeds[tables], self._draws[tables], far.sum(axis=1))
        self._draws[tables] += 1
        self._beacon[tables] = _PLACES[(far.cumsum(axis=1) > pick[:, None]).argmax(axis=1)]
        self._draw(tables, BEACON, self._beacon, BEACON_RADIUS)

    def step(self, actions: Actions) -> None:
        view = self.view
        tables = np.flatnonzero(view.to_act[:, 0])
        orders, targets = actions[0]["order"][tables, 0], actions[0]["target"][tables, 0]
        moved = orders == MOVE
        self._require_legal("order", tables, np.array(0), orders)
        self._require_legal("target", tables, np.array(0), targets, counts=moved)
        cells = targets[moved]
        self._destination[tables[moved]] = np.stack([cells % WIDTH, cells // WIDTH], axis=1) + 0.5
        start, way = self._unit[tables], self._destination[tables] - self._unit[tables]
        length = _length(way)
        # [tables, game steps]: the share of the way that the unit has covered after each game step.
        share = np.minimum(_WALKED / np.maximum(length, SPEED)[:, None], 1.0)
        path = start[:, None] + way[:, None] * share[:, :, None]
        self._unit[tables] = path[:, -1]
        self._decisions[tables] += 1

        # At most one beacon per decision: the decision ends before the unit could reach the next one.
        reached = (_length(path - self._beacon[tables][:, None]) <= BEACON_RADIUS).any(axis=1)
        view.reward[tables, 0] = reached
        view.score[tables, 0] += reached
        ended = self._decisions[tables] == self.spec.max_length
        view.truncated[tables] = ended
        view.to_act[tables, 0] = ~ended
        self._place_beacons(tables[reached])
        self._show(tables)

    def _show(self, tables: IntArray) -> None:
        self._draw(tables, UNIT, self._unit, UNIT_RADIUS)
        self._draw(tables, DESTINATION, self._destination, UNIT_RADIUS)

    def _draw(self, tables: IntArray, plane: int, middles: Array, radius: float) -> None:
        """Redraw a plane: the cells whose middle is within `radius` of `middles`."""
        planes = self.view.observation[0]["map"]
        planes[tables, 0, plane] = False
        reach = int(np.ceil(radius))
        around = np.arange(-reach, reach + 1)
        corner = np.floor(middles[tables]).astype(np.int64)
        x, y = corner[:, :1] + around, corner[:, 1:] + around
        from_x, from_y = x + 0.5 - middles[tables, :1], y + 0.5 - middles[tables, 1:]
        marked = from_x[:, None] ** 2 + from_y[:, :, None] ** 2 <= radius**2
        marked &= _on_map(x)[:, None] & _on_map(y)[:, :, None]
        row, down, right = np.nonzero(marked)
        planes[tables[row], 0, plane, y[row, down], x[row, right]] = True

    def render(self, table: int, seat: int | None = None) -> NDArray[np.uint8]:
        """[PICTURE, PICTURE, RGB]: unit light, beacon green, destination a ring. The seat sees everything."""
        middle = (np.arange(PICTURE) + 0.5) * (WIDTH / PICTURE)
        x, y = middle[None, :], middle[:, None]
        picture = np.full((PICTURE, PICTURE, 3), (24, 26, 32), np.uint8)

        def distance(middles: Array) -> Array:
            found: Array = np.hypot(x - middles[table, 0], y - middles[table, 1])
            return found

        picture[distance(self._beacon) <= BEACON_RADIUS] = (46, 160, 67)
        picture[np.abs(distance(self._destination) - UNIT_RADIUS) <= 0.25] = (210, 153, 34)
        picture[distance(self._unit) <= UNIT_RADIUS] = (230, 237, 243)
        return picture


def _length(vectors: Array) -> Array:
    lengths: Array = np.hypot(vectors[..., 0], vectors[..., 1])
    return lengths


def _on_map(cells: IntArray) -> NDArray[np.bool_]:
    return (cells >= 0) & (cells < WIDTH)


@dataclass(frozen=True, kw_only=True)
class OracleBot:
    """Walks straight to the middle of the beacon."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        beacon = Rows.of(game, tables, seats).observation["map"][:, BEACON]
        total = np.maximum(beacon.sum(axis=(1, 2)), 1)
        # A disc is symmetric, so the mean of its cells is its middle.
        x = (beacon.sum(axis=1) * np.arange(WIDTH)).sum(axis=1) // total
        y = (beacon.sum(axis=2) * np.arange(WIDTH)).sum(axis=1) // total
        return {"order": np.full(len(tables), MOVE, np.int32), "target": (y * WIDTH + x).astype(np.int32)}
