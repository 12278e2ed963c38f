"""The battle of skirmish on arrays [tables, sides, ...]: its state, how a table is set up, and how a tick passes."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.seeding import uniform

Flags = NDArray[np.bool_]

_HALF = rules.PATCHES // 2

PATCHES_AT = np.array([[-3.2, -2.8, -0.5, 1.8], [1.8, -0.7, -3.1, -2.9]])
"""[x and y, patch]: offsets from the base of side 0, behind and beside it."""

TRACKED = 8.0  # an attack ends when no unit of the attacking side is this near to its target
NOWHERE = 1e6


@dataclass(slots=True)
class State:
    """Everything on the tables. Units live in slots: slot 0 is the base, and the slot of a dead unit is reused.

    A flat index, as for numpy's `take` and `put`, also names a unit: (table * rules.SIDES + side) * rules.SLOTS + slot.
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
    """Slot of the attacked enemy; patch of a gathering worker."""
    digging: NDArray[np.int8]
    """Ticks that a worker has dug at its patch."""
    carries: NDArray[np.bool_]
    respawn_at: NDArray[np.int32]
    """Tick at which a dead hero returns."""
    ready_at: NDArray[np.int32]
    """Tick from which a hero can use its skill."""
    resources: NDArray[np.int32]
    queue: NDArray[np.int8]
    """[tables, sides, QUEUE]: kinds to train, the one in training first; 0 is an empty place."""
    trained: NDArray[np.int32]
    """Ticks that the first unit of the queue has been in training."""
    build_order: NDArray[np.int16]
    """[tables, sides, BUILD_ORDER]: the trained kinds in order; -1 after the end."""
    made: NDArray[np.int16]
    """[tables, sides, kinds of `TRAINED`]: units trained so far."""
    patch: NDArray[np.int32]
    """[tables, PATCHES]: resources left."""
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
            ready_at=np.zeros(units, np.int32),
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
        return State(*(getattr(self, name)[tables] for name in _FIELDS))

    def put(self, tables: IntArray, part: State) -> None:
        for name in _FIELDS:
            getattr(self, name)[tables] = getattr(part, name)

    def first(self, num_tables: int) -> State:
        """Views of the first tables."""
        return State(*(getattr(self, name)[:num_tables] for name in _FIELDS))

    def full_health(self) -> NDArray[np.int32]:
        """[tables, sides, slots]: the health of a new unit."""
        full: NDArray[np.int32] = rules.HEALTH[self.kind] * np.where(self.hero, rules.HERO_HEALTH, 1)
        return full.astype(np.int32)


_FIELDS = tuple(field.name for field in fields(State))


def set_up(
    state: State,
    tables: IntArray,
    seeds: NDArray[np.uint64],
    heroes: tuple[int, ...],
    line_ups: tuple[tuple[int, ...], ...] = (),
) -> None:
    """Start a new game, symmetric under a half turn. `heroes`: their kinds; empty if a seat commands a whole side.
    `line_ups`: their kinds by side, if the sides differ."""
    new = State.allocate(len(tables))
    draws = uniform(seeds[:, None], np.arange(2 + 2 * _HALF))
    home = rules.HOME + 2.0 * (draws[:, :2] - 0.5)
    for patch_at, axis in ((new.patch_x, 0), (new.patch_y, 1)):
        jitter = 0.8 * (draws[:, 2 + _HALF * axis : 2 + _HALF * (axis + 1)] - 0.5)
        patch_at[:, :_HALF] = home[:, axis, None] + PATCHES_AT[axis] + jitter
        patch_at[:, _HALF:] = rules.MAP - patch_at[:, :_HALF]
    new.patch[:] = 0 if heroes else rules.PATCH_AMOUNT

    first = len(heroes) or rules.FIRST_WORKERS
    units = slice(1, 1 + first)
    new.alive[:, :, : 1 + first] = True
    new.kind[:, :, units] = line_ups or heroes or rules.WORKER
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


def tick(state: State, *, heroes: int) -> None:
    """Advance all tables by one tick, in place. `heroes`: how many a side has."""
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


