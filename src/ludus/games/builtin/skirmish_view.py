"""Observations and pictures of skirmish. A side sees through the fog, with its own base at the lower left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_battle import State
from ludus.games.pictures import colour_of_team

KIND, OWN, ENEMY, HERO, HEALTH, X, Y, CARRIES, SELF = range(9)
"""Features of an entity; the first is the number of its kind."""
ORDER = SELF + 1  # first of the flags for the order of an own unit: move, advance, attack, gather
FEATURES = ORDER + rules.GATHER

OWN_UNITS, OWN_BASE, ENEMY_UNITS, ENEMY_BASE, PATCH_HERE, VISIBLE = range(6)  # planes of the minimap
PLANES = VISIBLE + 1

TIME, RESOURCES = 0, 1
COUNTS = slice(2, 2 + len(rules.TRAINED))
QUEUED = slice(COUNTS.stop, COUNTS.stop + len(rules.TRAINED))
USED, PROGRESS, BASE_HEALTH = range(QUEUED.stop, QUEUED.stop + 3)
SEEN = slice(BASE_HEALTH + 1, BASE_HEALTH + 1 + len(rules.TRAINED))
SCALARS = SEEN.stop
HERO_SCALARS = 3  # a hero's x, y and health, after the other scalars
SKILL_SCALARS = 1 + len(rules.FIGHTERS)  # with skills also the share of its waiting time that is left, and its kind
RESOURCE_UNIT, COUNT_UNIT = 200.0, 10.0
WHOLE = rules.SIDES * (len(rules.TRAINED) + 3)

PIXELS = 512
SCALE = PIXELS / rules.MAP

Picture = NDArray[np.uint8]
Colour = tuple[int, int, int]

GROUND: Colour = (46, 60, 44)
GRID: Colour = (52, 67, 50)
PATCH_COLOUR: Colour = (90, 200, 220)
LOADED: Colour = (150, 240, 255)
SIDE_COLOURS = (colour_of_team(0), colour_of_team(1))
DARK: Colour = (16, 18, 20)
LIGHT: Colour = (240, 240, 240)

_RADIUS = {rules.BASE: 22, rules.WORKER: 5, rules.SPEAR: 8, rules.HORSE: 8, rules.BOW: 8}
_Y, _X = np.mgrid[:PIXELS, :PIXELS]


def _discs() -> NDArray[np.uint64]:
    """[unit, base or neither, cell, words]: the cells in sight of a unit in a cell, as bits."""
    middle = (np.arange(rules.CELLS) + 0.5) * rules.CELL
    x, y = np.tile(middle, rules.CELLS), np.repeat(middle, rules.CELLS)
    apart = np.hypot(x[:, None] - x, y[:, None] - y)
    sights = (rules.SIGHT[rules.WORKER], rules.SIGHT[rules.BASE], -1.0)
    return np.packbits(np.stack([apart <= sight for sight in sights]), axis=2).view(np.uint64)


_DISCS = _discs()


def cells_of(x: Array, y: Array) -> IntArray:
    column, row = ((at / rules.CELL).astype(np.int64).clip(0, rules.CELLS - 1) for at in (x, y))
    cells: IntArray = row * rules.CELLS + column
    return cells


def turned(at: Array, side: Array) -> Array:
    """Coordinates as the side sees them, or back: the map makes a half turn for side 1."""
    seen: Array = np.where(side.reshape(-1, *[1] * (at.ndim - 1)) == 0, at, np.float32(rules.MAP) - at)
    return seen


@dataclass(frozen=True, slots=True)
class SideViews:
    """Row i is what side `sides[i]` of table `tables[i]` sees."""

    entities: NDArray[np.float32]
    length: NDArray[np.int32]
    things: NDArray[np.int8]
    """[rows, ENTITIES]: listed entities: own slot, rules.SLOTS + enemy slot, or 2 * rules.SLOTS + patch; then -1."""
    minimap: NDArray[np.int8]
    scalars: NDArray[np.float32]
    whole: NDArray[np.float32]
    """Numbers of both sides without fog, own side first, for the critic."""


def visible_cells(state: State, tables: IntArray, sides: IntArray) -> NDArray[np.bool_]:
    """[rows, cells] on the map as the side sees it."""
    x, y = (turned(at[tables, sides], sides) for at in (state.x, state.y))
    sight = np.where(state.alive[tables, sides], state.kind[tables, sides] == rules.BASE, 2)
    seen = np.bitwise_or.reduce(_DISCS[sight, cells_of(x, y)], axis=1)
    return np.unpackbits(seen.view(np.uint8), axis=1).view(np.bool_)


def see(state: State, tables: IntArray, sides: IntArray) -> SideViews:
    num = len(tables)
    both = np.stack([sides, 1 - sides], axis=1)
    at = (tables[:, None], both)
    units = (num, rules.SIDES * rules.SLOTS)
    xs = np.concatenate([state.x[at].reshape(units), state.patch_x[tables]], axis=1)
    ys = np.concatenate([state.y[at].reshape(units), state.patch_y[tables]], axis=1)
    xs, ys = turned(xs, sides), turned(ys, sides)
    cells = cells_of(xs, ys)
    visible = visible_cells(state, tables, sides)
    present = np.concatenate([state.alive[at].reshape(units), state.patch[tables] > 0], axis=1)
    present[:, rules.SLOTS :] &= np.take_along_axis(visible, cells[:, rules.SLOTS :], axis=1)

    found = np.flatnonzero(present)
    row, thing = found // rules.ENTITIES, found % rules.ENTITIES
    length = present.sum(axis=1, dtype=np.int32)
    place = np.arange(len(found)) - (length.cumsum() - length)[row]
    own, is_unit = thing < rules.SLOTS, thing < rules.SIDES * rules.SLOTS
    side = (tables * rules.SIDES + sides)[row]
    unit = np.where(own, side * rules.SLOTS + thing, (side ^ 1) * rules.SLOTS + thing - rules.SLOTS) * is_unit
    patch = tables[row] * rules.PATCHES + np.maximum(thing - rules.SIDES * rules.SLOTS, 0)
    kind = np.where(is_unit, state.kind.take(unit), rules.PATCH)
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

    plane = np.where(is_unit, np.where(own, OWN_UNITS, ENEMY_UNITS) + (kind == rules.BASE), PATCH_HERE)
    counts = np.bincount(
        (row * PLANES + plane) * rules.CELLS**2 + cells.take(found), minlength=num * PLANES * rules.CELLS**2
    )
    minimap = counts.astype(np.int8).reshape(num, PLANES, rules.CELLS**2)
    minimap[:, VISIBLE] = visible
    kinds = np.bincount((row * 2 + ~own) * rules.NUM_KINDS + kind, minlength=num * 2 * rules.NUM_KINDS)
    return SideViews(
        entities=entities,
        length=length,
        things=things,
        minimap=minimap.reshape(num, PLANES, rules.CELLS, rules.CELLS),
        scalars=_scalars(state, tables, sides, kinds.reshape(num, 2, rules.NUM_KINDS)),
        whole=_whole(state, tables, both),
    )


def _scalars(state: State, tables: IntArray, sides: IntArray, kinds: IntArray) -> NDArray[np.float32]:
    """`kinds`: [rows, own or enemy, kinds], the numbers in sight."""
    trained = list(rules.TRAINED)
    scalars = np.zeros((len(tables), SCALARS), np.float32)
    queue = state.queue[tables, sides]
    scalars[:, TIME] = 1.0 - state.tick[tables] / rules.LAST_TICK
    scalars[:, RESOURCES] = state.resources[tables, sides] / RESOURCE_UNIT
    scalars[:, COUNTS], scalars[:, SEEN] = (kinds[:, owner, trained] / COUNT_UNIT for owner in (0, 1))
    scalars[:, QUEUED] = (queue[:, :, None] == trained).sum(axis=1) / rules.QUEUE
    scalars[:, USED] = state.alive[tables, sides].sum(axis=1) / rules.SLOTS
    scalars[:, PROGRESS] = state.trained[tables, sides] / rules.TRAIN_TICKS.max()
    scalars[:, BASE_HEALTH] = state.health[tables, sides, 0] / rules.HEALTH[rules.BASE]
    return scalars


def _whole(state: State, tables: IntArray, both: IntArray) -> NDArray[np.float32]:
    at = (tables[:, None], both)
    alive, kind = state.alive[at], state.kind[at]
    health = (state.health[at] * alive).sum(axis=2)
    base = state.health[at][:, :, 0] / rules.HEALTH[rules.BASE]
    numbers = [(alive & (kind == each)).sum(axis=2) / COUNT_UNIT for each in rules.TRAINED]
    numbers += [state.resources[at] / RESOURCE_UNIT, base, health / rules.HEALTH[rules.BASE]]
    return np.concatenate(numbers, axis=1).astype(np.float32)


def draw(state: State, table: int, side: int | None = None) -> Picture:
    """RGB [512, 512, 3]: the whole table, or what one side sees with the rest darkened.

    Bases are squares, workers small discs, spears triangles, horses diamonds, bows rings; heroes have a light
    rim. The bar above a unit is its health. The base of side 0 (red) is at the lower left.
    """
    picture = np.empty((PIXELS, PIXELS, 3), np.uint8)
    picture[:] = GROUND
    cell = PIXELS // rules.CELLS
    picture[::cell] = GRID
    picture[:, ::cell] = GRID
    lit = _lit(state, table, side)
    for patch in np.flatnonzero(state.patch[table] > 0).tolist():
        place = (state.patch_x[table, patch], state.patch_y[table, patch])
        if lit is not None and not lit[cells_of(*place)]:
            continue
        x, y = _pixel(*place)
        size = 4 + round(5 * int(state.patch[table, patch]) / rules.PATCH_AMOUNT)
        _paint(picture, x, y, size, rules.BOW, PATCH_COLOUR)
        _paint(picture, x, y, size - 3, rules.HORSE, PATCH_COLOUR)
    if lit is not None:
        dark = np.kron(~lit.reshape(rules.CELLS, rules.CELLS)[::-1], np.ones((cell, cell), np.bool_))
        picture[dark] = (picture[dark] * 0.4).astype(np.uint8)
    for owner in range(rules.SIDES):
        for slot in np.flatnonzero(state.alive[table, owner]).tolist():
            at = (table, owner, slot)
            if lit is None or owner == side or lit[cells_of(state.x[at], state.y[at])]:
                _draw_unit(picture, state, table, owner, slot)
    left = max(0.0, 1.0 - float(state.tick[table]) / rules.LAST_TICK)
    picture[-4:] = DARK
    picture[-4:, : round(PIXELS * left)] = LIGHT
    return picture


def _lit(state: State, table: int, side: int | None) -> NDArray[np.bool_] | None:
    """[cells] that the side sees, on the map as drawn; None: all are shown."""
    if side is None:
        return None
    seen: NDArray[np.bool_] = visible_cells(state, np.array([table]), np.array([side]))[0]
    return seen if side == 0 else seen[::-1]


def _pixel(x: float, y: float) -> tuple[int, int]:
    return round(float(x) * SCALE), round(PIXELS - float(y) * SCALE)


def _draw_unit(picture: Picture, state: State, table: int, owner: int, slot: int) -> None:
    at = (table, owner, slot)
    kind, hero = int(state.kind[at]), bool(state.hero[at])
    x, y = _pixel(state.x[at], state.y[at])
    radius = _RADIUS[kind] + 4 * hero
    _paint(picture, x, y, radius + 2, kind, LIGHT if hero else DARK)
    _paint(picture, x, y, radius, kind, SIDE_COLOURS[owner])
    if state.carries[at]:
        _paint(picture, x, y, 2, rules.BASE, LOADED)
    full = int(rules.HEALTH[kind]) * (rules.HERO_HEALTH if hero else 1)
    health = max(0.0, int(state.health[at]) / full)
    if health < 1.0 or kind == rules.BASE:
        left, top = x - radius, max(0, y - radius - 6)
        for width, colour in ((2 * radius, DARK), (round(2 * radius * health), (90, 220, 90))):
            picture[top : top + 3, max(0, left) : max(0, left + width)] = colour


def _paint(picture: Picture, x: int, y: int, radius: int, kind: int, colour: Colour) -> None:
    """Paint the shape of a kind of unit around (x, y)."""
    box = (slice(max(0, y - radius), y + radius + 1), slice(max(0, x - radius), x + radius + 1))
    across, down = np.abs(_X[box] - x), _Y[box] - y
    if kind == rules.BASE:
        inside = np.ones(across.shape, np.bool_)
    elif kind == rules.SPEAR:
        inside = 2 * across <= down + radius
    elif kind == rules.HORSE:
        inside = across + np.abs(down) <= radius
    else:
        apart = across**2 + down**2
        inside = apart <= radius**2
        if kind == rules.BOW:
            inside &= apart >= (radius // 2) ** 2
    picture[box][inside] = colour
