"""What a side of skirmish sees through the fog, on a map turned so that its base is at the lower left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_rules import BASE, CELLS, PATCH, SIDES, SLOTS
from ludus.games.builtin.skirmish_state import State

KIND, OWN, ENEMY, HERO, HEALTH, X, Y, CARRIES, SELF = range(9)
"""Features of an entity; the first is the number of its kind."""
ORDER = SELF + 1
"""The first of the flags of an own unit's order: move, advance, attack, gather."""
FEATURES = ORDER + rules.GATHER

OWN_UNITS, OWN_BASE, ENEMY_UNITS, ENEMY_BASE, PATCH_HERE, VISIBLE = range(6)
"""Planes of the minimap."""
PLANES = VISIBLE + 1

TIME, RESOURCES = 0, 1
COUNTS = slice(2, 2 + len(rules.TRAINED))
QUEUED = slice(COUNTS.stop, COUNTS.stop + len(rules.TRAINED))
USED, PROGRESS, BASE_HEALTH = range(QUEUED.stop, QUEUED.stop + 3)
SEEN = slice(BASE_HEALTH + 1, BASE_HEALTH + 1 + len(rules.TRAINED))
SCALARS = SEEN.stop
HERO_SCALARS = 3
"""After the other scalars, for a seat that is a hero: its x, y and health."""
RESOURCE_UNIT, COUNT_UNIT = 200.0, 10.0
WHOLE = SIDES * (len(rules.TRAINED) + 3)


def _discs() -> NDArray[np.uint64]:
    """[unit, base or neither, cell, words]: the cells in sight of one that is in a cell, as bits."""
    middle = (np.arange(CELLS) + 0.5) * rules.CELL
    x, y = np.tile(middle, CELLS), np.repeat(middle, CELLS)
    apart = np.hypot(x[:, None] - x, y[:, None] - y)
    sights = (rules.SIGHT[rules.WORKER], rules.SIGHT[BASE], -1.0)
    return np.packbits(np.stack([apart <= sight for sight in sights]), axis=2).view(np.uint64)


_DISCS = _discs()


def cells_of(x: Array, y: Array) -> IntArray:
    column, row = ((at / rules.CELL).astype(np.int64).clip(0, CELLS - 1) for at in (x, y))
    cells: IntArray = row * CELLS + column
    return cells


def turned(at: Array, side: Array) -> Array:
    """Places as the side sees them, or back: the map makes a half turn for side 1."""
    seen: Array = np.where(side.reshape(-1, *[1] * (at.ndim - 1)) == 0, at, np.float32(rules.MAP) - at)
    return seen


@dataclass(frozen=True, slots=True)
class SideViews:
    """Row i is what side `sides[i]` of table `tables[i]` sees."""

    entities: NDArray[np.float32]
    length: NDArray[np.int32]
    things: NDArray[np.int8]
    """[rows, ENTITIES]: what is listed: own slot, SLOTS + enemy slot, or 2 * SLOTS + patch; then -1."""
    minimap: NDArray[np.int8]
    scalars: NDArray[np.float32]
    whole: NDArray[np.float32]
    """Of both sides, own first, whatever the fog: for the critic."""


def visible_cells(state: State, tables: IntArray, sides: IntArray) -> NDArray[np.bool_]:
    """[rows, cells], as the side sees the map."""
    x, y = (turned(at[tables, sides], sides) for at in (state.x, state.y))
    sight = np.where(state.alive[tables, sides], state.kind[tables, sides] == BASE, 2)
    seen = np.bitwise_or.reduce(_DISCS[sight, cells_of(x, y)], axis=1)
    return np.unpackbits(seen.view(np.uint8), axis=1).view(np.bool_)


