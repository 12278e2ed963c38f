"""MicroRTS in Java: starts it inside this process, finds its maps and makes its scripted players.

Only the jars of the package gym-microrts are used, not its Python code, which needs libraries of its time.
"""

from __future__ import annotations

import difflib
import importlib.util
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_JARS = ("microrts", "Coac", "Droplet", "GRojoA3N", "Izanagi", "MixedBot", "RojoBot", "TiamatBot", "UMSBot")
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-Xmx1g", "-Djava.awt.headless=true")
"""One thread for the collector: tables are played by many processes, one for each core."""

BOTS: Mapping[str, str] = {
    "passive": "ai.PassiveAI",
    "random_biased": "ai.RandomBiasedAI",
    "worker_rush": "ai.abstraction.WorkerRush",
    "light_rush": "ai.abstraction.LightRush",
    "naive_mcts": "ai.mcts.naivemcts.NaiveMCTS",
    "coac": "ai.coac.CoacAI",
    "droplet": "GNS.Droplet",
    "guided_rojo_a3n": "ai.competition.GRojoA3N.GuidedRojoA3N",
    "izanagi": "ai.competition.IzanagiBot.Izanagi",
    "mixed_bot": "ai.JZ.MixedBot",
    "rojo": "ai.competition.rojobot.Rojo",
    "tiamat": "ai.competition.tiamat.Tiamat",
}
"""Its scripted players -> their classes. Those from `coac` on are from its competitions."""


@dataclass(frozen=True)
class Map:
    """A map file and its size."""

    file: Path
    height: int
    width: int


def find_map(name: str) -> Map:
    """`maps/8x8/bases8x8.xml` (of the package), or `8x8` for a base and a worker each on a map of that
    size."""
    folder = _folder()
    short = {file.parent.name: file for file in sorted(folder.glob("maps/*/basesWorkers*x*[0-9].xml"))}
    file = short.get(name, folder / name)
    if not file.is_file():
        known = [*short, *(found.relative_to(folder).as_posix() for found in folder.glob("maps/**/*.xml"))]
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        offer = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(short))}"
        raise ValueError(f"microrts has no map {name!r}; {offer}")
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
        # The game and its players write what they do to the standard output, a line for each order.
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
        """A `rts.GameState` at its beginning."""
        return self._game_state(self._physical.load(str(map_file), self.unit_types), self.unit_types)

    def new_bot(self, name: str, milliseconds: int) -> Any:
        """An `ai.core.AI`; those that search get so long for a tick."""
        bot = self._find(BOTS[name])(self.unit_types)
        if isinstance(bot, self._budgeted) and bot.getTimeBudget() > 0:
            bot.setTimeBudget(milliseconds)
        return bot


@cache
def start_java() -> Java:
    """Once a process: a Java machine cannot be started again."""
    return Java()


UNIT_TYPES = ("resource", "base", "barracks", "worker", "light", "heavy", "ranged")
WAIT, MOVE, HARVEST, RETURN, PRODUCE, ATTACK = range(6)
"""Of the game."""
DIRECTIONS = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Row and column: up, right, down, left."""
REACH = 7
"""Attacks are aimed at the 7 by 7 places around a unit."""
WAIT_TICKS = 10
"""As long as the game's own players let a unit stand."""

_FIRST = {WAIT: 0, MOVE: 1, HARVEST: 5, RETURN: 9, PRODUCE: 13, ATTACK: 13 + 4 * len(UNIT_TYPES)}
NUM_ORDERS = _FIRST[ATTACK] + REACH * REACH


class Order(NamedTuple):
    """What one choice means, on the map as the game has it."""

    action: int
    direction: int = -1
    """Of a move, a harvest, a return or a production."""
    unit_type: int = -1
    """What is produced."""
    offset: tuple[int, int] = (0, 0)
    """Rows and columns from the unit to the place that it steps on, builds on or attacks."""


def _list_orders() -> list[Order]:
    orders = [Order(WAIT)]
    orders += [
        Order(action, direction, offset=DIRECTIONS[direction])
        for action in (MOVE, HARVEST, RETURN)
        for direction in range(4)
    ]
    orders += [
        Order(PRODUCE, direction, unit_type, DIRECTIONS[direction])
        for direction in range(4)
        for unit_type in range(len(UNIT_TYPES))
    ]
    middle = REACH // 2
    orders += [Order(ATTACK, offset=(row - middle, column - middle)) for row in range(REACH) for column in range(REACH)]
    return orders


ORDERS = _list_orders()
_NUMBERS = {order: number for number, order in enumerate(ORDERS)}


def _turned(order: Order) -> Order:
    row, column = order.offset
    direction = (order.direction + 2) % 4 if order.direction >= 0 else -1
    return order._replace(direction=direction, offset=(-row, -column))


NUMBER_FOR_SEAT = np.array([np.arange(NUM_ORDERS), [_NUMBERS[_turned(order)] for order in ORDERS]])
"""[seat, order]: an order of the game's map as the seat numbers it, and back: it is its own inverse."""

MASK_SIZE = 1 + 6 + 4 * 4 + len(UNIT_TYPES) + REACH * REACH
"""The game's own mask of a unit: that it is asked, kinds of action, directions of four of them, kinds of unit
that are produced, places that are attacked."""


def _places_in_masks() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Per order, where the game's mask has its kind of action, its direction or place, and what it produces;
    for an order without one of these, the kind of action again."""
    kinds = np.array([1 + order.action for order in ORDERS])
    details, types = kinds.copy(), kinds.copy()
    for number, order in enumerate(ORDERS):
        if order.action == ATTACK:
            details[number] = MASK_SIZE - REACH * REACH + number - _FIRST[ATTACK]
        elif order.action != WAIT:
            details[number] = 7 + 4 * (order.action - 1) + order.direction
        if order.action == PRODUCE:
            types[number] = 23 + order.unit_type
    return kinds, details, types


_KIND, _DETAIL, _TYPE = _places_in_masks()
_GROUND = np.array([order.direction if order.action in (MOVE, PRODUCE) else 4 for order in ORDERS])
_PRICE = np.array([order.unit_type for order in ORDERS])


def legal_orders(mask: NDArray[np.int32], free: NDArray[np.bool_], affordable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[orders] on the game's map, from its mask for a unit, which places around it are free (by direction,
    then True) and which kinds of unit can be paid for (then True)."""
    may = mask > 0
    legal: NDArray[np.bool_] = may[_KIND] & may[_DETAIL] & may[_TYPE] & free[_GROUND] & affordable[_PRICE]
    return legal


def number_of(action: Any, row: int, column: int) -> int:
    """The order that a `rts.UnitAction` is for a unit there, on the game's map; to wait if there is none."""
    kind = WAIT if action is None else action.getType()
    if kind in (MOVE, HARVEST, RETURN):
        return _FIRST[kind] + int(action.getDirection())
    if kind == PRODUCE:
        return _FIRST[kind] + int(action.getDirection()) * len(UNIT_TYPES) + int(action.getUnitType().ID)
    if kind == ATTACK:
        offset = (int(action.getLocationY()) - row, int(action.getLocationX()) - column)
        return _NUMBERS.get(Order(ATTACK, offset=offset), 0)
    return 0
