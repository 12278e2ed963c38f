"""The numbers of skirmish: kinds of unit, orders, actions, sizes and prices."""

from __future__ import annotations

import numpy as np

BASE, WORKER, SPEAR, HORSE, BOW, PATCH = range(6)  # kinds of entity. A spear beats a horse beats a bow beats a spear.
NUM_KINDS = PATCH + 1
FIGHTERS = (SPEAR, HORSE, BOW)
TRAINED = (WORKER, *FIGHTERS)

SIDES = 2
SLOTS = 28  # units of a side, its base (slot 0) included
PATCHES = 8  # resource patches on the map, half of them near each base
ENTITIES = SIDES * SLOTS + PATCHES

MAP = 32.0
CELLS = 16  # cells of the minimap, and of target points, along each axis
CELL = MAP / CELLS
HOME = 5.0  # where the base of side 0 stands, in x and y; that of side 1 is opposite
TOWARDS_MIDDLE = np.array([1.5, -1.5], np.float32)  # [side]: offset from a base to its new units, in x and y

LAST_TICK = 512
LONGEST_DELAY = 8
PICKS = 8
QUEUE = 4  # most units in the queue of a base, including the one in training

NO_OP, MOVE, ADVANCE, ATTACK, GATHER = range(5)
"""Actions; the current order of a unit has the same number, and `NO_OP` if it is idle."""
TRAIN = {kind: GATHER + 1 + place for place, kind in enumerate(TRAINED)}  # kind -> the action that trains it
NUM_ACTIONS = GATHER + 1 + len(TRAINED)
NUM_HERO_ACTIONS = ATTACK + 1
SKILL = NUM_HERO_ACTIONS  # the further action of heroes with skills

# Indexed by kind.
HEALTH = np.array([1000, 60, 160, 150, 110, 0], np.int32)
SPEED = np.array([0.0, 0.6, 0.5, 0.8, 0.5, 0.0], np.float32)
RANGE = np.array([5.0, 0.8, 1.2, 1.2, 4.0, 0.0], np.float32)
COST = np.array([0, 40, 60, 60, 60, 0], np.int32)
TRAIN_TICKS = np.array([0, 8, 5, 5, 5, 0], np.int32)
SIGHT = np.array([9.0, 6.0, 6.0, 6.0, 6.0, 0.0], np.float32)

# Damage per tick, [attacker, target]: doubled against the kind that it beats.
DAMAGE = np.zeros((NUM_KINDS, NUM_KINDS), np.int32)
for _kind, _damage in ((BASE, 2), (WORKER, 1), (SPEAR, 4), (HORSE, 4), (BOW, 4)):
    DAMAGE[_kind, :PATCH] = _damage
for _kind, _beaten in ((SPEAR, HORSE), (HORSE, BOW), (BOW, SPEAR)):
    DAMAGE[_kind, _beaten] *= 2

NOTICE = 6.0  # an idle or advancing fighter engages an enemy within this distance
BASE_LAST = 4.0  # added to the distance of a base, so that fighters prefer units

FIRST_WORKERS = 4
FIRST_RESOURCES = 120
PATCH_AMOUNT = 1500
LOAD = 10  # resources that a worker carries
DIG_TICKS = 4
REACH, BASE_REACH, ARRIVED = 0.7, 1.6, 0.3
"""Distances at which a worker digs and delivers, and at which a unit has arrived."""

HERO_HEALTH, HERO_DAMAGE = 4, 3  # factors on the health and damage of a hero's kind
RESPAWN_TICKS = 80
HEALING, HEALING_REACH = 2, 4.0  # health that a hero regains per tick, and how near to its base
SKILL_TICKS = {SPEAR: 40, HORSE: 24, BOW: 24}  # ticks until a hero can use its skill again
SKILL_REACH = 6.0  # how near the enemy must be that a horse charges at, or that a bow shoots a volley at
CHARGE_DAMAGE, VOLLEY_DAMAGE, VOLLEY_REACH = 80, 50, 2.5
AID, AID_REACH = 150, 4.0  # health that a spear gives to own units, itself included, and how near they must be
WAVE_TICKS = 48  # ticks between waves: in games of heroes each base sends one fighter of each kind

BUILD_ORDER = 20  # length of the recorded build order of a side
BUILT = (1, 3, 6, 10)  # thresholds on the number of units trained, recorded for each kind

NARROW = 0.1  # largest lead at the time limit that counts as a draw between commanders
