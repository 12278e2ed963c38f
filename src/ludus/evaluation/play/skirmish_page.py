"""Skirmish as a person plays it: the map of one side through its fog, and orders by mouse."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import IntArray, Tree, allocate
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish import SkirmishTables
from ludus.games.builtin.skirmish_battle import State
from ludus.games.builtin.skirmish_rules import ADVANCE, ATTACK, GATHER, MOVE, NO_OP, SIDES, SLOTS
from ludus.games.builtin.skirmish_view import cells_of, visible_cells
from ludus.games.game import GameBatch, GameSource, Seat

KINDS = ("base", "worker", "spear", "horse", "bow")
ORDERS = {"move": MOVE, "advance": ADVANCE, "attack": ATTACK, "gather": GATHER}
TRAINS = {KINDS[kind]: number for kind, number in rules.TRAIN.items()}
SKILL = "skill"
SKILLS = {rules.SPEAR: "aid", rules.HORSE: "charge", rules.BOW: "volley"}
"""What the skill of a hero of this kind is called."""
SIDE_NAMES = ("red", "blue")
_TABLE = np.array([0])


class SkirmishView:
    """The map is turned so that the person's base is at the lower left, as its seat sees it."""

    hides = True
    real_time = True
    score_range = (-1.0, 1.0)

    def seat_names(self, source: GameSource) -> list[str]:
        """red and blue; of heroes: red spear, red horse, ..., numbered where a side has several of a kind."""
        with closing(source.tables(1)) as tables:
            heroes, line_ups = _skirmish(tables).heroes, _skirmish(tables).line_ups or (_skirmish(tables).heroes,) * 2
        if not heroes:
            return list(SIDE_NAMES)
        names = []
        for side, kinds in zip(SIDE_NAMES, line_ups, strict=True):
            for place, kind in enumerate(kinds):
                number = f" {kinds[: place + 1].count(kind)}" if kinds.count(kind) > 1 else ""
                names.append(f"{side} {KINDS[kind]}{number}")
        return names

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> dict[str, Any]:
        table = _skirmish(tables)
        side = None if seat is None else table.spec.teams[seat]
        state = table.state
        lit = None if side is None else visible_cells(state, _TABLE, np.array([side]))[0]
        return {
            "kind": "skirmish",
            "tick": int(state.tick[0]),
            "last_tick": rules.LAST_TICK,
            "side": side,
            "heroes": len(table.heroes),
            "own": 1 + seat % len(table.heroes) if seat is not None and table.heroes else None,
            "units": _units(state, side, lit),
            "patches": _patches(state, side, lit),
            "fog": None if lit is None else "".join("01"[bit] for bit in lit.tolist()),
            "sides": [_side(state, one) if side in (None, one) else None for one in range(SIDES)],
            "skill": _skill(table, seat) if seat is not None and table.line_ups else None,
        }

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        names, table = ["nothing", *ORDERS, *(f"train {kind}" for kind in TRAINS)], _skirmish(tables)
        if not table.heroes:
            return names
        return names[: rules.NUM_HERO_ACTIONS] + [SKILL] * bool(table.line_ups)

    def written(self, shown: dict[str, Any], names: Sequence[str] = ()) -> str:
        raise NotImplementedError("skirmish is played by mouse")


def _units(state: State, side: int | None, lit: NDArray[np.bool_] | None) -> list[list[Any]]:
    """[id, kind, side, x, y, health, order, carries, hero] of every unit that is to be seen."""
    units = []
    full = state.full_health()[0]
    for owner in range(SIDES):
        for slot in np.flatnonzero(state.alive[0, owner]).tolist():
            at = (0, owner, slot)
            x, y = _turned(side, state.x[at], state.y[at])
            if lit is not None and owner != side and not lit[cells_of(np.array(x), np.array(y))]:
                continue
            theirs = side is not None and owner != side
            units.append(
                [
                    SLOTS * (owner if side is None else theirs) + slot,
                    int(state.kind[at]),
                    owner,
                    round(x, 2),
                    round(y, 2),
                    round(int(state.health[at]) / int(full[owner, slot]), 3),
                    0 if theirs else int(state.order[at]),
                    0 if theirs else int(state.carries[at]),
                    int(state.hero[at]),
                ]
            )
    return units


