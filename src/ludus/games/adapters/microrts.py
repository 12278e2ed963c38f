"""MicroRTS (gym-microrts 0.4): a small real-time strategy game. Its rules run in Java, inside this process.

A unit that has nothing to do needs an order. One decision is the order of one unit: the unit is marked, its
orders are one masked choice, and a seat with several idle units is asked for one after the other before time
goes on. docs/games/microrts.md says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Planes, Vector
from ludus.data.trees import IntArray, Tree
from ludus.games.adapters.microrts_java import (
    ATTACK,
    BOTS,
    DIRECTIONS,
    MASK_SIZE,
    MOVE,
    NUM_ORDERS,
    NUMBER_FOR_SEAT,
    ORDERS,
    PRODUCE,
    REACH,
    UNIT_TYPES,
    WAIT,
    WAIT_TICKS,
    Java,
    Map,
    find_map,
    legal_orders,
    number_of,
    start_java,
)
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Bot, GameBatch, TableView
from ludus.games.pictures import colour_of_team

_AROUND = np.array(DIRECTIONS).T + 1
"""Rows and columns of the four places around one, on a map with an edge."""


class Idle(NamedTuple):
    """A unit that needs an order, and where it is. Asking Java again would cost more than to remember."""

    unit: Any
    row: int
    column: int


class SeatOrders:
    """What a seat does in one tick."""

    def __init__(self) -> None:
        self.waiting: list[Idle] = []
        """Units that need an order, the one that is asked last."""
        self.orders: Any = None
        """The `rts.PlayerAction` so far."""
        self.free: NDArray[np.bool_] = np.zeros((0, 0), np.bool_)
        """[rows, columns], with an edge: places that no unit is on or about to be."""
        self.budget = 0
        """Resources that are not yet promised to a production."""
        self.legal: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Orders for the unit that is asked."""
        self.given: list[tuple[int, int]] = []
        """Flat place and action of the units that have their order."""


