"""Draws a table of skirmish to an RGB picture, with numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_rules import BASE, BOW, CELLS, HORSE, SIDES, SPEAR, WORKER
from ludus.games.builtin.skirmish_state import State
from ludus.games.builtin.skirmish_view import cells_of, visible_cells

PIXELS = 512
SCALE = PIXELS / rules.MAP

Picture = NDArray[np.uint8]
Colour = tuple[int, int, int]

GROUND: Colour = (46, 60, 44)
GRID: Colour = (52, 67, 50)
PATCH_COLOUR: Colour = (90, 200, 220)
LOADED: Colour = (150, 240, 255)
SIDE_COLOURS: tuple[Colour, Colour] = ((235, 92, 72), (84, 146, 255))
DARK: Colour = (16, 18, 20)
LIGHT: Colour = (240, 240, 240)

_RADIUS = {BASE: 22, WORKER: 5, SPEAR: 8, HORSE: 8, BOW: 8}
_Y, _X = np.mgrid[:PIXELS, :PIXELS]


def draw(state: State, table: int, side: int | None = None) -> Picture:
    """[512, 512, 3]. The whole table, or only what one side sees, the rest in the dark.

    Bases are squares, workers small discs, spears triangles, horses diamonds, bows rings; heroes have a light
    rim. The bar above a unit is its health. The base of side 0 (red) is at the lower left.
    """
    picture = np.empty((PIXELS, PIXELS, 3), np.uint8)
    picture[:] = GROUND
    cell = PIXELS // CELLS
    picture[::cell] = GRID
    picture[:, ::cell] = GRID
    lit = _lit(state, table, side)
    for patch in np.flatnonzero(state.patch[table] > 0).tolist():
        place = (state.patch_x[table, patch], state.patch_y[table, patch])
        if lit is not None and not lit[cells_of(*place)]:
            continue
        x, y = _pixel(*place)
        size = 4 + round(5 * int(state.patch[table, patch]) / rules.PATCH_AMOUNT)
        _paint(picture, x, y, size, BOW, PATCH_COLOUR)
        _paint(picture, x, y, size - 3, HORSE, PATCH_COLOUR)
    if lit is not None:
        dark = np.kron(~lit.reshape(CELLS, CELLS)[::-1], np.ones((cell, cell), np.bool_))
        picture[dark] = (picture[dark] * 0.4).astype(np.uint8)
    for owner in range(SIDES):
        for slot in np.flatnonzero(state.alive[table, owner]).tolist():
            at = (table, owner, slot)
            if lit is None or owner == side or lit[cells_of(state.x[at], state.y[at])]:
                _draw_unit(picture, state, table, owner, slot)
    left = max(0.0, 1.0 - float(state.tick[table]) / rules.LAST_TICK)
    picture[-4:] = DARK
    picture[-4:, : round(PIXELS * left)] = LIGHT
    return picture


def _lit(state: State, table: int, side: int | None) -> NDArray[np.bool_] | None:
    """[cells] that the side sees, on the map as it is drawn; None if all is shown."""
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
        _paint(picture, x, y, 2, BASE, LOADED)
    full = int(rules.HEALTH[kind]) * (rules.HERO_HEALTH if hero else 1)
    health = max(0.0, int(state.health[at]) / full)
    if health < 1.0 or kind == BASE:
        left, top = x - radius, max(0, y - radius - 6)
        _fill(picture, top, left, 2 * radius, DARK)
        _fill(picture, top, left, round(2 * radius * health), (90, 220, 90))


def _fill(picture: Picture, top: int, left: int, width: int, colour: Colour) -> None:
    picture[top : top + 3, max(0, left) : max(0, left + width)] = colour


def _paint(picture: Picture, x: int, y: int, radius: int, kind: int, colour: Colour) -> None:
    """The shape of a kind of unit, around (x, y)."""
    box = (slice(max(0, y - radius), y + radius + 1), slice(max(0, x - radius), x + radius + 1))
    across, down = np.abs(_X[box] - x), _Y[box] - y
    if kind == BASE:
        inside = np.ones(across.shape, np.bool_)
    elif kind == SPEAR:
        inside = 2 * across <= down + radius
    elif kind == HORSE:
        inside = across + np.abs(down) <= radius
    else:
        apart = across**2 + down**2
        inside = apart <= radius**2
        if kind == BOW:
            inside &= apart >= (radius // 2) ** 2
    picture[box][inside] = colour
