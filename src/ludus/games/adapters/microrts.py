"""MicroRTS (gym-microrts 0.4): a small real-time strategy game. Its rules run in Java, inside this process.

A decision is the order of one idle unit: the unit is marked, its orders are one masked choice, and a seat with
several idle units decides for one after the other before time advances. docs/games/microrts.md explains why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ludus.data.checks import require_in
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Planes, Vector
from ludus.data.trees import IntArray, Tree
from ludus.games.adapters.microrts_java import (
    BOTS,
    NUM_ORDERS,
    NUMBER_FOR_SEAT,
    UNIT_TYPES,
    Map,
    Table,
    find_map,
    start_java,
)
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.pictures import colour_of_team
from ludus.games.tables import ArrayTables, GameDefaults

_LAYERS = (5, 5, 3, len(UNIT_TYPES) + 1, 6)
"""Number of values of health (0 to 4 and more), resources, owner (none, own, enemy), type and action of a cell."""
_PLANES = sum(_LAYERS) + 1
_SCALARS = 3 + len(UNIT_TYPES) + 4
_COST = np.array([0, 0, 10, 5, 1, 2, 2, 2])
_FULL_HEALTH = np.array([1, 1, 10, 4, 1, 4, 4, 1])
"""Cost and health by type: none, resource, then units."""
_STEPS_PER_TICK = 8
"""Most orders of a seat per tick, on average; actions take 5 ticks and more."""
_CELL = 40


@dataclass(frozen=True, kw_only=True)
class MicroRTS(GameDefaults):
    """Two seats with a base and a worker each; a seat without units has lost."""

    map_name: str
    """`8x8`, `16x16`, ... or the path of a map in the package, such as `maps/8x8/bases8x8.xml`."""
    max_ticks: int = 2_000
    """Ticks after which the game is a draw."""
    shaping: float = 0.5
    """Weight of the reward for a lead in material (resources, and units by cost and health), from -1 to 1. It is
    taken back when the game ends, so that the total of a game is 1, 0 or -1."""
    bot_milliseconds: int = 100
    """Time limit per tick of bots that search; some of them ignore it."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", max_ticks=self.max_ticks, bot_milliseconds=self.bot_milliseconds)
        require_in(self, "[0, 1]", shaping=self.shaping)

    @cached_property
    def spec(self) -> GameSpec:
        map_ = find_map(self.map_name)
        return GameSpec.symmetric(
            name=f"microrts {self.map_name}",
            num_seats=2,
            observation=ObservationSpec(
                parts={
                    # Not uint8, which networks scale by 1 / 255.
                    "map": Planes(channels=_PLANES, height=map_.height, width=map_.width, dtype="int8"),
                    "scalars": Vector(size=_SCALARS),
                }
            ),
            action=ActionSpec(heads={"order": Choice(num=NUM_ORDERS)}),
            max_length=self.max_ticks * _STEPS_PER_TICK,
            timed=True,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return MicroRTSTables(self, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), **{name: JavaBot(name) for name in BOTS}}