class Table:
    """Orders of both sides reach the game together, when every idle unit has one."""

    def __init__(self, java: Java, map_: Map, max_ticks: int, bot_milliseconds: int) -> None:
        self._java = java
        self._map = map_
        self._max_ticks = max_ticks
        self._bot_milliseconds = bot_milliseconds
        self._costs = [int(kind.cost) for kind in java.unit_types.getUnitTypes()]
        self._prices = np.array([*self._costs, 0])
        """By kind of unit, then 0."""
        self._types = list(java.unit_types.getUnitTypes())
        self._bots: dict[tuple[str, int], Any] = {}
        self._bot_orders: dict[tuple[str, int], Any] = {}
        self.sides = (SeatOrders(), SeatOrders())
        self.over = True
        self.winner = -1
        self.matrix: NDArray[np.int32] = np.zeros((5, map_.height, map_.width), np.int32)
        """Health, resources, owner, kind and action at each place, as seat 0 sees it."""
        self.resources = (0, 0)
        self.tick = 0

    def reset(self) -> None:
        self.game = self._java.new_game(self._map.file)
        self._bots.clear()
        self.over, self.winner = False, -1
        self._begin_tick()
        self._pass_time()  # at first nobody may have anything to choose

    def order(self, seat: int, number: int) -> None:
        """For the unit that is asked, on the game's map."""
        side = self.sides[seat]
        self._issue(side, side.waiting.pop(), number)
        self._ask(side)

    def advance(self) -> None:
        """Once all seats that were asked have answered: until a unit needs an order or the game ends."""
        if not any(side.waiting for side in self.sides):
            self._pass_time()

    def bot_order(self, name: str, seat: int) -> int:
        """What one of the game's own players wants of the unit that is asked; to wait if it cannot be."""
        key = (name, seat)
        if key not in self._bots:
            self._bots[key] = self._java.new_bot(name, self._bot_milliseconds)
        if key not in self._bot_orders:
            self._bot_orders[key] = self._bots[key].getAction(seat, self.game)
        side = self.sides[seat]
        unit, row, column = side.waiting[-1]
        number = number_of(self._bot_orders[key].getAction(unit), row, column)
        return number if side.legal[number] else 0

    def asked_place(self, seat: int) -> int:
        _, row, column = self.sides[seat].waiting[-1]
        return row * self._map.width + column

    def _pass_time(self) -> None:
        while not self.over and not any(side.waiting for side in self.sides):
            self._end_tick()
        self.matrix = np.array(self.game.getMatrixObservation(0))

    def _end_tick(self) -> None:
        game = self.game
        for side in self.sides:
            game.issueSafe(side.orders)
        until = min(game.getNextChangeTime(), self._max_ticks)
        ended = game.cycle()
        while not ended and game.getTime() < until:
            ended = game.cycle()
        self.over = bool(ended) or game.getTime() >= self._max_ticks
        if self.over:
            self.winner = int(game.winner()) if ended else -1
        self._begin_tick()

    def _begin_tick(self) -> None:
        game = self.game
        self._bot_orders.clear()
        self.tick = int(game.getTime())
        self.resources = (int(game.getPlayer(0).getResources()), int(game.getPlayer(1).getResources()))
        # The game has it by column and row.
        free = np.zeros((self._map.height + 2, self._map.width + 2), np.bool_)
        free[1:-1, 1:-1] = np.array(game.getAllFree()).T
        for seat, side in enumerate(self.sides):
            side.waiting, side.given = [], []
            side.orders = self._java.player_action()
            side.free = free.copy()
            side.budget = self.resources[seat]
        for unit in game.getUnits():
            seat = unit.getPlayer()
            if seat < 0:
                continue
            action = game.getUnitAction(unit)
            if action is None:
                self.sides[seat].waiting.append(Idle(unit, int(unit.getY()), int(unit.getX())))
            elif action.getType() == PRODUCE:
                self.sides[seat].budget -= action.getUnitType().cost
        if not self.over:
            for side in self.sides:
                side.waiting.reverse()
                self._ask(side)

    def _ask(self, side: SeatOrders) -> None:
        """Find out what the next unit may do; those that can only wait are not asked."""
        while side.waiting:
            side.legal = self._legal(side, side.waiting[-1])
            if side.legal[1:].any():
                return
            self._issue(side, side.waiting.pop(), 0)

    def _legal(self, side: SeatOrders, idle: Idle) -> NDArray[np.bool_]:
        java, mask = self._java, self._java.int_array(MASK_SIZE)
        java.unit_action.getValidActionArray(idle.unit, self.game, java.unit_types, mask, REACH, 1)
        free = np.ones(5, np.bool_)
        free[:4] = side.free[_AROUND[0] + idle.row, _AROUND[1] + idle.column]
        return legal_orders(np.array(mask), free, self._prices <= max(side.budget, 0))

    def _issue(self, side: SeatOrders, idle: Idle, number: int) -> None:
        order, make = ORDERS[number], self._java.unit_action
        row, column = idle.row + order.offset[0], idle.column + order.offset[1]
        if order.action == WAIT:
            action = make(WAIT, WAIT_TICKS)
        elif order.action == ATTACK:
            action = make(ATTACK, column, row)
        elif order.action == PRODUCE:
            action = make(PRODUCE, order.direction, self._types[order.unit_type])
            side.budget -= self._costs[order.unit_type]
        else:
            action = make(order.action, order.direction)
        if order.action in (MOVE, PRODUCE):
            side.free[1 + row, 1 + column] = False
        side.given.append((idle.row * self._map.width + idle.column, order.action))
        side.orders.addUnitAction(idle.unit, action)


_LAYERS = (5, 5, 3, len(UNIT_TYPES) + 1, 6)
"""Values of health (0 to 4 and more), resources, owner (nobody, own, enemy), kind and action of a place."""
_PLANES = sum(_LAYERS) + 1
_SCALARS = 3 + len(UNIT_TYPES) + 4
_COST = np.array([0, 0, 10, 5, 1, 2, 2, 2])
_FULL_HEALTH = np.array([1, 1, 10, 4, 1, 4, 4, 1])
"""By kind, counted from nothing and resource; resources belong to nobody."""
_STEPS_PER_TICK = 8
"""Most orders that a seat gives in a tick, on average; units act for 5 ticks and more."""
_CELL = 40
"""Pixels of a place in a picture."""


