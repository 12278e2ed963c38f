"""One tick of skirmish at many tables: units are trained, fight, walk and gather."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_rules import ADVANCE, ATTACK, BASE, GATHER, MOVE, NO_OP, WORKER
from ludus.games.builtin.skirmish_state import State

Flags = NDArray[np.bool_]

_HALF = rules.PATCHES // 2
_FIRST_PATCH = np.array([[0], [_HALF]])
_TOWARDS_MIDDLE = np.array([1.5, -1.5], np.float32)
_TRACKED = 8.0
"""An attack on an enemy ends when no unit of the side is this near to it."""


def tick(state: State, *, heroes: bool) -> None:
    """Lets one tick pass, in place."""
    state.tick += 1
    if heroes:
        _send_waves(state)
        _respawn(state)
        _heal(state)
    else:
        _train(state)
    _fight_and_walk(state)
    if not heroes:
        _gather(state)


def strength(state: State) -> NDArray[np.int64]:
    """[tables, sides]: the health of all that lives."""
    total: NDArray[np.int64] = (state.health * state.alive).sum(axis=2, dtype=np.int64)
    return total


def _train(state: State) -> None:
    first = state.queue[:, :, 0]
    state.trained += first > 0
    done = (first > 0) & (state.trained >= rules.TRAIN_TICKS[first])
    if done.any():
        _place(state, done, first)
        state.queue[done] = np.pad(state.queue[done][:, 1:], ((0, 0), (0, 1)))
        state.trained[done] = 0


def _place(state: State, where: Flags, kinds: Array | int) -> None:
    """A new unit beside each of these bases [tables, sides] with a free slot; workers begin to gather."""
    free = ~state.alive & ~state.hero
    tables, sides = np.nonzero(where & free.any(axis=2))
    slots = free[tables, sides].argmax(axis=1)
    kind = np.broadcast_to(kinds, where.shape)[tables, sides]
    at = (tables, sides, slots)
    state.alive[at] = True
    state.kind[at] = kind
    state.health[at] = rules.HEALTH[kind]
    # Spread a little by slot, so that units do not stand on one spot.
    aside = (slots % 5 - 2).astype(np.float32) * np.float32(0.25)
    state.x[at] = state.x[tables, sides, 0] + _TOWARDS_MIDDLE[sides] * (1 + aside)
    state.y[at] = state.y[tables, sides, 0] + _TOWARDS_MIDDLE[sides] * (1 - aside)
    state.order[at] = np.where(kind == WORKER, GATHER, NO_OP)
    state.target[at] = _FIRST_PATCH[sides, 0] + slots % _HALF
    state.digging[at] = 0
    state.carries[at] = False


def _send_waves(state: State) -> None:
    due = state.tick % rules.WAVE_TICKS == 1
    if due.any():
        where = np.repeat(due[:, None], rules.SIDES, axis=1)
        for kind in rules.FIGHTERS:
            _place(state, where, kind)
        waits = due[:, None, None] & state.alive & ~state.hero & (state.order == NO_OP)
        waits[:, :, 0] = False
        state.order[waits] = ADVANCE
        for goal, at in ((state.goal_x, state.x), (state.goal_y, state.y)):
            goal[:] = np.where(waits, at[:, ::-1, :1], goal)


def _respawn(state: State) -> None:
    back = state.hero & ~state.alive & (state.tick[:, None, None] >= state.respawn_at)
    if back.any():
        state.alive[back] = True
        state.health[back] = state.full_health()[back]
        state.order[back] = NO_OP
        for at in (state.x, state.y):
            at[:] = np.where(back, at[:, :, :1] + _TOWARDS_MIDDLE[:, None], at)


def _heal(state: State) -> None:
    apart = _length(state.x - state.x[:, :, :1], state.y - state.y[:, :, :1])
    heals = state.hero & state.alive & (apart <= rules.HEALING_REACH)
    healed = np.minimum(state.health + rules.HEALING, state.full_health())
    state.health[heals] = healed[heals]


def _fight_and_walk(state: State) -> None:
    used = 1 + int(np.flatnonzero(state.alive.any(axis=(0, 1)))[-1])
    alive, kind, order = (array[:, :, :used] for array in (state.alive, state.kind, state.order))
    x, y = state.x[:, :, :used], state.y[:, :, :used]
    other = (slice(None), slice(None, None, -1))
    enemy_x, enemy_y, enemy_alive, enemy_kind = x[other], y[other], alive[other], kind[other]

    across = x[..., None] - enemy_x[:, :, None]
    up = y[..., None] - enemy_y[:, :, None]
    apart = across * across
    apart += up * up
    avoided = np.where(enemy_alive, 0, np.inf).astype(np.float32)
    avoided[:, :, 0] += np.float32(rules.BASE_LAST**2)
    enemy = (apart + avoided[:, :, None]).argmin(axis=3)
    attacks = order == ATTACK
    if attacks.any():
        tracked = (np.where(alive[..., None], apart, np.inf).min(axis=2) <= _TRACKED**2) & enemy_alive
        named = np.minimum(state.target[:, :, :used], used - 1)
        lost = attacks & ~(np.take_along_axis(tracked, named, axis=2) & (named == state.target[:, :, :used]))
        order[lost] = NO_OP
        attacks &= ~lost
        enemy = np.where(attacks, named, enemy)

    enemy_is = np.take_along_axis(enemy_kind, enemy, axis=2)
    near_x, near_y = (np.take_along_axis(array, enemy, axis=2) for array in (enemy_x, enemy_y))
    to_enemy = _length(near_x - x, near_y - y)
    alert = ((order == NO_OP) & (kind != WORKER)) | (order == ADVANCE)
    notices = alert & (to_enemy <= rules.NOTICE) & np.take_along_axis(enemy_alive, enemy, axis=2)
    fights = alive & (attacks | notices)
    in_range = fights & (to_enemy <= rules.RANGE[kind] + (enemy_is == BASE))

    _walk(state, used, fights, in_range, near_x, near_y)
    _strike(state, in_range, enemy, enemy_is)


def _walk(state: State, used: int, fights: Flags, in_range: Flags, near_x: Array, near_y: Array) -> None:
    alive, kind, order, carries = (
        array[:, :, :used] for array in (state.alive, state.kind, state.order, state.carries)
    )
    x, y = state.x[:, :, :used], state.y[:, :, :used]
    gathers = order == GATHER
    walks = alive & (order != NO_OP) & (order != ATTACK)
    patch = np.where(gathers, state.target[:, :, :used], 0)
    rows = np.arange(len(x))[:, None, None]
    steps = []
    for at, near, goal, patch_at in (
        (x, near_x, state.goal_x, state.patch_x),
        (y, near_y, state.goal_y, state.patch_y),
    ):
        gather_at = np.where(carries, at[:, :, :1], patch_at[rows, patch])
        wanted = np.where(fights, near, np.where(gathers, gather_at, goal[:, :, :used]))
        steps.append(wanted - at)
    left = _length(*steps)
    share = np.minimum(rules.SPEED[kind] / np.maximum(left, np.float32(1e-6)), np.float32(1))
    share = np.where((walks | fights) & ~in_range, share, np.float32(0))
    for at, step in zip((x, y), steps, strict=True):
        at += step * share
        np.clip(at, 0, rules.MAP, out=at)
    arrives = walks & ~fights & ((order == MOVE) | (order == ADVANCE))
    arrives &= left * (1 - share) <= rules.ARRIVED
    order[arrives] = NO_OP


def _strike(state: State, in_range: Flags, enemy: Array, enemy_is: Array) -> None:
    tables, sides, slots = np.nonzero(in_range)
    if not len(tables):
        return
    at = (tables, sides, slots)
    damage = rules.DAMAGE[state.kind[at], enemy_is[at]] * np.where(state.hero[at], rules.HERO_DAMAGE, 1)
    struck = (tables * rules.SIDES + 1 - sides) * rules.SLOTS + enemy[at]
    taken = np.bincount(struck, damage, state.health.size).astype(np.int32)
    state.health -= taken.reshape(state.health.shape)
    dies = state.alive & (state.health <= 0)
    if dies.any():
        np.maximum(state.health, 0, out=state.health)
        state.alive[dies] = False
        state.respawn_at[dies] = state.tick[np.nonzero(dies)[0]] + rules.RESPAWN_TICKS


def _gather(state: State) -> None:
    works = state.alive & (state.order == GATHER)
    at = np.nonzero(works)
    tables, sides, _ = at
    if not len(tables):
        return
    x, y, patch = state.x[at], state.y[at], state.target[at]
    carries = state.carries[at]
    to_base = _length(state.x[tables, sides, 0] - x, state.y[tables, sides, 0] - y)
    delivers = carries & (to_base <= rules.BASE_REACH)
    earned = np.bincount(tables * rules.SIDES + sides, delivers * rules.LOAD, state.resources.size)
    state.resources += earned.astype(np.int32).reshape(state.resources.shape)

    to_patch = _length(state.patch_x[tables, patch] - x, state.patch_y[tables, patch] - y)
    holds = state.patch[tables, patch] > 0
    digs = ~carries & (to_patch <= rules.REACH) & holds
    digging = state.digging[at] + digs
    loaded = digs & (digging >= rules.DIG_TICKS)
    dug = np.bincount(tables * rules.PATCHES + patch, loaded * rules.LOAD, state.patch.size)
    state.patch -= dug.astype(np.int32).reshape(state.patch.shape)
    np.maximum(state.patch, 0, out=state.patch)

    state.digging[at] = np.where(loaded, 0, digging)
    state.carries[at] = (carries & ~delivers) | loaded
    first = _FIRST_PATCH[sides, 0]
    # From an empty patch to the next of its own side.
    state.target[at] = np.where(carries | holds, patch, first + (patch - first + 1) % _HALF)


def _length(x: Array, y: Array) -> Array:
    """Without `np.hypot`, which need not round alike on every machine."""
    length: Array = np.sqrt(x * x + y * y)
    return length