def see(state: State, tables: IntArray, sides: IntArray) -> SideViews:
    num = len(tables)
    both = np.stack([sides, 1 - sides], axis=1)
    at = (tables[:, None], both)
    units = (num, SIDES * SLOTS)
    xs = np.concatenate([state.x[at].reshape(units), state.patch_x[tables]], axis=1)
    ys = np.concatenate([state.y[at].reshape(units), state.patch_y[tables]], axis=1)
    xs, ys = turned(xs, sides), turned(ys, sides)
    cells = cells_of(xs, ys)
    visible = visible_cells(state, tables, sides)
    present = np.concatenate([state.alive[at].reshape(units), state.patch[tables] > 0], axis=1)
    present[:, SLOTS:] &= np.take_along_axis(visible, cells[:, SLOTS:], axis=1)

    found = np.flatnonzero(present)
    row, thing = found // rules.ENTITIES, found % rules.ENTITIES
    length = present.sum(axis=1, dtype=np.int32)
    place = np.arange(len(found)) - (length.cumsum() - length)[row]
    own, is_unit = thing < SLOTS, thing < SIDES * SLOTS
    side = (tables * SIDES + sides)[row]
    unit = np.where(own, side * SLOTS + thing, (side ^ 1) * SLOTS + thing - SLOTS) * is_unit
    patch = tables[row] * rules.PATCHES + np.maximum(thing - SIDES * SLOTS, 0)
    kind = np.where(is_unit, state.kind.take(unit), PATCH)
    hero = is_unit & state.hero.take(unit)
    full = np.where(is_unit, rules.HEALTH[kind] * np.where(hero, rules.HERO_HEALTH, 1), rules.PATCH_AMOUNT)
    order = np.where(own, state.order.take(unit), rules.NO_OP)

    entities = np.zeros((num, rules.ENTITIES, FEATURES), np.float32)
    shown = np.zeros((len(found), FEATURES), np.float32)
    shown[:, KIND] = kind
    shown[:, OWN] = own
    shown[:, ENEMY] = is_unit & ~own
    shown[:, HERO] = hero
    shown[:, HEALTH] = np.where(is_unit, state.health.take(unit), state.patch.take(patch)) / full
    shown[:, X] = xs.take(found) / np.float32(rules.MAP)
    shown[:, Y] = ys.take(found) / np.float32(rules.MAP)
    shown[:, CARRIES] = own & state.carries.take(unit)
    busy = np.flatnonzero(order)
    shown[busy, ORDER + order[busy] - 1] = 1.0
    at_place = row * rules.ENTITIES + place
    entities.reshape(-1, FEATURES)[at_place] = shown
    things = np.full((num, rules.ENTITIES), -1, np.int8)
    things.put(at_place, thing)

    plane = np.where(is_unit, np.where(own, OWN_UNITS, ENEMY_UNITS) + (kind == BASE), PATCH_HERE)
    counts = np.bincount(
        (row * PLANES + plane) * CELLS**2 + cells.take(found), minlength=num * PLANES * CELLS**2
    )
    minimap = counts.astype(np.int8).reshape(num, PLANES, CELLS**2)
    minimap[:, VISIBLE] = visible
    kinds = np.bincount((row * 2 + ~own) * rules.NUM_KINDS + kind, minlength=num * 2 * rules.NUM_KINDS)
    return SideViews(
        entities=entities,
        length=length,
        things=things,
        minimap=minimap.reshape(num, PLANES, CELLS, CELLS),
        scalars=_scalars(state, tables, sides, kinds.reshape(num, 2, rules.NUM_KINDS)),
        whole=_whole(state, tables, both),
    )


def _scalars(state: State, tables: IntArray, sides: IntArray, kinds: IntArray) -> NDArray[np.float32]:
    """`kinds` [rows, own or not, kinds]: how many are in sight."""
    trained = list(rules.TRAINED)
    scalars = np.zeros((len(tables), SCALARS), np.float32)
    queue = state.queue[tables, sides]
    scalars[:, TIME] = 1.0 - state.tick[tables] / rules.LAST_TICK
    scalars[:, RESOURCES] = state.resources[tables, sides] / RESOURCE_UNIT
    scalars[:, COUNTS], scalars[:, SEEN] = (kinds[:, owner, trained] / COUNT_UNIT for owner in (0, 1))
    scalars[:, QUEUED] = (queue[:, :, None] == trained).sum(axis=1) / rules.QUEUE
    scalars[:, USED] = state.alive[tables, sides].sum(axis=1) / SLOTS
    scalars[:, PROGRESS] = state.trained[tables, sides] / rules.TRAIN_TICKS.max()
    scalars[:, BASE_HEALTH] = state.health[tables, sides, 0] / rules.HEALTH[BASE]
    return scalars


def _whole(state: State, tables: IntArray, both: IntArray) -> NDArray[np.float32]:
    at = (tables[:, None], both)
    alive, kind = state.alive[at], state.kind[at]
    health = (state.health[at] * alive).sum(axis=2)
    base = state.health[at][:, :, 0] / rules.HEALTH[BASE]
    numbers = [(alive & (kind == each)).sum(axis=2) / COUNT_UNIT for each in rules.TRAINED]
    numbers += [state.resources[at] / RESOURCE_UNIT, base, health / rules.HEALTH[BASE]]
    return np.concatenate(numbers, axis=1).astype(np.float32)