@dataclass(frozen=True, kw_only=True)
class MicroRTS:
    """Two seats with a base and a worker each; whoever has no unit left has lost."""

    map_name: str
    """`8x8`, `16x16`, ... or the path of a map in the package, such as `maps/8x8/bases8x8.xml`."""
    max_ticks: int = 2_000
    """A draw after so many ticks."""
    shaping: float = 0.5
    """Reward ahead for a lead in material (units by their cost and health, resources), from -1 to 1 times
    this. It is taken back when the game ends, so that a game is worth 1, 0 or -1 in all."""
    bot_milliseconds: int = 100
    """Time that the scripted players that search have for a tick; some of them take what they want."""

    def __post_init__(self) -> None:
        for name in ("max_ticks", "bot_milliseconds"):
            if getattr(self, name) < 1:
                raise ValueError(f"MicroRTS.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.shaping <= 1:
            raise ValueError(f"MicroRTS.shaping must be from 0 to 1, got {self.shaping}")

    @cached_property
    def spec(self) -> GameSpec:
        map_ = find_map(self.map_name)
        return GameSpec.symmetric(
            name=f"microrts {self.map_name}",
            num_seats=2,
            observation=ObservationSpec(
                parts={
                    # Not uint8, which a network takes for shares of 255.
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

    def tree(self) -> None:
        """None: the tree cannot be walked."""


class MicroRTSTables:
    """One Java game per table. Nothing is left to chance, so seeds change nothing."""

    def __init__(self, source: MicroRTS, num_tables: int) -> None:
        self.spec = source.spec
        self.num_tables = num_tables
        self.view = TableView.allocate(source.spec, num_tables)
        self.view.over[:] = True  # until the first reset nothing can be stepped
        self._source = source
        self._map: Map = find_map(source.map_name)
        java = start_java()
        self._tables = [Table(java, self._map, source.max_ticks, source.bot_milliseconds) for _ in range(num_tables)]
        self._lead = np.zeros(num_tables)
        """Lead in material of seat 0, from -1 to 1."""
        self._first_lead = np.zeros(num_tables)
        self._steps = np.zeros(num_tables, np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        view = self.view
        for table in tables.tolist():
            self._tables[table].reset()
        for array in (view.reward, view.score, view.over, self._steps):
            array[tables] = 0
        self._lead[tables] = self._first_lead[tables] = self._leads(tables)
        self._show(tables)

    def step(self, actions: Actions) -> None:
        view, orders = self.view, actions[0]["order"]
        live = np.flatnonzero(~view.over)
        if not len(live):
            return
        rows, seats = np.nonzero(view.to_act[live])
        for table, seat in zip(live[rows].tolist(), seats.tolist(), strict=True):
            number = int(orders[table, seat])
            if not (0 <= number < NUM_ORDERS and view.legal[0]["order"][table, seat, number]):
                legal = np.flatnonzero(view.legal[0]["order"][table, seat]).tolist()
                raise ValueError(f"{self.spec.name}: table {table}, seat {seat}: order {number} is not of {legal}")
            self._tables[table].order(seat, int(NUMBER_FOR_SEAT[seat, number]))
        for table in live.tolist():
            self._tables[table].advance()
        self._steps[live] += 1
        view.reward[live] = 0.0
        self._reward(live)
        self._show(live)

    def bot_order(self, name: str, table: int, seat: int) -> int:
        """As the seat numbers orders."""
        return int(NUMBER_FOR_SEAT[seat, self._tables[table].bot_order(name, seat)])

    def render(self, table: int, seat: int | None = None) -> NDArray[np.uint8]:
        """A picture of the map, which both seats see whole: a square for a unit, large for buildings."""
        _, resources, owner, kind, _ = self._tables[table].matrix
        picture = np.full((*owner.shape, _CELL, _CELL, 3), 24, np.uint8)
        for row, column in np.argwhere(kind > 0).tolist():
            unit = kind[row, column]
            side = (0, 30, 38, 34, 14, 20, 28, 20)[unit]
            edge = (_CELL - side) // 2
            colour = (90, 200, 90) if unit == 1 else colour_of_team(int(owner[row, column]) - 1)
            inside = slice(edge, edge + side)
            picture[row, column, inside, inside] = colour
            if unit == len(UNIT_TYPES):  # those that shoot are hollow
                picture[row, column, edge + 5 : -edge - 5, edge + 5 : -edge - 5] = 24
            if unit > 1 and resources[row, column]:
                picture[row, column, edge : edge + 6, edge : edge + 6] = (90, 200, 90)
        return picture.swapaxes(1, 2).reshape(owner.shape[0] * _CELL, owner.shape[1] * _CELL, 3)

    def close(self) -> None:
        """Nothing to release: Java ends with the process."""

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
        """Time, resources of both sides, and the unit that is asked: kind, place, health, load."""
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
    """One of the game's own players."""

    name: str

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        order_of = getattr(game, "bot_order", None)  # the tables may be wrapped, to be recorded
        if order_of is None:
            raise TypeError(f"bot {self.name!r} plays only at tables of microrts, not {type(game).__name__}")
        rows = zip(tables.tolist(), seats.tolist(), strict=True)
        return {"order": np.array([order_of(self.name, *row) for row in rows], np.int32)}
