"""What is on the tables of skirmish, as arrays [tables, sides, ...], and how a table is set up."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.seeding import uniform

_PATCHES_AT = np.array([[-3.2, -2.8, -0.5, 1.8], [1.8, -0.7, -3.1, -2.9]])
"""[x and y, patch]: from the base of side 0, behind it and beside it."""


@dataclass(slots=True)
class State:
    """Units live in slots; slot 0 is the base, and a dead unit's slot is free for the next one.

    A unit is also known by one number for all axes, as numpy's `take` and `put` have it:
    (table * SIDES + side) * SLOTS + slot.
    """

    alive: NDArray[np.bool_]
    kind: NDArray[np.int8]
    health: NDArray[np.int32]
    hero: NDArray[np.bool_]
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    order: NDArray[np.int8]
    goal_x: NDArray[np.float32]
    goal_y: NDArray[np.float32]
    target: NDArray[np.int8]
    """The enemy's slot that an attack is for; the patch that a worker gathers from."""
    digging: NDArray[np.int8]
    """Ticks that a worker has dug."""
    carries: NDArray[np.bool_]
    respawn_at: NDArray[np.int32]
    """Tick at which a dead hero comes back."""
    resources: NDArray[np.int32]
    queue: NDArray[np.int8]
    """[tables, sides, QUEUE]: kinds to train, the one in training first; 0 is nothing."""
    trained: NDArray[np.int32]
    """Ticks that the first of the queue has been in training."""
    build_order: NDArray[np.int16]
    """[tables, sides, BUILD_ORDER]: the kinds that were trained, in order; -1 after the end."""
    made: NDArray[np.int16]
    """[tables, sides, kinds of `TRAINED`]: how many were trained."""
    patch: NDArray[np.int32]
    """[tables, PATCHES]: what is left in them."""
    patch_x: NDArray[np.float32]
    patch_y: NDArray[np.float32]
    tick: NDArray[np.int32]

    @classmethod
    def allocate(cls, num_tables: int) -> State:
        units, side = (num_tables, rules.SIDES, rules.SLOTS), (num_tables, rules.SIDES)
        patches = (num_tables, rules.PATCHES)
        return cls(
            alive=np.zeros(units, np.bool_),
            kind=np.zeros(units, np.int8),
            health=np.zeros(units, np.int32),
            hero=np.zeros(units, np.bool_),
            x=np.zeros(units, np.float32),
            y=np.zeros(units, np.float32),
            order=np.zeros(units, np.int8),
            goal_x=np.zeros(units, np.float32),
            goal_y=np.zeros(units, np.float32),
            target=np.zeros(units, np.int8),
            digging=np.zeros(units, np.int8),
            carries=np.zeros(units, np.bool_),
            respawn_at=np.zeros(units, np.int32),
            resources=np.zeros(side, np.int32),
            queue=np.zeros((*side, rules.QUEUE), np.int8),
            trained=np.zeros(side, np.int32),
            build_order=np.full((*side, rules.BUILD_ORDER), -1, np.int16),
            made=np.zeros((*side, len(rules.TRAINED)), np.int16),
            patch=np.zeros(patches, np.int32),
            patch_x=np.zeros(patches, np.float32),
            patch_y=np.zeros(patches, np.float32),
            tick=np.zeros(num_tables, np.int32),
        )

    def take(self, tables: IntArray) -> State:
        """A copy of these tables."""
        return State(*(getattr(self, name)[tables] for name in _FIELDS))

    def put(self, tables: IntArray, part: State) -> None:
        for name in _FIELDS:
            getattr(self, name)[tables] = getattr(part, name)

    def first(self, num_tables: int) -> State:
        """The first tables themselves, not a copy."""
        return State(*(getattr(self, name)[:num_tables] for name in _FIELDS))

    def full_health(self) -> NDArray[np.int32]:
        """[tables, sides, slots]: what each unit had when it was new."""
        full: NDArray[np.int32] = rules.HEALTH[self.kind] * np.where(self.hero, rules.HERO_HEALTH, 1)
        return full.astype(np.int32)


_FIELDS = tuple(field.name for field in fields(State))


def set_up(state: State, tables: IntArray, seeds: NDArray[np.uint64], heroes: tuple[int, ...]) -> None:
    """A new game at these tables, the same for both sides but for a half turn of the map.

    `heroes`: the kinds of a side's heroes; none if a seat commands the whole side.
    """
    new = State.allocate(len(tables))
    half = rules.PATCHES // 2
    draws = uniform(seeds[:, None], np.arange(2 + 2 * half))
    home = rules.HOME + 2.0 * (draws[:, :2] - 0.5)
    for patch_at, axis in ((new.patch_x, 0), (new.patch_y, 1)):
        jitter = 0.8 * (draws[:, 2 + half * axis : 2 + half * (axis + 1)] - 0.5)
        patch_at[:, :half] = home[:, axis, None] + _PATCHES_AT[axis] + jitter
        patch_at[:, half:] = rules.MAP - patch_at[:, :half]
    new.patch[:] = 0 if heroes else rules.PATCH_AMOUNT

    first = len(heroes) or rules.FIRST_WORKERS
    units = slice(1, 1 + first)
    new.alive[:, :, : 1 + first] = True
    new.kind[:, :, units] = heroes or rules.WORKER
    new.hero[:, :, units] = bool(heroes)
    new.health[:] = new.full_health() * new.alive
    offsets = 0.5 * (np.arange(first) - (first - 1) / 2)
    new.x[:, 0, : 1 + first] = home[:, :1]
    new.y[:, 0, : 1 + first] = home[:, 1:]
    new.x[:, 0, units] += 1.0 + offsets
    new.y[:, 0, units] += 1.0 - offsets
    new.x[:, 1] = rules.MAP - new.x[:, 0]
    new.y[:, 1] = rules.MAP - new.y[:, 0]
    new.resources[:] = 0 if heroes else rules.FIRST_RESOURCES
    state.put(tables, new)


def length(x: Array, y: Array) -> Array:
    """Of vectors. Without `np.hypot`, which need not round alike on every machine."""
    found: Array = np.sqrt(x * x + y * y)
    return found
