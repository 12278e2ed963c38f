"""A game of MicroRTS in Java, inside this process: its maps, its bots, the numbers of orders, and one table.

Only the jars of the package gym-microrts are used; its Python code needs outdated libraries.
"""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.games.seat_rows import nearest

_JARS = ("microrts", "Coac", "Droplet", "GRojoA3N", "Izanagi", "MixedBot", "RojoBot", "TiamatBot", "UMSBot")
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-Xmx1g", "-Djava.awt.headless=true")
"""The garbage collector uses one thread, because there is a process of tables for each core."""

BOTS: Mapping[str, str] = {
    "passive": "ai.PassiveAI",
    "random_biased": "ai.RandomBiasedAI",
    "worker_rush": "ai.abstraction.WorkerRush",
    "light_rush": "ai.abstraction.LightRush",
    "heavy_rush": "ai.abstraction.HeavyRush",
    "ranged_rush": "ai.abstraction.RangedRush",
    "naive_mcts": "ai.mcts.naivemcts.NaiveMCTS",
    "coac": "ai.coac.CoacAI",
    "droplet": "GNS.Droplet",
    "guided_rojo_a3n": "ai.competition.GRojoA3N.GuidedRojoA3N",
    "izanagi": "ai.competition.IzanagiBot.Izanagi",
    "mixed_bot": "ai.JZ.MixedBot",
    "rojo": "ai.competition.rojobot.Rojo",
    "tiamat": "ai.competition.tiamat.Tiamat",
}
"""Bots -> their classes. Those from `coac` on are from the competitions."""


@dataclass(frozen=True)
class Map:
    file: Path
    height: int
    width: int


def find_map(name: str) -> Map:
    """A map by its path in the package (`maps/8x8/bases8x8.xml`), or by its size, with a base and a worker each."""
    folder = _folder()
    short = {file.parent.name: file for file in sorted(folder.glob("maps/*/basesWorkers*x*[0-9].xml"))}
    file = short.get(name, folder / name)
    if not file.is_file():
        known = [*short, *(found.relative_to(folder).as_posix() for found in folder.glob("maps/**/*.xml"))]
        hint = nearest(name, known, cutoff=0.4, otherwise=f"there are {', '.join(sorted(short))}")
        raise ValueError(f"microrts has no map {name!r}{hint}")
    root = ElementTree.parse(file).getroot()
    return Map(file, int(root.attrib["height"]), int(root.attrib["width"]))


def _folder() -> Path:
    spec = importlib.util.find_spec("gym_microrts")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "'gym_microrts' is not installed; ludus games --install microrts adds it", name="gym_microrts"
        )
    return Path(spec.origin).parent / "microrts"


class Java:
    """The classes of MicroRTS that tables need."""

    def __init__(self) -> None:
        import jpype

        if not jpype.isJVMStarted():
            jars = [str(_folder() / f"{name}.jar") for name in _JARS]
            try:
                jpype.startJVM(*_JVM_OPTIONS, classpath=jars, convertStrings=False)
            except jpype.JVMNotFoundException:
                raise FileNotFoundError(
                    "microrts needs Java, which is not installed: apt-get install default-jre-headless"
                ) from None
        find = self._find = jpype.JClass
        # The game and its bots write a line per order to the standard output.
        nowhere = find("java.io.PrintStream")(find("java.io.OutputStream").nullOutputStream())
        find("java.lang.System").setOut(nowhere)
        find("java.lang.System").setErr(nowhere)
        self.int_array = jpype.JArray(jpype.JInt)
        self.unit_action = find("rts.UnitAction")
        self.player_action = find("rts.PlayerAction")
        self.unit_types = find("rts.units.UnitTypeTable")()
        self._game_state = find("rts.GameState")
        self._physical = find("rts.PhysicalGameState")
        self._budgeted = find("ai.core.AIWithComputationBudget")

    def new_game(self, map_file: Path) -> Any:
        return self._game_state(self._physical.load(str(map_file), self.unit_types), self.unit_types)

    def new_bot(self, name: str, milliseconds: int) -> Any:
        """A new `ai.core.AI`; those that search get this time per tick."""
        bot = self._find(BOTS[name])(self.unit_types)
        if isinstance(bot, self._budgeted) and bot.getTimeBudget() > 0:
            bot.setTimeBudget(milliseconds)
        return bot


@cache
def start_java() -> Java:
    """Once per process: a Java machine cannot be started again."""
    return Java()


UNIT_TYPES = ("resource", "base", "barracks", "worker", "light", "heavy", "ranged")
WAIT, MOVE, HARVEST, RETURN, PRODUCE, ATTACK = range(6)
"""The game's numbers of actions."""
DIRECTIONS = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Row and column: up, right, down, left."""
REACH = 7
"""An attack targets one of the 7 by 7 cells around a unit."""
WAIT_TICKS = 10
"""Duration of waiting, as the game's own bots use it."""


class Order(NamedTuple):
    """An option of the action head, on the map as the game has it."""

    action: int
    direction: int = -1
    """Direction of a move, a harvest, a return or a production."""
    unit_type: int = -1
    offset: tuple[int, int] = (0, 0)
    """Rows and columns from the unit to the cell that it enters, builds on or attacks."""