def train(state: State) -> None:
    first = state.queue[:, :, 0]
    state.trained += first > 0
    done = (first > 0) & (state.trained >= rules.TRAIN_TICKS[first])
    if done.any():
        _record_built(state, done, first)
        place(state, done, first)
        rest = state.queue[done][:, 1:]
        state.queue[done, :-1] = rest
        state.queue[done, -1] = 0
        state.trained[done] = 0


def _record_built(state: State, where: Flags, kinds: Array) -> None:
    """Record that bases [tables, sides] have trained units of these kinds."""
    tables, sides = np.nonzero(where)
    kind = kinds[tables, sides]
    before = state.made[tables, sides].sum(axis=1)
    listed = before < rules.BUILD_ORDER
    state.build_order[tables[listed], sides[listed], before[listed]] = kind[listed]
    state.made[tables, sides, kind - rules.WORKER] += 1


def place(state: State, where: Flags, kinds: Array | int) -> None:
    """Put a new unit beside each of these bases [tables, sides] that has a free slot; workers begin to gather."""
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
    state.x[at] = state.x[tables, sides, 0] + rules.TOWARDS_MIDDLE[sides] * (1 + aside)
    state.y[at] = state.y[tables, sides, 0] + rules.TOWARDS_MIDDLE[sides] * (1 - aside)
    state.order[at] = np.where(kind == rules.WORKER, rules.GATHER, rules.NO_OP)
    state.target[at] = sides * _HALF + slots % _HALF
    state.digging[at] = 0
    state.carries[at] = False


def _send_waves(state: State) -> None:
    due = state.tick % rules.WAVE_TICKS == 1
    if due.any():
        where = np.repeat(due[:, None], rules.SIDES, axis=1)
        for kind in rules.FIGHTERS:
            place(state, where, kind)
        waits = due[:, None, None] & state.alive & ~state.hero & (state.order == rules.NO_OP)
        waits[:, :, 0] = False
        state.order[waits] = rules.ADVANCE
        for goal, at in ((state.goal_x, state.x), (state.goal_y, state.y)):
            goal[:] = np.where(waits, at[:, ::-1, :1], goal)


def _respawn(state: State) -> None:
    back = state.hero & ~state.alive & (state.tick[:, None, None] >= state.respawn_at)
    if back.any():
        state.alive[back] = True
        state.health[back] = state.full_health()[back]
        state.order[back] = rules.NO_OP
        for at in (state.x, state.y):
            at[:] = np.where(back, at[:, :, :1] + rules.TOWARDS_MIDDLE[:, None], at)


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
    reach = rules.RANGE[state.kind.take(fighters)] + (state.kind.take(enemies) == rules.BASE)
    strikes = apart <= reach

    walks = state.alive & (state.order != rules.NO_OP) & (state.order != rules.ATTACK)
    walks.put(fighters, False)
    walkers = np.flatnonzero(walks)
    far = ~strikes
    goals = _goals(state, walkers, x[far], y[far])
    left = _walk(state, np.concatenate([walkers, fighters[far]]), *goals)[: len(walkers)]
    arrives = (left <= rules.ARRIVED) & (state.order.take(walkers) != rules.GATHER)
    state.order.put(walkers[arrives], rules.NO_OP)
    _strike(state, fighters[strikes], enemies[strikes])


