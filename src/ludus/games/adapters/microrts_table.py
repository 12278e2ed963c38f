"""One game of MicroRTS: asks one unit after the other for its order, then lets time pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.games.adapters.microrts_java import Java, Map
from ludus.games.adapters.microrts_orders import (
    ATTACK,
    DIRECTIONS,
    MASK_SIZE,
    MOVE,
    ORDERS,
    PRODUCE,
    REACH,
    WAIT,
    WAIT_TICKS,
    legal_orders,
    number_of,
)

_AROUND = np.array(DIRECTIONS).T + 1
"""Rows and columns of the four places around one, on a map with an edge."""


class Idle(NamedTuple):
    """A unit that needs an order, and where it is. Asking Java again would cost more than to remember."""

    unit: Any
    row: int
    column: int


class Side:
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
        self.sides = (Side(), Side())
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

    def _ask(self, side: Side) -> None:
        """Find out what the next unit may do; those that can only wait are not asked."""
        while side.waiting:
            side.legal = self._legal(side, side.waiting[-1])
            if side.legal[1:].any():
                return
            self._issue(side, side.waiting.pop(), 0)

    def _legal(self, side: Side, idle: Idle) -> NDArray[np.bool_]:
        java, mask = self._java, self._java.int_array(MASK_SIZE)
        java.unit_action.getValidActionArray(idle.unit, self.game, java.unit_types, mask, REACH, 1)
        free = np.ones(5, np.bool_)
        free[:4] = side.free[_AROUND[0] + idle.row, _AROUND[1] + idle.column]
        return legal_orders(np.array(mask), free, self._prices <= max(side.budget, 0))

    def _issue(self, side: Side, idle: Idle, number: int) -> None:
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