_WAYS = range(len(DIRECTIONS))
_CELLS = range(-(REACH // 2), REACH // 2 + 1)
ORDERS = [
    Order(WAIT),
    *(Order(action, way, offset=DIRECTIONS[way]) for action in (MOVE, HARVEST, RETURN) for way in _WAYS),
    *(Order(PRODUCE, way, unit_type, DIRECTIONS[way]) for way in _WAYS for unit_type in range(len(UNIT_TYPES))),
    *(Order(ATTACK, offset=(row, column)) for row in _CELLS for column in _CELLS),
]
NUM_ORDERS = len(ORDERS)
_NUMBERS = {order: number for number, order in enumerate(ORDERS)}


def _turned(order: Order) -> Order:
    row, column = order.offset
    direction = (order.direction + 2) % 4 if order.direction >= 0 else -1
    return order._replace(direction=direction, offset=(-row, -column))


NUMBER_FOR_SEAT = np.array([np.arange(NUM_ORDERS), [_NUMBERS[_turned(order)] for order in ORDERS]])
"""[seat, order]: converts between the game's numbers of orders and the seat's; it is its own inverse."""

MASK_SIZE = 1 + 6 + 4 * 4 + len(UNIT_TYPES) + REACH * REACH
"""The game's mask of a unit: whether it needs an order, actions, directions of four of them, produced units,
attacked cells."""


def _places_in_masks() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Per order, the places in the game's mask of its action, of its direction or cell, and of its produced unit; for
    an order without one of these, the place of its action."""
    kinds = np.array([1 + order.action for order in ORDERS])
    details, types = kinds.copy(), kinds.copy()
    for number, order in enumerate(ORDERS):
        if order.action == ATTACK:
            details[number] = MASK_SIZE - NUM_ORDERS + number
        elif order.action != WAIT:
            details[number] = 7 + 4 * (order.action - 1) + order.direction
        if order.action == PRODUCE:
            types[number] = 23 + order.unit_type
    return kinds, details, types


_KIND, _DETAIL, _TYPE = _places_in_masks()
_GROUND = np.array([order.direction if order.action in (MOVE, PRODUCE) else 4 for order in ORDERS])
_PRICE = np.array([order.unit_type for order in ORDERS])


def legal_orders(mask: NDArray[np.int32], free: NDArray[np.bool_], affordable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[orders] on the game's map, from its mask of a unit, the free cells around it (by direction, then True) and the
    affordable units (by type, then True)."""
    may = mask > 0
    legal: NDArray[np.bool_] = may[_KIND] & may[_DETAIL] & may[_TYPE] & free[_GROUND] & affordable[_PRICE]
    return legal


def number_of(action: Any, row: int, column: int) -> int:
    """The order of a `rts.UnitAction` for a unit at this cell; waiting if there is none."""
    kind = WAIT if action is None else int(action.getType())
    order = Order(WAIT)
    if kind == ATTACK:
        order = Order(ATTACK, offset=(int(action.getLocationY()) - row, int(action.getLocationX()) - column))
    elif kind != WAIT:
        way, unit_type = int(action.getDirection()), int(action.getUnitType().ID) if kind == PRODUCE else -1
        order = Order(kind, way, unit_type, DIRECTIONS[way])
    return _NUMBERS.get(order, 0)


_AROUND = np.array(DIRECTIONS).T + 1
"""Rows and columns of the four neighbours of a cell, on a map with an edge."""


class Idle(NamedTuple):
    """A unit that needs an order, with its cell, since asking Java again is slow."""

    unit: Any
    row: int
    column: int


@dataclass(slots=True)
class SeatOrders:
    """The orders of a seat in one tick."""

    orders: Any
    """The `rts.PlayerAction` under construction."""
    free: NDArray[np.bool_]
    """[rows, columns], with an edge: cells that no unit occupies or is about to enter."""
    budget: int
    """Resources not yet reserved for a production."""
    waiting: list[Idle] = field(default_factory=list)
    """Units that need an order; the next one is last."""
    legal: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Mask of orders for the next unit."""
    given: list[tuple[int, int]] = field(default_factory=list)
    """Flat cell and action of the units that have their order."""


class Table:
    """One table. The orders of both sides are issued together, when every idle unit has one."""

    def __init__(self, java: Java, map_: Map, max_ticks: int, bot_milliseconds: int) -> None:
        self._java = java
        self._map = map_
        self._max_ticks = max_ticks
        self._bot_milliseconds = bot_milliseconds
        self._costs = [int(kind.cost) for kind in java.unit_types.getUnitTypes()]
        self._prices = np.array([*self._costs, 0])
        """Costs by type of unit, then 0."""
        self._types = list(java.unit_types.getUnitTypes())
        self._bots: dict[tuple[str, int], Any] = {}
        self._bot_orders: dict[tuple[str, int], Any] = {}
        self.sides: tuple[SeatOrders, ...] = ()
        self.over = True
        self.winner = -1
        self.matrix: NDArray[np.int32] = np.zeros((5, map_.height, map_.width), np.int32)
        """Health, resources, owner, type and action at each cell, as seat 0 sees it."""
        self.resources = (0, 0)
        self.tick = 0

    def reset(self) -> None:
        self.game = self._java.new_game(self._map.file)
        self._bots.clear()
        self.over, self.winner = False, -1
        self._begin_tick()
        self._pass_time()  # at first no unit may have a choice

    def order(self, seat: int, number: int) -> None:
        """Give the next unit an order, numbered as on the game's map."""
        side = self.sides[seat]
        self._issue(side, side.waiting.pop(), number)
        self._ask(side)

    def advance(self) -> None:
        """Unless a unit still needs an order, advance until one does or the game ends."""
        if not any(side.waiting for side in self.sides):
            self._pass_time()

    def bot_order(self, name: str, seat: int) -> int:
        """The order of one of the game's bots for the next unit; waiting if that is illegal."""
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
        # The game indexes by column and row.
        free = np.zeros((self._map.height + 2, self._map.width + 2), np.bool_)
        free[1:-1, 1:-1] = np.array(game.getAllFree()).T
        new_orders = self._java.player_action
        self.sides = tuple(SeatOrders(new_orders(), free.copy(), budget) for budget in self.resources)
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
        """Compute the mask of the next unit; units that can only wait are skipped."""
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