def _choose_enemies(state: State) -> tuple[IntArray, IntArray]:
    """The units that fight in this tick, and the enemy of each."""
    used = 1 + int(np.flatnonzero(state.alive.any(axis=(0, 1)))[-1])
    # Dead units are placed far away from all others.
    x, y = (
        np.where(state.alive, at, np.float32(NOWHERE)).reshape(-1, rules.SLOTS)[:, :used] for at in (state.x, state.y)
    )
    watches = ((state.order == rules.NO_OP) & (state.kind != rules.WORKER)) | (state.order == rules.ADVANCE)
    alert = np.flatnonzero(state.alive & watches)
    side = alert // rules.SLOTS
    apart = _squares(x[side ^ 1], y[side ^ 1], state.x.take(alert), state.y.take(alert))
    to_base = np.sqrt(apart[:, 0])
    apart[:, 0] = np.inf
    nearest = apart.argmin(axis=1)
    to_unit = np.sqrt(apart[np.arange(len(alert)), nearest])
    sees_unit, sees_base = to_unit <= rules.NOTICE, to_base <= rules.NOTICE
    base_first = sees_base & (~sees_unit | (to_base + np.float32(rules.BASE_LAST) < to_unit))
    nearest[base_first] = 0
    notices = sees_unit | sees_base
    fighters, enemies = alert[notices], ((side ^ 1) * rules.SLOTS + nearest)[notices]

    attackers, targets = _attacks(state)
    if len(attackers):
        side = attackers // rules.SLOTS
        tracked = _squares(x[side], y[side], state.x.take(targets), state.y.take(targets)).min(axis=1)
        lost = tracked > TRACKED**2
        state.order.put(attackers[lost], rules.NO_OP)
        fighters = np.concatenate([fighters, attackers[~lost]])
        enemies = np.concatenate([enemies, targets[~lost]])
    return fighters, enemies


