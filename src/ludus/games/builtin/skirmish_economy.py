"""The economy of skirmish: bases train units, workers carry resources."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_rules import GATHER, NO_OP, SIDES, SLOTS, TOWARDS_MIDDLE, WORKER
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