def _patches(state: State, side: int | None, lit: NDArray[np.bool_] | None) -> list[list[Any]]:
    """[id, x, y, share that is left]."""
    patches = []
    for patch in np.flatnonzero(state.patch[0] > 0).tolist():
        x, y = _turned(side, state.patch_x[0, patch], state.patch_y[0, patch])
        if lit is None or lit[cells_of(np.array(x), np.array(y))]:
            left = round(int(state.patch[0, patch]) / rules.PATCH_AMOUNT, 3)
            patches.append([SIDES * SLOTS + patch, round(x, 2), round(y, 2), left])
    return patches


def _side(state: State, side: int) -> dict[str, Any]:
    """Facts that only the side itself knows."""
    queue = [int(kind) for kind in state.queue[0, side] if kind]
    resources, units = int(state.resources[0, side]), int(state.alive[0, side].sum())
    room = len(queue) < rules.QUEUE and units + len(queue) < SLOTS
    return {
        "resources": resources,
        "queue": queue,
        "progress": round(int(state.trained[0, side]) / int(rules.TRAIN_TICKS[queue[0]]), 2) if queue else 0,
        "base": round(int(state.health[0, side, 0]) / int(rules.HEALTH[0]), 3),
        "train": [
            {"kind": KINDS[kind], "cost": int(rules.COST[kind]), "can": room and resources >= int(rules.COST[kind])}
            for kind in rules.TRAINED
        ],
    }


def _skill(table: SkirmishTables, seat: Seat) -> dict[str, Any]:
    """The skill of the seat's hero: its name, whether it can be used now, and the ticks that it has to wait."""
    at = (0, table.spec.teams[seat], 1 + seat % len(table.heroes))
    wait = max(0, int(table.state.ready_at[at]) - int(table.state.tick[0]))
    can = bool(table.view.to_act[0, seat] and table.view.legal[0]["action"][0, seat, rules.SKILL])
    return {"name": SKILLS[int(table.state.kind[at])], "can": can, "wait": wait}


def _turned(side: int | None, x: Any, y: Any) -> tuple[float, float]:
    if side == 1:
        return rules.MAP - float(x), rules.MAP - float(y)
    return float(x), float(y)


