"""Battles of the stand-in for gamecore: a lane, two camps with a tower, a crystal, minions and heroes, on arrays.

All tables are stepped together. A tick is three frames, after which heroes decide again. The lane runs from camp 0
(x = 0) to camp 1 (x = 100). Numbers are of the size that the closed game shows; its rules are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, IntArray
from ludus.games.seeding import uniform

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

FRAMES_PER_TICK = 3
CAMPS = 2
CRYSTAL, TOWER, MINIONS = range(3)
"""Slots of a camp's units: its crystal, its tower, then minions, then heroes."""
NONE, MOVE, ATTACK, SKILL_1, SKILL_2, SKILL_3, HEAL, CHOSEN, RECALL = range(9)
"""What a hero can do."""
NUM_COOLDOWNS = 5  # of the three skills, of healing and of the chosen skill

LENGTH, WIDTH = 100.0, 8.0
CRYSTAL_AT, TOWER_AT = 5.0, 27.0
_FORWARD = np.array([[1.0], [-1.0]], np.float32)  # [camps, 1]: along the lane, towards the enemy
REACH = 15.0  # distance up to which a unit can be chosen as a target
SIGHT = 25.0
WAVE_TICKS = 12
RECALL_TICKS = 4
HOME_REACH, HOME_HEAL = 8.0, 0.08  # how near to the crystal a hero heals, and its share of health in a tick
STEP = 3.2  # way of a hero in a tick
MINION_STEP = 2.4
FLASH = 15.0
FLASH_ID, HEAL_ID, EXECUTE_ID = 80115, 80102, 80108
"""Chosen skills that the stand-in knows; a hero without one, or with another one, has the first."""

ARCHER, FIGHTER, MAGE = range(3)
NUM_CLASSES = 3
RANGE = np.array([10.0, 4.0, 8.0], np.float32)
HEALTH = np.array([2600.0, 3800.0, 2800.0], np.float32)
POWER = np.array([240.0, 210.0, 190.0], np.float32)