def _attacks(state: State) -> tuple[IntArray, IntArray]:
    """The units with an attack order, and their targets."""
    attackers = np.flatnonzero(state.alive & (state.order == rules.ATTACK))
    return attackers, (attackers // rules.SLOTS ^ 1) * rules.SLOTS + state.target.take(attackers)


def _goals(state: State, walkers: IntArray, enemy_x: Array, enemy_y: Array) -> tuple[Array, Array]:
    """Goals of the walkers, followed by those of the units that approach an enemy."""
    gathers = np.flatnonzero(state.order.take(walkers) == rules.GATHER)
    workers = walkers[gathers]
    home = workers // rules.SLOTS * rules.SLOTS
    patch = workers // (rules.SIDES * rules.SLOTS) * rules.PATCHES + state.target.take(workers)
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
    """Move units towards their goals for one tick; returns the remaining distances."""
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
    _hurt(state, struck, damage)


def _hurt(state: State, struck: IntArray, damage: Array) -> None:
    """Take damage[i] from the health of unit struck[i]; who has none left is dead."""
    taken = np.bincount(struck, damage, state.health.size).astype(np.int32)
    state.health -= taken.reshape(state.health.shape)
    dead = struck[state.health.take(struck) <= 0]
    if len(dead):
        state.health.put(dead, 0)
        state.alive.put(dead, False)
        state.respawn_at.put(dead, state.tick.take(dead // (rules.SIDES * rules.SLOTS)) + rules.RESPAWN_TICKS)
        # An attack ends with its target: the next unit in that slot is another one.
        attackers, targets = _attacks(state)
        state.order.put(attackers[~state.alive.take(targets)], rules.NO_OP)


def skill_targets(state: State, heroes: IntArray) -> IntArray:
    """The unit that the skill of each hero goes to: for a horse and a bow the nearest enemy in reach, for a spear an
    own unit in reach that lacks health; -1: none, or the hero cannot use its skill yet."""
    side = heroes // rules.SLOTS
    aids = state.kind.take(heroes) == rules.SPEAR
    other = np.where(aids, side, side ^ 1)
    x, y, health = (array.reshape(-1, rules.SLOTS)[other] for array in (state.x, state.y, state.health))
    apart = _squares(x, y, state.x.take(heroes), state.y.take(heroes))
    able = state.alive.reshape(-1, rules.SLOTS)[other]
    able &= ~aids[:, None] | (health < state.full_health().reshape(-1, rules.SLOTS)[other])
    able[:, 0] = False  # bases
    apart = np.where(able, apart, np.inf)
    nearest = apart.argmin(axis=1)
    reach = np.where(aids, rules.AID_REACH, rules.SKILL_REACH)
    ready = state.ready_at.take(heroes) <= state.tick.take(side // rules.SIDES)
    usable = ready & (apart[np.arange(len(heroes)), nearest] <= reach**2)
    targets: IntArray = np.where(usable, other * rules.SLOTS + nearest, -1)
    return targets


def use_skills(state: State, heroes: IntArray) -> None:
    """All these heroes use their skills at once: a horse charges, a bow shoots a volley, a spear aids own units."""
    targets = skill_targets(state, heroes)
    heroes, targets = heroes[targets >= 0], targets[targets >= 0]
    kind = state.kind.take(heroes)
    for each, ticks in rules.SKILL_TICKS.items():
        now = state.tick.take(heroes[kind == each] // (rules.SIDES * rules.SLOTS))
        state.ready_at.put(heroes[kind == each], now + ticks)
    x, y = state.x.reshape(-1, rules.SLOTS), state.y.reshape(-1, rules.SLOTS)
    spears = heroes[kind == rules.SPEAR]
    own = spears // rules.SLOTS
    near = _squares(x[own], y[own], state.x.take(spears), state.y.take(spears)) <= rules.AID_REACH**2
    near[:, 0] = False
    row, slot = np.nonzero(near & state.alive.reshape(-1, rules.SLOTS)[own])
    aid = np.bincount(own[row] * rules.SLOTS + slot, minlength=state.health.size) * rules.AID
    full = np.maximum(state.full_health(), state.health)
    state.health[:] = np.minimum(state.health + aid.reshape(state.health.shape), full)

    bows, aims = heroes[kind == rules.BOW], targets[kind == rules.BOW]
    enemy = bows // rules.SLOTS ^ 1
    near = _squares(x[enemy], y[enemy], state.x.take(aims), state.y.take(aims)) <= rules.VOLLEY_REACH**2
    near[:, 0] = False
    row, slot = np.nonzero(near & state.alive.reshape(-1, rules.SLOTS)[enemy])
    volley = enemy[row] * rules.SLOTS + slot
    horses, charged = heroes[kind == rules.HORSE], targets[kind == rules.HORSE]
    for at in (state.x, state.y):
        at.put(horses, at.take(charged))
    struck = np.concatenate([volley, charged])
    damage = np.repeat([rules.VOLLEY_DAMAGE, rules.CHARGE_DAMAGE], [len(volley), len(charged)])
    if len(struck):
        _hurt(state, struck, damage)


def _squares(x: Array, y: Array, to_x: Array, to_y: Array) -> Array:
    """[rows, slots]: squared distances of units at x, y [rows, slots] from one place per row."""
    across, up = x - to_x[:, None], y - to_y[:, None]
    across *= across
    up *= up
    across += up
    return across


def length(x: Array, y: Array) -> Array:
    """Lengths of vectors. `np.hypot` may round differently from machine to machine."""
    found: Array = np.sqrt(x * x + y * y)
    return found


def gather(state: State) -> None:
    workers = np.flatnonzero(state.alive & (state.order == rules.GATHER))
    if not len(workers):
        return
    x, y, carries = state.x.take(workers), state.y.take(workers), state.carries.take(workers)
    side = workers // rules.SLOTS
    home = side * rules.SLOTS
    to_base = length(state.x.take(home) - x, state.y.take(home) - y)
    delivers = carries & (to_base <= rules.BASE_REACH)
    earned = np.bincount(side[delivers], minlength=state.resources.size) * rules.LOAD
    state.resources += earned.astype(np.int32).reshape(state.resources.shape)

    target = state.target.take(workers)
    patch = side // rules.SIDES * rules.PATCHES + target
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
    # A worker at an empty patch goes to the next one of its side.
    first = side % rules.SIDES * _HALF
    state.target.put(workers, np.where(leaves, first + (target - first + 1) % _HALF, target))


def _served(patch: IntArray, left: NDArray[np.int32]) -> Flags:
    """Whether each of these claims on patches gets a load: the first claims do, while the patch has any left."""
    order = np.argsort(patch, kind="stable")
    in_order = patch[order]
    before = np.arange(len(patch)) - np.searchsorted(in_order, in_order)
    served = np.empty(len(patch), np.bool_)
    served[order] = before * rules.LOAD < left.take(in_order)
    return served