class Commander:
    """Turns a person's orders into the seat's decisions, one order a tick, as the game has it."""

    def __init__(self, tables: GameBatch, seat: Seat) -> None:
        self._tables = _skirmish(tables)
        self._seat = seat
        self._waiting: deque[dict[str, Any]] = deque()

    def give(self, orders: Sequence[Any]) -> None:
        """Orders as the page sends them; a ValueError says what is wrong with one. One for more units than a
        decision may name becomes several."""
        for order in [_checked(order) for order in orders]:
            units = order.pop("units")
            if "train" in order or self._tables.heroes:
                self._waiting.append(order | {"units": units[:1]})
                continue
            for first in range(0, len(units), rules.PICKS):
                self._waiting.append(order | {"units": units[first : first + rules.PICKS]})

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def decide(self, kind_arrays: Mapping[str, Any]) -> tuple[Tree, str]:
        """The next order that can still be carried out, else nothing, for one tick; and what was given up.
        `kind_arrays` are the seat's action arrays."""
        missed = ""
        while self._waiting:
            order = self._waiting.popleft()
            try:
                return self._action(order, kind_arrays), missed
            except ValueError as error:
                missed = str(error)
        return _nothing(kind_arrays), missed

    def _action(self, order: Mapping[str, Any], kind_arrays: Mapping[str, Any]) -> Tree:
        action = _nothing(kind_arrays)
        legal = {name: mask[0, self._seat] for name, mask in self._tables.view.legal[0].items()}
        if "train" in order:
            number = TRAINS[order["train"]]
            if number >= len(legal["action"]) or not legal["action"][number]:
                raise ValueError(f"no {order['train']} now: resources, room or a free place on order is missing")
            action["action"][0] = number
            return action
        if order["order"] == SKILL:
            return self._skill(action, legal["action"])
        number = ORDERS[order["order"]]
        if self._tables.heroes and number >= rules.NUM_HERO_ACTIONS:
            raise ValueError(f"a hero cannot {order['order']}")
        things = self._tables.things(0, self._seat)  # the unit of each row of the entity list that the seat saw
        action["action"][0] = number
        if "units" in action:
            rows = _rows(things, [unit for unit in order["units"] if 0 < unit < SLOTS])
            if not len(rows):
                raise ValueError("the units of that order are gone")
            action["units"][0, : len(rows)] = rows
        if number == ATTACK:
            target = _rows(things, [order["target"]])
            if not len(target) or not legal["target_unit"][target[0]]:
                raise ValueError("the target is out of sight")
            action["target_unit"][0] = target[0]
        elif number in (MOVE, ADVANCE):
            x, y = order["point"]
            action["target_point"][0] = cells_of(np.array(x), np.array(y))
        if not legal["action"][number]:
            raise ValueError(f"nobody can {order['order']} now")
        return action

    def _skill(self, action: Tree, legal: NDArray[np.bool_]) -> Tree:
        if not self._tables.line_ups:
            raise ValueError("nobody has a skill in this game: its option `heroes` names heroes with skills")
        skill = _skill(self._tables, self._seat)
        if not legal[rules.SKILL]:
            why = f"has to wait for {skill['wait']} ticks" if skill["wait"] else "finds nobody in reach"
            raise ValueError(f"no {skill['name']} now: it {why}")
        action["action"][0] = rules.SKILL
        return action


def _rows(things: IntArray, wanted: Sequence[int]) -> IntArray:
    return np.flatnonzero(np.isin(things, wanted))


def _nothing(kind_arrays: Mapping[str, Any]) -> Tree:
    """Do nothing, and look again after one tick."""
    action = allocate(kind_arrays, (1,))
    if "units" in action:
        action["units"][:] = -1
    assert action["action"][0] == NO_OP
    return action


def _checked(order: Any) -> dict[str, Any]:
    if not isinstance(order, dict):
        raise ValueError(f"an order is an object, got {order!r}")
    if "train" in order:
        if order["train"] not in TRAINS:
            raise ValueError(f"train one of {', '.join(TRAINS)}, not {order['train']!r}")
        return {"train": order["train"], "units": [0]}
    if order.get("order") == SKILL:
        return {"order": SKILL, "units": [0]}
    if order.get("order") not in ORDERS:
        raise ValueError(f"an order is one of {', '.join([*ORDERS, SKILL])}, not {order.get('order')!r}")
    units, point, target = order.get("units"), order.get("point"), order.get("target")
    if not isinstance(units, list) or not all(type(unit) is int for unit in units):
        raise ValueError(f"the units of an order are their numbers, got {units!r}")
    number = ORDERS[order["order"]]
    if number in (MOVE, ADVANCE) and not _is_point(point):
        raise ValueError(f"a point is [x, y] from 0 to {rules.MAP:g}, got {point!r}")
    if number == ATTACK and type(target) is not int:
        raise ValueError(f"a target is the number of a unit, got {target!r}")
    return {"order": order["order"], "units": units[:SLOTS] or [0], "point": point, "target": target}


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(isinstance(place, int | float) and 0 <= place <= rules.MAP for place in point)
    )


def _skirmish(tables: GameBatch) -> SkirmishTables:
    assert isinstance(tables, SkirmishTables)
    return tables