# [class, skill]
SINGLE = np.array([[1.5, 0.0, 3.5], [1.8, 0.0, 3.0], [2.8, 0.0, 0.0]], np.float32)  # damage to the target, x power
AREA = np.array([[0.8, 0.0, 0.0], [0.0, 1.1, 0.0], [0.0, 0.0, 2.5]], np.float32)  # damage around the centre, x power
RADIUS = np.array([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 7.0]], np.float32)
OWN_HEAL = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.2], [0.0, 0.1, 0.0]], np.float32)  # share of full health
CAMP_HEAL = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.1, 0.0]], np.float32)
DASH = np.array([[0.0, 9.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
CHARGES = np.array([[False] * 3, [True, False, True], [False] * 3])  # the hero goes to the target
AIMS = np.array([[True, False, True]] * NUM_CLASSES)
COOLDOWN = np.array([7, 9, 25, 38, 38], np.float32)
ULTIMATE_LEVEL = 3
HEAL_SHARE = 0.25

TOWER_HEALTH, CRYSTAL_HEALTH, MINION_HEALTH = 2000.0, 1500.0, 400.0
ORGAN_RANGE, MINION_RANGE, NOTICE = 11.0, 3.0, 8.0
DAMAGE = np.array([80.0, 110.0], np.float32)  # of crystal and tower in a tick
MINION_DAMAGE = 40.0
MINION_GROWTH, DAMAGE_GROWTH = 0.03, 0.1  # of health and of damage, with every wave
GOLD_MINION, GOLD_HERO, GOLD_TICK = 40.0, 150.0, 1.6
EXP_MINION, EXP_HERO, EXP_LEVEL, MOST_LEVEL = 40.0, 120.0, 120.0, 10

WEIGHTS: Mapping[str, Sequence[float]] = {
    # hp, tower, gold, exp, last hit, kill, death, hurt to heroes, crystal
    "1v1": (2.0, 5.0, 0.006, 0.006, 0.1, 0.5, -1.0, 0.0, 5.0),
    "3v3": (1.0, 5.0, 0.003, 0.003, 0.05, 1.0, -1.0, 0.0003, 5.0),
}
"""Weights of the nine rewards of a hero."""
TEAM_SPIRIT = 0.2
"""Part of a hero's reward that is the mean of its camp."""


@dataclass(slots=True)
class HeroOrders:
    """[tables, camps, heroes]: what every hero does in the next tick."""

    button: NDArray[np.int64]
    way: Floats
    """[..., 2]: direction of length 1, or 0."""
    target: NDArray[np.int64]
    """Slot of an enemy unit; -1: none."""


@dataclass(slots=True)
class Battles:
    """State of all tables. Units are [tables, camps, slots]; heroes have arrays of their own for the rest."""

    tick: NDArray[np.int32]
    x: Floats
    z: Floats
    hp: Floats
    full: Floats
    cooldown: Floats
    respawn: Floats
    recall: Floats
    gold: Floats
    exp: Floats
    last_hits: Floats
    kills: Floats
    deaths: Floats
    hurt: Floats
    """Damage to enemy heroes."""
    caution: Floats
    """[tables, camps]: share of its health below which a hero of `common_ai` retreats."""

    @classmethod
    def allocate(cls, num_tables: int, heroes: int, minions: int) -> Battles:
        units, each = (num_tables, CAMPS, MINIONS + minions + heroes), (num_tables, CAMPS, heroes)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("x", "z", "hp", "full"), units)
        shapes |= {"cooldown": (*each, NUM_COOLDOWNS), "caution": (num_tables, CAMPS)}
        floats = {
            field.name: np.zeros(shapes.get(field.name, each), np.float32)
            for field in fields(cls)
            if field.name != "tick"
        }
        return cls(tick=np.zeros(num_tables, np.int32), **floats)

    def take(self, tables: IntArray) -> Battles:
        return Battles(*(getattr(self, name)[tables] for name in _FIELDS))

    def put(self, tables: IntArray, part: Battles) -> None:
        for name in _FIELDS:
            getattr(self, name)[tables] = getattr(part, name)


_FIELDS = tuple(field.name for field in fields(Battles))


@dataclass(frozen=True)
class Arena:
    """The rules for two line-ups. `classes` and `chosen`: [camps, heroes], the class and the chosen skill's number."""

    mode: str
    classes: NDArray[np.int64]
    chosen: NDArray[np.int64]

    @property
    def heroes(self) -> int:
        return int(self.classes.shape[1])

    @property
    def minions(self) -> int:
        return 4 if self.mode == "1v1" else 6

    @property
    def first_hero(self) -> int:
        return MINIONS + self.minions

    def allocate(self, num_tables: int) -> Battles:
        return Battles.allocate(num_tables, self.heroes, self.minions)

    def start(self, battles: Battles, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        new = self.allocate(len(tables))
        draws = uniform(seeds[:, None], np.arange(CAMPS + CAMPS * self.heroes)).astype(np.float32)
        new.caution[:] = 0.15 + 0.2 * draws[:, :CAMPS]
        for camp in range(CAMPS):
            for slot, at, full in ((CRYSTAL, CRYSTAL_AT, CRYSTAL_HEALTH), (TOWER, TOWER_AT, TOWER_HEALTH)):
                new.x[:, camp, slot] = at if camp == 0 else LENGTH - at
                new.hp[:, camp, slot] = new.full[:, camp, slot] = full
        heroes = slice(self.first_hero, None)
        new.x[:, :, heroes] = np.array([[7.0], [LENGTH - 7.0]])
        new.z[:, :, heroes] = (draws[:, CAMPS:].reshape(len(tables), CAMPS, self.heroes) - 0.5) * WIDTH
        new.hp[:, :, heroes] = new.full[:, :, heroes] = HEALTH[self.classes]
        battles.put(tables, new)

    def level(self, battles: Battles) -> Floats:
        level: Floats = np.minimum(1 + np.floor(battles.exp / EXP_LEVEL), MOST_LEVEL).astype(np.float32)
        return level

    def power(self, battles: Battles) -> Floats:
        grown = (1 + 0.05 * (self.level(battles) - 1)) * (1 + battles.gold / 4000)
        power: Floats = (POWER[self.classes] * grown).astype(np.float32)
        return power

    def play(self, battles: Battles, orders: HeroOrders) -> Floats:
        """Advance by a tick; rewards [tables, camps, heroes]."""
        before = self._merits(battles)
        battles.tick += 1
        self._send_wave(battles)
        self._recover(battles)
        alive = battles.hp > 0
        dealt = self._act(battles, orders, alive)
        taken = self._units_fight(battles, alive)
        taken += dealt.sum(axis=2)[:, ::-1]
        # A crystal cannot be hurt before its tower has fallen.
        taken[:, :, CRYSTAL] *= ~alive[:, :, TOWER]
        self._die(battles, alive, taken, dealt)
        gained = self._merits(battles) - before
        own = gained @ np.array(WEIGHTS[self.mode], np.float32)
        camp = own.mean(axis=2, keepdims=True)
        spirit = TEAM_SPIRIT if self.heroes > 1 else 0.0
        rewards: Floats = (1 - spirit) * own + spirit * camp - camp[:, ::-1]
        return rewards

    def over(self, battles: Battles) -> Flags:
        fallen: Flags = np.any(battles.hp[:, :, CRYSTAL] <= 0, axis=1)
        return fallen

    def visible(self, battles: Battles) -> Flags:
        """[tables, camps, slots]: which units the *other* camp sees."""
        alive = battles.hp > 0
        x = np.where(alive, battles.x, np.float32(1e6))
        # The lane is narrow: the distance along it decides.
        near = np.abs(battles.x[:, :, :, None] - x[:, ::-1, None, :]).min(axis=3) <= SIGHT
        near[:, :, :MINIONS] = True
        seen: Flags = near & alive
        return seen

    def targets(self, battles: Battles) -> Flags:
        """[tables, camps, heroes, slots]: enemy units that a hero can choose."""
        heroes = slice(self.first_hero, None)
        dx = battles.x[:, :, heroes, None] - battles.x[:, ::-1, None, :]
        dz = battles.z[:, :, heroes, None] - battles.z[:, ::-1, None, :]
        near = dx * dx + dz * dz <= REACH * REACH
        near &= self.visible(battles)[:, ::-1, None, :] & (battles.hp[:, :, heroes, None] > 0)
        near[..., CRYSTAL] &= battles.hp[:, ::-1, None, TOWER] <= 0
        return near

    def usable(self, battles: Battles, targets: Flags) -> Flags:
        """[tables, camps, heroes, buttons]: what a hero can do."""
        first = self.first_hero
        hp, full = battles.hp[:, :, first:], battles.full[:, :, first:]
        usable = np.ones((*hp.shape, RECALL + 1), np.bool_)
        ready = battles.cooldown <= 0
        aimed: Flags = np.any(targets, axis=3, keepdims=True)
        usable[..., ATTACK] = aimed[..., 0]
        usable[..., SKILL_1 : SKILL_3 + 1] = ready[..., :3] & (aimed | ~AIMS[self.classes])
        usable[..., SKILL_3] &= self.level(battles) >= ULTIMATE_LEVEL
        usable[..., HEAL] = ready[..., 3] & (hp < full)
        usable[..., CHOSEN] = ready[..., 4]
        execute = self.chosen == EXECUTE_ID
        usable[..., CHOSEN] &= ~execute | targets[..., first:].any(axis=3)
        usable[..., 1:] &= (hp > 0)[..., None]
        return usable

    def _merits(self, battles: Battles) -> Floats:
        """[tables, camps, heroes, 9]: the running totals of what is rewarded."""
        first = self.first_hero
        share = battles.hp / np.maximum(battles.full, 1)
        organs = np.repeat(share[:, :, None, :MINIONS], self.heroes, axis=2)
        parts = (
            np.sqrt(np.maximum(share[:, :, first:], 0)), organs[..., TOWER], battles.gold, battles.exp,
            battles.last_hits, battles.kills, battles.deaths, battles.hurt, organs[..., CRYSTAL],
        )  # fmt: skip
        merits: Floats = np.stack(parts, axis=3)
        return merits

    def _send_wave(self, battles: Battles) -> None:
        due = battles.tick % WAVE_TICKS == 1
        if not due.any():
            return
        grown = 1 + MINION_GROWTH * (battles.tick // WAVE_TICKS).astype(np.float32)
        slots = slice(MINIONS, self.first_hero)
        free = (battles.hp[:, :, slots] <= 0) & due[:, None, None]
        new = free & (free.cumsum(axis=2) <= self.minions // 2)
        health = np.broadcast_to((MINION_HEALTH * grown)[:, None, None], new.shape)
        aside = np.broadcast_to(np.arange(self.minions, dtype=np.float32) % 3 - 1, new.shape)
        home = np.broadcast_to(np.array([[9.0], [LENGTH - 9.0]], np.float32), new.shape)
        for array, value in ((battles.hp, health), (battles.full, health), (battles.x, home), (battles.z, aside)):
            array[:, :, slots][new] = value[new]

    def _recover(self, battles: Battles) -> None:
        first = self.first_hero
        np.maximum(battles.cooldown - 1, 0, out=battles.cooldown)
        battles.gold += GOLD_TICK
        hp, full, x, z = (array[:, :, first:] for array in (battles.hp, battles.full, battles.x, battles.z))
        grown = HEALTH[self.classes] * (1 + 0.06 * (self.level(battles) - 1))
        hp += np.where(hp > 0, grown - full, 0)
        full[:] = grown
        dead = hp <= 0
        battles.respawn -= dead
        back = dead & (battles.respawn <= 0)
        home = battles.x[:, :, CRYSTAL, None]
        hp[back] = full[back]
        x[:] = np.where(back, home, x)
        z[back] = 0
        at_home = ~dead & (np.abs(x - home) <= HOME_REACH)
        hp[:] = np.where(at_home, np.minimum(hp + HOME_HEAL * full, full), hp)

    def _act(self, battles: Battles, orders: HeroOrders, alive: Flags) -> Floats:
        """Carry out the orders; the damage dealt, [tables, camps, heroes, enemy slots]."""
        first = self.first_hero
        x, z, hp, full = (array[:, :, first:] for array in (battles.x, battles.z, battles.hp, battles.full))
        able = alive[:, :, first:]
        power, slots = self.power(battles), np.arange(battles.x.shape[2])
        reachable = self.targets(battles)
        chosen = np.maximum(orders.target, 0)
        aimed = np.take_along_axis(reachable, chosen[..., None], axis=3)[..., 0] & (orders.target >= 0)
        to_x = np.take_along_axis(battles.x[:, ::-1], chosen, axis=2) - x
        to_z = np.take_along_axis(battles.z[:, ::-1], chosen, axis=2) - z
        apart = np.maximum(np.sqrt(to_x * to_x + to_z * to_z), np.float32(1e-3))
        button = np.where(able, orders.button, NONE)
        usable = np.take_along_axis(self.usable(battles, reachable), button[..., None], axis=3)[..., 0]
        button = np.where(usable, button, NONE)

        attacks = (button == ATTACK) & aimed
        organ = chosen < MINIONS
        strikes = attacks & (apart <= RANGE[self.classes] + 2 * organ)
        single = np.where(strikes, power, 0)
        skill = np.where((button >= SKILL_1) & (button <= SKILL_3), button - SKILL_1, 0)
        table = (self.classes, skill)
        casts = (button >= SKILL_1) & (button <= SKILL_3) & (aimed | ~AIMS[table])
        # Skills hurt towers and crystals little.
        single += np.where(casts & aimed, SINGLE[table] * power * np.where(organ, 0.25, 1), 0)
        chosen_skill = button == CHOSEN
        execute, heals = chosen_skill & (self.chosen == EXECUTE_ID), chosen_skill & (self.chosen == HEAL_ID)
        dealt = np.where(chosen[..., None] == slots, single[..., None], 0).astype(np.float32)
        dealt += self._area(battles, casts, table, x + to_x * aimed, z + to_z * aimed, power)
        dealt += self._execute(battles, execute, reachable)
        used = [*(casts & (skill == number) for number in range(3)), button == HEAL, chosen_skill]
        for number, who in enumerate(used):
            battles.cooldown[..., number][who] = COOLDOWN[number]

        share = np.where(casts, OWN_HEAL[table], 0) + HEAL_SHARE * ((button == HEAL) | heals)
        share = share + np.where(casts, CAMP_HEAL[table], 0).sum(axis=2, keepdims=True)
        hp[:] = np.where(able, np.minimum(hp + share * full, full), hp)

        # Where the heroes go.
        far = np.where(casts & CHARGES[table] & aimed, np.maximum(apart - 2, 0), 0)
        far = np.where(attacks & ~strikes, np.minimum(STEP, apart), far)
        way_x, way_z = to_x / apart * far, to_z / apart * far
        free = np.where(button == MOVE, STEP, 0) + np.where(casts, DASH[table], 0)
        free = free + FLASH * (chosen_skill & ~execute & ~heals)
        way_x, way_z = way_x + orders.way[..., 0] * free, way_z + orders.way[..., 1] * free
        x[:] = np.clip(x + way_x * able, 1, LENGTH - 1)
        z[:] = np.clip(z + way_z * able, -WIDTH, WIDTH)
        battles.recall[:] = np.where(button == RECALL, battles.recall + 1, 0)
        home = battles.recall >= RECALL_TICKS
        x[:] = np.where(home, battles.x[:, :, CRYSTAL, None], x)
        battles.recall[home] = 0
        return dealt

    def _area(
        self, battles: Battles, casts: Flags, table: tuple[IntArray, IntArray], x: Array, z: Array, power: Floats
    ) -> Floats:
        dx, dz = battles.x[:, ::-1, None, :] - x[..., None], battles.z[:, ::-1, None, :] - z[..., None]
        hit = (dx * dx + dz * dz <= RADIUS[table][..., None] ** 2) & casts[..., None]
        hit[..., :MINIONS] = False
        area: Floats = (hit * (AREA[table] * power)[..., None]).astype(np.float32)
        return area

    def _execute(self, battles: Battles, execute: Flags, reachable: Flags) -> Floats:
        """Takes a third of the missing health of every enemy hero in reach."""
        first = self.first_hero
        dealt = np.zeros(reachable.shape, np.float32)
        missing = (battles.full - battles.hp)[:, ::-1, None, first:]
        dealt[..., first:] = np.where(execute[..., None] & reachable[..., first:], missing / 3, 0)
        return dealt

    def _units_fight(self, battles: Battles, alive: Flags) -> Floats:
        """Towers, crystals and minions fight and minions walk; the damage taken [tables, camps, slots]."""
        first = self.first_hero
        dx = battles.x[:, ::-1, None, :] - battles.x[:, :, :first, None]
        dz = battles.z[:, ::-1, None, :] - battles.z[:, :, :first, None]
        apart = np.sqrt(dx * dx + dz * dz)
        # Minions come first, then heroes, for towers; for minions whoever is nearest.
        order = apart.copy()
        order[:, :, :MINIONS, first:] += 50
        order[:, :, :, CRYSTAL] += 1e6 * alive[:, ::-1, None, TOWER]
        order = np.where(alive[:, ::-1, None, :], order, np.inf)
        reach = np.full(first, MINION_RANGE, np.float32)
        reach[:MINIONS] = ORGAN_RANGE
        in_reach = apart <= np.maximum(reach, NOTICE)[:, None]
        order = np.where(in_reach, order, np.inf)
        enemy = order.argmin(axis=3)
        found = np.isfinite(np.take_along_axis(order, enemy[..., None], axis=3)[..., 0]) & alive[:, :, :first]
        way = np.take_along_axis(apart, enemy[..., None], axis=3)[..., 0]
        strikes = found & (way <= reach)
        grown = (1 + DAMAGE_GROWTH * (battles.tick // WAVE_TICKS)).astype(np.float32)
        damage = np.empty((len(grown), 1, first), np.float32)
        damage[:, 0, :MINIONS] = DAMAGE
        damage[:, :, MINIONS:] = (MINION_DAMAGE * grown)[:, None, None]
        hits = np.where(strikes, damage, 0)
        dealt = np.where(enemy[..., None] == np.arange(battles.x.shape[2]), hits[..., None], 0).sum(axis=2)

        walks = alive[:, :, MINIONS:first] & ~strikes[:, :, MINIONS:]
        chases = found[:, :, MINIONS:] & walks
        at = np.maximum(way[:, :, MINIONS:], np.float32(1e-3))
        for place, apart_by, ahead in ((battles.x, dx, _FORWARD), (battles.z, dz, 0 * _FORWARD)):
            to = np.take_along_axis(apart_by, enemy[..., None], axis=3)[:, :, MINIONS:, 0]
            place[:, :, MINIONS:first] += MINION_STEP * walks * np.where(chases, to / at, ahead)
        taken: Floats = dealt[:, ::-1].astype(np.float32)
        return taken

    def _die(self, battles: Battles, alive: Flags, taken: Floats, dealt: Floats) -> None:
        first = self.first_hero
        taken = taken * alive
        dealt *= alive[:, ::-1, None, :]
        battles.hurt += dealt[..., first:].sum(axis=3)
        battles.hp -= taken
        died = alive & (battles.hp <= 0)
        np.maximum(battles.hp, 0, out=battles.hp)
        if not died.any():
            return
        # Heroes share what falls in a tick by the damage that they did to it.
        lost = died[:, ::-1, None, :]
        share = np.where(lost, dealt / np.maximum(taken[:, ::-1, None, :], 1), 0)
        minions, heroes = share[..., MINIONS:first].sum(axis=3), share[..., first:].sum(axis=3)
        battles.last_hits += minions
        battles.kills += heroes
        battles.gold += GOLD_MINION * minions + GOLD_HERO * heroes
        apart = np.abs(battles.x[:, :, first:, None] - battles.x[:, ::-1, None, :])
        learns = (apart <= SIGHT) & lost & (battles.hp[:, :, first:, None] > 0)
        battles.exp += EXP_MINION * learns[..., MINIONS:first].sum(axis=3)
        battles.exp += EXP_HERO * learns[..., first:].sum(axis=3)
        fallen = died[:, :, first:]
        battles.deaths += fallen
        battles.respawn[fallen] = np.broadcast_to((6 + self.level(battles)), fallen.shape)[fallen]

    def common_ai(self, battles: Battles) -> HeroOrders:
        """The orders of the stand-in's own player, for all heroes of both camps."""
        first = self.first_hero
        targets = self.targets(battles)
        usable = self.usable(battles, targets)
        x, z, hp, full = (array[:, :, first:] for array in (battles.x, battles.z, battles.hp, battles.full))
        dx, dz = battles.x[:, ::-1, None, :] - x[..., None], battles.z[:, ::-1, None, :] - z[..., None]
        apart = np.where(targets, dx * dx + dz * dz, np.inf)
        prey, minion = apart[..., first:], apart[..., MINIONS:first]
        organ = apart[..., :MINIONS]
        # Places are measured from the own end of the lane.
        place, minions_at = from_home(x), from_home(battles.x[:, :, MINIONS:first])
        front = np.where(battles.hp[:, ::-1, None, TOWER] > 0, LENGTH - TOWER_AT, LENGTH - CRYSTAL_AT)
        lead = np.where(battles.hp[:, :, MINIONS:first] > 0, minions_at, 0).max(axis=2)[:, :, None]
        covered = (lead >= front - ORGAN_RANGE) | (battles.hp[:, ::-1, None, TOWER] <= 0)
        safe = covered | (front - place > ORGAN_RANGE + 4)
        flees = hp < battles.caution[:, :, None] * full
        farms, sieges = np.isfinite(minion).any(axis=3), np.isfinite(organ).any(axis=3) & covered
        hunts = np.isfinite(prey).any(axis=3) & safe & ~np.isfinite(organ[..., CRYSTAL])

        target = np.where(farms, MINIONS + minion.argmin(axis=3), -1)
        target = np.where(sieges, organ.argmin(axis=3), target)
        target = np.where(hunts, first + prey.argmin(axis=3), target)
        button = np.where(target >= 0, ATTACK, MOVE)
        for one in (SKILL_1, SKILL_2, SKILL_3):
            helps = hunts & usable[..., one] & (AIMS[self.classes, one - SKILL_1] | (AREA[self.classes, 1] > 0))
            button = np.where(helps, one, button)
        # Without cover it waits behind its minions, outside the reach of the tower.
        stand = np.where(covered, front, np.clip(lead - 4, TOWER_AT + 4, front - ORGAN_RANGE - 6))
        way = np.where(flees | ~safe, -1, np.sign(stand - place)) * _FORWARD
        button = np.where(flees & usable[..., HEAL], HEAL, np.where(flees | (~safe & (button != ATTACK)), MOVE, button))
        waits = (button == MOVE) & ~flees & safe & (np.abs(stand - place) < STEP)
        button = np.where(waits, NONE, button)
        return HeroOrders(
            button=button.astype(np.int64),
            way=np.stack([way, np.zeros_like(way)], axis=3).astype(np.float32),
            target=target.astype(np.int64),
        )


def from_home(x: Floats) -> Floats:
    """Places [tables, camps, ...] as distances from the own end of the lane."""
    return np.stack([x[:, 0], LENGTH - x[:, 1]], axis=1)


def class_of(hero_id: int) -> int:
    """The class that the stand-in gives to a hero: the published ids of a camp of three have one each."""
    return hero_id % NUM_CLASSES