class MicroRTSTables(ArrayTables):
    """One Java game per table. The game has no chance, so seeds change nothing."""

    def __init__(self, source: MicroRTS, num_tables: int) -> None:
        super().__init__(source.spec, num_tables)
        self._source = source
        self._map: Map = find_map(source.map_name)
        java = start_java()
        self._tables = [Table(java, self._map, source.max_ticks, source.bot_milliseconds) for _ in range(num_tables)]
        self._lead = np.zeros(num_tables)
        """Lead in material of seat 0, from -1 to 1."""
        self._first_lead = np.zeros(num_tables)
        self._steps = np.zeros(num_tables, np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        for table in tables.tolist():
            self._tables[table].reset()
        self._start_episodes(tables)
        self._steps[tables] = 0
        self._lead[tables] = self._first_lead[tables] = self._leads(tables)
        self._show(tables)

    def step(self, actions: Actions) -> None:
        view, orders = self.view, actions[0]["order"]
        live = np.flatnonzero(~view.over)
        if not len(live):
            return
        rows, seats = np.nonzero(view.to_act[live])
        self._require_legal("order", live[rows], seats, orders[live[rows], seats])
        for table, seat in zip(live[rows].tolist(), seats.tolist(), strict=True):
            number = int(orders[table, seat])
            self._tables[table].order(seat, int(NUMBER_FOR_SEAT[seat, number]))
        for table in live.tolist():
            self._tables[table].advance()
        self._steps[live] += 1
        view.reward[live] = 0.0
        self._reward(live)
        self._show(live)

    def bot_order(self, name: str, table: int, seat: int) -> int:
        """The order of one of the game's bots, as the seat numbers orders."""
        return int(NUMBER_FOR_SEAT[seat, self._tables[table].bot_order(name, seat)])

    def render(self, table: int, seat: int | None = None) -> NDArray[np.uint8]:
        """Picture of the map, which both seats see whole: units are squares, buildings large ones."""
        _, resources, owner, kind, _ = self._tables[table].matrix
        picture = np.full((*owner.shape, _CELL, _CELL, 3), 24, np.uint8)
        for row, column in np.argwhere(kind > 0).tolist():
            unit = kind[row, column]
            side = (0, 30, 38, 34, 14, 20, 28, 20)[unit]
            edge = (_CELL - side) // 2
            colour = (90, 200, 90) if unit == 1 else colour_of_team(int(owner[row, column]) - 1)
            inside = slice(edge, edge + side)
            picture[row, column, inside, inside] = colour
            if unit == len(UNIT_TYPES):  # ranged units are hollow
                picture[row, column, edge + 5 : -edge - 5, edge + 5 : -edge - 5] = 24
            if unit > 1 and resources[row, column]:
                picture[row, column, edge : edge + 6, edge : edge + 6] = (90, 200, 90)
        return picture.swapaxes(1, 2).reshape(owner.shape[0] * _CELL, owner.shape[1] * _CELL, 3)

    def _leads(self, tables: IntArray) -> NDArray[np.float64]:
        matrix = np.stack([self._tables[table].matrix for table in tables.tolist()])
        stock = np.array([self._tables[table].resources for table in tables.tolist()], np.float64)
        health, carried, owner, kind = matrix[:, 0], matrix[:, 1], matrix[:, 2], matrix[:, 3]
        worth = _COST[kind] * health / _FULL_HEALTH[kind] + carried
        for seat in range(2):
            stock[:, seat] += (worth * (owner == seat + 1)).sum(axis=(1, 2))
        lead: NDArray[np.float64] = (stock[:, 0] - stock[:, 1]) / np.maximum(stock.sum(axis=1), 1e-9)
        return lead

    def _reward(self, live: IntArray) -> None:
        view = self.view
        lead = self._leads(live)
        over = np.array([self._tables[table].over for table in live.tolist()])
        over |= self._steps[live] >= self.spec.max_length
        lead = np.where(over, self._first_lead[live], lead)
        gained = self._source.shaping * (lead - self._lead[live])
        self._lead[live] = lead
        for row in np.flatnonzero(over).tolist():
            winner = self._tables[int(live[row])].winner
            score = 0.0 if winner < 0 else 1.0 - 2.0 * winner
            view.score[live[row]] = score, -score
            gained[row] += score
        view.reward[live, 0], view.reward[live, 1] = gained, -gained
        view.over[live] = over

    def _show(self, tables: IntArray) -> None:
        view = self.view
        for table in tables.tolist():
            game = self._tables[table]
            view.clock[table] = game.tick
            view.over[table] |= game.over
            for seat, side in enumerate(game.sides):
                view.to_act[table, seat] = bool(side.waiting) and not view.over[table]
        rows, seats = np.nonzero(view.to_act[tables])
        at = (tables[rows], seats)
        if not len(rows):
            return
        games = [self._tables[table] for table in at[0].tolist()]
        matrix = np.stack([game.matrix for game in games])
        marked = np.zeros((len(games), self._map.height * self._map.width), np.bool_)
        for row, (game, seat) in enumerate(zip(games, seats.tolist(), strict=True)):
            place = game.asked_place(seat)
            marked[row, place] = True
            for given, action in game.sides[seat].given:
                matrix[row, 4].flat[given] = action
            view.legal[0]["order"][at[0][row], seat] = game.sides[seat].legal[NUMBER_FOR_SEAT[seat]]
        turned = seats == 1
        matrix[turned, 2] = np.array([0, 2, 1])[matrix[turned, 2]]
        matrix[turned] = matrix[turned][:, :, ::-1, ::-1]
        marked[turned] = marked[turned][:, ::-1]
        planes = view.observation[0]["map"]
        first = 0
        for layer, values in enumerate(_LAYERS):
            shown = np.minimum(matrix[:, layer], values - 1)
            planes[at[0], at[1], first : first + values] = shown[:, None] == np.arange(values)[:, None, None]
            first += values
        planes[at[0], at[1], first] = marked.reshape(-1, self._map.height, self._map.width)
        view.observation[0]["scalars"][at] = self._scalars(games, seats, matrix, marked)

    def _scalars(
        self, games: list[Table], seats: IntArray, matrix: NDArray[np.int32], marked: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Time, resources of both sides, and the next unit: type, cell, health, load."""
        place = marked.argmax(axis=1)
        unit = matrix.reshape(len(games), 5, -1)[np.arange(len(games)), :, place]
        scalars = np.zeros((len(games), _SCALARS), np.float32)
        for row, (game, seat) in enumerate(zip(games, seats.tolist(), strict=True)):
            scalars[row, 0] = game.tick / self._source.max_ticks
            scalars[row, 1] = game.sides[seat].budget / 10
            scalars[row, 2] = game.resources[1 - seat] / 10
        scalars[np.arange(len(games)), 2 + unit[:, 3]] = 1.0
        tail = 3 + len(UNIT_TYPES)
        scalars[:, tail] = place // self._map.width / self._map.height
        scalars[:, tail + 1] = place % self._map.width / self._map.width
        scalars[:, tail + 2] = unit[:, 0] / 10
        scalars[:, tail + 3] = unit[:, 1]
        return scalars


@dataclass(frozen=True)
class JavaBot:
    """One of the game's own bots."""

    name: str

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        order_of = getattr(game, "bot_order", None)  # recorded tables wrap the game's own
        if order_of is None:
            raise TypeError(f"bot {self.name!r} plays only at tables of microrts, not {type(game).__name__}")
        rows = zip(tables.tolist(), seats.tolist(), strict=True)
        return {"order": np.array([order_of(self.name, *row) for row in rows], np.int32)}
