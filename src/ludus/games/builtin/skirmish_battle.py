"""One tick of skirmish at many tables: who fights whom, who walks where, who dies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_rules import (
    ADVANCE,
    ATTACK,
    BASE,
    GATHER,
    NO_OP,
    SIDES,
    SLOTS,
    TOWARDS_MIDDLE,
    WORKER,
)
from ludus.games.builtin.skirmish_state import State, length

Flags = NDArray[np.bool_]

_HALF = rules.PATCHES // 2


def train(state: State) -> None:
    first = state.queue[:, :, 0]
    state.trained += first > 0
    done = (first > 0) & (state.trained >= rules.TRAIN_TICKS[first])
    if done.any():
        _note(state, done, first)
        place(state, done, first)
        rest = state.queue[done][:, 1:]
        state.queue[done, :-1] = rest
        state.queue[done, -1] = 0
        state.trained[done] = 0


def _note(state: State, where: Flags, kinds: Array) -> None:
    """Bases [tables, sides] have trained units of these kinds."""
    tables, sides = np.nonzero(where)
    kind = kinds[tables, sides]
    before = state.made[tables, sides].sum(axis=1)
    listed = before < rules.BUILD_ORDER
    state.build_order[tables[listed], sides[listed], before[listed]] = kind[listed]
    state.made[tables, sides, kind - WORKER] += 1


def place(state: State, where: Flags, kinds: Array | int) -> None:
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
    state.x[at] = state.x[tables, sides, 0] + TOWARDS_MIDDLE[sides] * (1 + aside)
    state.y[at] = state.y[tables, sides, 0] + TOWARDS_MIDDLE[sides] * (1 - aside)
    state.order[at] = np.where(kind == WORKER, GATHER, NO_OP)
    state.target[at] = sides * _HALF + slots % _HALF
    state.digging[at] = 0
    state.carries[at] = False


def gather(state: State) -> None:
    workers = np.flatnonzero(state.alive & (state.order == GATHER))
    if not len(workers):
        return
    x, y, carries = state.x.take(workers), state.y.take(workers), state.carries.take(workers)
    side = workers // SLOTS
    home = side * SLOTS
    to_base = length(state.x.take(home) - x, state.y.take(home) - y)
    delivers = carries & (to_base <= rules.BASE_REACH)
    earned = np.bincount(side[delivers], minlength=state.resources.size) * rules.LOAD
    state.resources += earned.astype(np.int32).reshape(state.resources.shape)

    target = state.target.take(workers)
    patch = side // SIDES * rules.PATCHES + target
    to_patch = length(state.patch_x.take(patch) - x, state.patch_y.take(patch) - y)
    holds = state.patch.take(patch) > 0
    digs = ~carries & (to_patch <= rules.REACH) & holds
    digging = state.digging.take(workers) + digs
    loaded = digs & (digging >= rules.DIG_TICKS)
    loaded[loaded] = _served(patch[loaded], state.patch)
    dug = np.bincount(patch[loaded], minlength=state.patch.size) * rules.LOAD
    state.patch -= dug.astype(np.int32).reshape(state.patch.shape)

    leaves = ~carries & ~holds
    state.digging.put(workers, np.where(loaded | leaves, 0, digging))
    state.carries.put(workers, (carries & ~delivers) | loaded)
    # From an empty patch to the next of its own side.
    first = side % SIDES * _HALF
    state.target.put(workers, np.where(leaves, first + (target - first + 1) % _HALF, target))


def _served(patch: IntArray, left: NDArray[np.int32]) -> Flags:
    """Which of those who want a load of these patches get one: the first, as long as there is some left."""
    order = np.argsort(patch, kind="stable")
    in_order = patch[order]
    before = np.arange(len(patch)) - np.searchsorted(in_order, in_order)
    served = np.empty(len(patch), np.bool_)
    served[order] = before * rules.LOAD < left.take(in_order)
    return served


_TRACKED = 8.0
"""An attack on an enemy ends when no unit of the side is this near to it."""
_NOWHERE = 1e6


def tick(state: State, *, heroes: int) -> None:
    """Lets one tick pass, in place. `heroes`: how many a side has."""
    state.tick += 1
    if heroes:
        _send_waves(state)
        _respawn(state)
        _heal(state, heroes)
    else:
        train(state)
    _fight_and_walk(state)
    if not heroes:
        gather(state)


def _send_waves(state: State) -> None:
    due = state.tick % rules.WAVE_TICKS == 1
    if due.any():
        where = np.repeat(due[:, None], rules.SIDES, axis=1)
        for kind in rules.FIGHTERS:
            place(state, where, kind)
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
            at[:] = np.where(back, at[:, :, :1] + TOWARDS_MIDDLE[:, None], at)


def _heal(state: State, heroes: int) -> None:
    units = (slice(None), slice(None), slice(1, 1 + heroes))
    x, y, health, kind = (array[units] for array in (state.x, state.y, state.health, state.kind))
    apart = length(x - state.x[:, :, :1], y - state.y[:, :, :1])
    healed = np.minimum(health + rules.HEALING, rules.HEALTH[kind] * rules.HERO_HEALTH)
    health[:] = np.where(state.alive[units] & (apart <= rules.HEALING_REACH), healed, health)


def _fight_and_walk(state: State) -> None:
    fighters, enemies = _choose_enemies(state)
    x, y = state.x.take(enemies), state.y.take(enemies)
    apart = length(x - state.x.take(fighters), y - state.y.take(fighters))
    reach = rules.RANGE[state.kind.take(fighters)] + (state.kind.take(enemies) == BASE)
    strikes = apart <= reach

    walks = state.alive & (state.order != NO_OP) & (state.order != ATTACK)
    walks.put(fighters, False)
    walkers = np.flatnonzero(walks)
    far = ~strikes
    goals = _goals(state, walkers, x[far], y[far])
    left = _walk(state, np.concatenate([walkers, fighters[far]]), *goals)[: len(walkers)]
    arrives = (left <= rules.ARRIVED) & (state.order.take(walkers) != GATHER)
    state.order.put(walkers[arrives], NO_OP)
    _strike(state, fighters[strikes], enemies[strikes])


def _choose_enemies(state: State) -> tuple[IntArray, IntArray]:
    """The units that fight in this tick, and whom each of them fights."""
    used = 1 + int(np.flatnonzero(state.alive.any(axis=(0, 1)))[-1])
    # The dead are far away from everybody.
    x, y = (np.where(state.alive, at, np.float32(_NOWHERE)).reshape(-1, SLOTS)[:, :used] for at in (state.x, state.y))
    watches = ((state.order == NO_OP) & (state.kind != WORKER)) | (state.order == ADVANCE)
    alert = np.flatnonzero(state.alive & watches)
    side = alert // SLOTS
    apart = _squares(x[side ^ 1], y[side ^ 1], state.x.take(alert), state.y.take(alert))
    to_base = np.sqrt(apart[:, 0])
    apart[:, 0] = np.inf
    nearest = apart.argmin(axis=1)
    to_unit = np.sqrt(apart[np.arange(len(alert)), nearest])
    sees_unit, sees_base = to_unit <= rules.NOTICE, to_base <= rules.NOTICE
    base_first = sees_base & (~sees_unit | (to_base + np.float32(rules.BASE_LAST) < to_unit))
    nearest[base_first] = 0
    notices = sees_unit | sees_base
    fighters, enemies = alert[notices], ((side ^ 1) * SLOTS + nearest)[notices]

    attackers, targets = _attacks(state)
    if len(attackers):
        side = attackers // SLOTS
        tracked = _squares(x[side], y[side], state.x.take(targets), state.y.take(targets)).min(axis=1)
        lost = tracked > _TRACKED**2
        state.order.put(attackers[lost], NO_OP)
        fighters = np.concatenate([fighters, attackers[~lost]])
        enemies = np.concatenate([enemies, targets[~lost]])
    return fighters, enemies


def _attacks(state: State) -> tuple[IntArray, IntArray]:
    """The units that attack, and whom."""
    attackers = np.flatnonzero(state.alive & (state.order == ATTACK))
    return attackers, (attackers // SLOTS ^ 1) * SLOTS + state.target.take(attackers)


def _goals(state: State, walkers: IntArray, enemy_x: Array, enemy_y: Array) -> tuple[Array, Array]:
    """Where those go who walk, then those who are after an enemy."""
    gathers = np.flatnonzero(state.order.take(walkers) == GATHER)
    workers = walkers[gathers]
    home = workers // SLOTS * SLOTS
    patch = workers // (SIDES * SLOTS) * rules.PATCHES + state.target.take(workers)
    carries = state.carries.take(workers)
    goals = []
    for at, goal, patch_at, enemy in (
        (state.x, state.goal_x, state.patch_x, enemy_x),
        (state.y, state.goal_y, state.patch_y, enemy_y),
    ):
        wanted = goal.take(walkers)
        wanted[gathers] = np.where(carries, at.take(home), patch_at.take(patch))
        goals.append(np.concatenate([wanted, enemy]))
    return goals[0], goals[1]


def _walk(state: State, units: IntArray, goal_x: Array, goal_y: Array) -> Array:
    """One tick's way towards the goals; returns what is left of it."""
    x, y = state.x.take(units), state.y.take(units)
    way_x, way_y = goal_x - x, goal_y - y
    left = np.maximum(length(way_x, way_y), np.float32(1e-6))
    share = np.minimum(rules.SPEED[state.kind.take(units)] / left, np.float32(1))
    state.x.put(units, x + way_x * share)
    state.y.put(units, y + way_y * share)
    rest: Array = left * (1 - share)
    return rest


def _strike(state: State, strikers: IntArray, struck: IntArray) -> None:
    if not len(strikers):
        return
    damage = rules.DAMAGE[state.kind.take(strikers), state.kind.take(struck)]
    damage = damage * np.where(state.hero.take(strikers), rules.HERO_DAMAGE, 1)
    taken = np.bincount(struck, damage, state.health.size).astype(np.int32)
    state.health -= taken.reshape(state.health.shape)
    dead = struck[state.health.take(struck) <= 0]
    if len(dead):
        state.health.put(dead, 0)
        state.alive.put(dead, False)
        state.respawn_at.put(dead, state.tick.take(dead // (SIDES * SLOTS)) + rules.RESPAWN_TICKS)
        # An attack ends with its target: whoever comes into the slot next was not named.
        attackers, targets = _attacks(state)
        state.order.put(attackers[~state.alive.take(targets)], NO_OP)


def _squares(x: Array, y: Array, to_x: Array, to_y: Array) -> Array:
    """[rows, slots]: squared distances of the units in x and y [rows, slots] from one place a row."""
    across, up = x - to_x[:, None], y - to_y[:, None]
    across *= across
    up *= up
    across += up
    return across
