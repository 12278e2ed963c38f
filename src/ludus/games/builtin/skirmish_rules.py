"""The numbers of skirmish: kinds of unit, orders, actions, sizes and prices."""

from __future__ import annotations

import numpy as np

BASE, WORKER, SPEAR, HORSE, BOW, PATCH = range(6)
"""Kinds of entity. A spear beats a horse beats a bow beats a spear."""
NUM_KINDS = PATCH + 1
FIGHTERS = (SPEAR, HORSE, BOW)
TRAINED = (WORKER, *FIGHTERS)

SIDES = 2
SLOTS = 28
"""Units of a side, its base (slot 0) included."""
PATCHES = 8
"""Resource patches on the map, half of them near each base."""
ENTITIES = SIDES * SLOTS + PATCHES

MAP = 32.0
"""Width and height of the map."""
CELLS = 16
"""Cells of the minimap, and of target points, along each axis."""
CELL = MAP / CELLS
HOME = 5.0
"""Where the base of side 0 stands, in x and y; that of side 1 is opposite."""
TOWARDS_MIDDLE = np.array([1.5, -1.5], np.float32)
"""[side]: from a base to where its new units stand, in x and y."""

LAST_TICK = 512
LONGEST_DELAY = 8
PICKS = 8
"""Units that one command may name."""
QUEUE = 4
"""Units that a base may have ordered, the one in training included."""

NO_OP, MOVE, ADVANCE, ATTACK, GATHER = range(5)
"""Actions; the order that a unit carries out has the same number, with `NO_OP` for an idle one."""
TRAIN = {kind: GATHER + 1 + place for place, kind in enumerate(TRAINED)}
"""Kind -> the action that trains it."""
NUM_ACTIONS = GATHER + 1 + len(TRAINED)
NUM_HERO_ACTIONS = ATTACK + 1

# Indexed by kind.
HEALTH = np.array([1000, 60, 160, 150, 110, 0], np.int32)
SPEED = np.array([0.0, 0.6, 0.5, 0.8, 0.5, 0.0], np.float32)
RANGE = np.array([5.0, 0.8, 1.2, 1.2, 4.0, 0.0], np.float32)
COST = np.array([0, 40, 60, 60, 60, 0], np.int32)
TRAIN_TICKS = np.array([0, 8, 5, 5, 5, 0], np.int32)
SIGHT = np.array([9.0, 6.0, 6.0, 6.0, 6.0, 0.0], np.float32)

# Damage a tick, [attacker, target]: twice as much to the kind that it beats.
DAMAGE = np.zeros((NUM_KINDS, NUM_KINDS), np.int32)
for _kind, _damage in ((BASE, 2), (WORKER, 1), (SPEAR, 4), (HORSE, 4), (BOW, 4)):
    DAMAGE[_kind, :PATCH] = _damage
for _kind, _beaten in ((SPEAR, HORSE), (HORSE, BOW), (BOW, SPEAR)):
    DAMAGE[_kind, _beaten] *= 2

NOTICE = 6.0
"""A fighter that is idle or advances takes on an enemy this near."""
BASE_LAST = 4.0
"""A base counts as this much farther away than it is, so that units come first."""

FIRST_WORKERS = 4
FIRST_RESOURCES = 120
PATCH_AMOUNT = 1500
LOAD = 10
"""What a worker carries at a time."""
DIG_TICKS = 4
REACH, BASE_REACH, ARRIVED = 0.7, 1.6, 0.3
"""How near a worker comes to a patch and to its base, and a unit to its goal."""

HERO_HEALTH, HERO_DAMAGE = 4, 3
"""A hero has so many times the health and damage of its kind."""
RESPAWN_TICKS = 80
HEALING, HEALING_REACH = 2, 4.0
"""Health that a hero regains in a tick, and how near to its base."""
WAVE_TICKS = 48
"""In a game of heroes each base sends one fighter of each kind this often."""

BUILD_ORDER = 20
"""Units of a side whose order of training is kept, the first ones."""
BUILT = (1, 3, 6, 10)
"""For each kind it is kept whether so many have been trained."""

NARROW = 0.1
"""A lead of a commander at the time limit that is not larger is a draw."""
