"""A stand-in for the closed gamecore: tables of `Gamecore` whose battles (gamecore_battle.py) run in this process.

Observations, flags of legal actions and actions have the form in which the library `hok` exchanges them, so that the
tests put the same battles behind a real server, simulator and bridge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import CRITIC_PREFIX
from ludus.data.trees import IntArray, Tree
from ludus.games.adapters import gamecore_battle as rules
from ludus.games.adapters.gamecore_battle import Arena, Battles, Flags, Floats, HeroOrders
from ludus.games.adapters.gamecore_client import Hero, Mode
from ludus.games.game import Actions
from ludus.games.tables import ArrayTables

if TYPE_CHECKING:
    from ludus.games.adapters.gamecore import Gamecore

_MEANING = {"1v1": (0, -1, 1, 2, 3, 4, 5, 6, 7, 8, -1, -1), "3v3": (0, -1, 1, 2, 3, 4, 5, -1, 7, 8, -1, 6, -1)}
"""What the stand-in's heroes do with a button; -1: nothing, so that it is never legal."""
_HERO, _ENEMY, _UNIT = 20, 10, 5  # numbers about the hero itself, another hero, a minion, a tower or a crystal
_SCALE = np.float32(20.0)


def arena_of(mode: Mode, line_ups: Sequence[Sequence[Hero]]) -> Arena:
    classes = [[rules.class_of(hero.hero_id) for hero in camp] for camp in line_ups]
    chosen = [[hero.skill_id or rules.FLASH_ID for hero in camp] for camp in line_ups]
    return Arena(mode, np.array(classes), np.array(chosen))


def num_features(mode: Mode) -> int:
    """Size of a hero's observation."""
    heroes, minions = (1, 4) if mode == "1v1" else (3, 6)
    return _HERO + (2 * heroes - 1) * _ENEMY + (2 * minions + 4) * _UNIT


def features(arena: Arena, battles: Battles) -> Floats:
    """[tables, camps, heroes, numbers]: what every hero sees, with its own camp at the left end of the lane."""
    first, heroes = arena.first_hero, arena.heroes
    seen = arena.visible(battles)
    forward = np.array([1.0, -1.0], np.float32)[:, None, None]
    x, z = battles.x[:, :, first:, None], battles.z[:, :, first:, None]
    share = battles.hp / np.maximum(battles.full, 1)
    level = arena.level(battles)
    classes = np.eye(rules.NUM_CLASSES, dtype=np.float32)[arena.classes]
    num = len(battles.tick)
    shape = (num, rules.CAMPS, heroes)

    home = rules.from_home(battles.x)
    own = np.zeros((*shape, _HERO), np.float32)
    own[..., 0] = home[:, :, first:] / rules.LENGTH
    own[..., 1] = battles.z[:, :, first:] * forward[..., 0] / rules.WIDTH
    own[..., 2] = share[:, :, first:]
    own[..., 3] = level / rules.MOST_LEVEL
    own[..., 4] = battles.gold / 2000
    own[..., 5:10] = battles.cooldown / rules.COOLDOWN
    own[..., 10:13] = classes
    own[..., 13] = battles.respawn / 20
    own[..., 14] = battles.recall / rules.RECALL_TICKS
    own[..., 15] = battles.tick[:, None, None] / 250
    # Whether minions of its own stand before the enemy's tower, so that the tower does not shoot at heroes.
    minions = slice(rules.MINIONS, first)
    lead = np.where(battles.hp[:, :, minions] > 0, home[:, :, minions], 0).max(axis=2)
    own[..., 16] = lead[:, :, None] / rules.LENGTH
    own[..., 17] = battles.kills
    own[..., 18] = battles.deaths
    own[..., 17:19] /= 5
    own[..., 19] = (battles.tick % rules.WAVE_TICKS)[:, None, None] / rules.WAVE_TICKS

    parts = [own]
    for enemy in (False, True):
        other = slice(None, None, -1) if enemy else slice(None)
        visible = seen[:, other] if enemy else battles.hp > 0
        dx = (battles.x[:, other, None, :] - x) * forward / _SCALE
        dz = (battles.z[:, other, None, :] - z) * forward / _SCALE
        apart = np.sqrt(dx * dx + dz * dz)
        shown = np.broadcast_to(visible[:, :, None, :], dx.shape)
        unit = [shown, dx, dz, apart, np.broadcast_to(share[:, other, None, :], dx.shape)]
        known = (np.stack(unit, axis=4) * shown[..., None]).astype(np.float32)
        parts.append(known[..., :first, :].reshape(*shape, -1))
        facts = np.concatenate([(level / rules.MOST_LEVEL)[:, other, :, None], (battles.gold / 2000)[:, other, :, None],
                                np.broadcast_to(classes[other], (*shape, 3))], axis=3)  # fmt: skip
        facts = np.broadcast_to(facts[:, :, None], (*shape, heroes, 5)) * shown[..., first:, None]
        about = np.concatenate([known[..., first:, :], facts.astype(np.float32)], axis=4)
        if not enemy:  # all but the hero itself
            rows = np.array([[one for one in range(heroes) if one != self_] for self_ in range(heroes)], np.int64)
            about = about[:, :, np.arange(heroes)[:, None], rows]
        parts.append(about.reshape(*shape, -1))
    return np.concatenate(parts, axis=3)


def flags(arena: Arena, battles: Battles) -> Flags:
    """[tables, camps, heroes, flags]: what is legal, in the library's order: head after head, and in 1v1 targets by
    button."""
    targets = arena.targets(battles)
    usable = arena.usable(battles, targets)
    first, minions = arena.first_hero, arena.minions
    meaning = np.array(_MEANING[arena.mode])
    buttons = usable[..., np.maximum(meaning, 0)] & (meaning >= 0)
    shape = buttons.shape[:-1]
    organ = targets[..., : rules.MINIONS].any(axis=3, keepdims=True)
    enemies, soldiers = targets[..., first:], targets[..., rules.MINIONS : first]
    if arena.mode == "1v1":
        none = np.zeros((*shape, 1), np.bool_)
        row = np.concatenate([none, enemies, none, soldiers, organ], axis=3)
        aims = np.isin(meaning, (rules.ATTACK, rules.SKILL_1, rules.SKILL_3))
        by_button = row[..., None, :] & aims[:, None]
        return np.concatenate([buttons, np.ones((*shape, 64), np.bool_), by_button.reshape(*shape, -1)], axis=3)
    row = np.zeros((*shape, 39), np.bool_)
    row[..., 1:4], row[..., 28 : 28 + minions], row[..., 38:] = enemies, soldiers, organ
    return np.concatenate([buttons, np.ones((*shape, 25 + 42 + 42), np.bool_), row], axis=3)


def orders(arena: Arena, battles: Battles, rows: NDArray[np.int64]) -> HeroOrders:
    """HeroOrders from actions [tables, camps, heroes, heads] in the library's order."""
    button = np.array(_MEANING[arena.mode])[rows[..., 0]]
    moves = button == rules.MOVE
    if arena.mode == "1v1":
        at = np.where(moves[..., None], rows[..., 1:3], rows[..., 3:5]) - 7.5
    else:
        angle = np.deg2rad(180.0 - 15.0 * (rows[..., 1] - 1))
        towards = np.stack([np.cos(angle), np.sin(angle)], axis=-1) * (rows[..., 1:2] > 0)
        at = np.where(moves[..., None], towards, rows[..., 2:4] - 20.5)
    length = np.maximum(np.sqrt((at * at).sum(axis=-1, keepdims=True)), 1e-6)
    way = at / length * np.array([1.0, -1.0])[:, None, None]
    organ = np.where(battles.hp[:, ::-1, rules.TOWER] > 0, rules.TOWER, rules.CRYSTAL)[:, :, None]
    target, first = rows[..., -1], arena.first_hero
    enemies, soldiers = (1, 3) if arena.mode == "1v1" else (1, 28)
    last = 7 if arena.mode == "1v1" else 38
    slot = np.full(target.shape, -1)
    hero = (target >= enemies) & (target < enemies + arena.heroes)
    soldier = (target >= soldiers) & (target < soldiers + arena.minions)
    slot = np.where(hero, first + target - enemies, slot)
    slot = np.where(soldier, rules.MINIONS + target - soldiers, slot)
    slot = np.where(target == last, organ, slot)
    return HeroOrders(button=np.maximum(button, 0), way=way.astype(np.float32), target=slot)


def battle_state(arena: Arena, battles: Battles) -> Floats:
    """[tables, camps, numbers]: tower and crystal of each camp, then money, kills, deaths and damage to heroes of every
    hero; the own camp first."""
    organs = battles.hp[:, :, [rules.TOWER, rules.CRYSTAL]]
    heroes = np.stack([battles.gold, battles.kills, battles.deaths, battles.hurt], axis=3)
    camp = np.concatenate([organs, heroes.reshape(*heroes.shape[:2], -1)], axis=2)
    both: Floats = np.concatenate([camp, camp[:, ::-1]], axis=2).astype(np.float32)
    return both


class StandInTables(ArrayTables):
    """All heroes of both camps decide together, once in three frames."""

    def __init__(self, source: Gamecore, num_tables: int) -> None:
        super().__init__(source.spec, num_tables)
        self._source = source
        self.arena = arena_of(source.mode, source.line_ups)
        self.battles = self.arena.allocate(num_tables)
        self._ai = np.zeros((num_tables, rules.CAMPS), np.bool_)
        """[tables, camps]: camps of `common_ai`."""
        self._in_lobby = np.zeros(num_tables, np.bool_)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        self.arena.start(self.battles, tables, seeds)
        self._ai[tables] = [False, self._source.common_ai]
        self._in_lobby[tables] = self._source.has_lobby
        if self._source.has_lobby:
            for part in self.view.observation[0].values():
                part[tables] = 0
            for head, mask in self.view.legal[0].items():
                mask[tables] = np.arange(mask.shape[-1]) == 0 if head == "button" else True
        else:
            self._show(tables)

    def step(self, actions: Actions) -> None:
        live = ~self.view.over
        lobby, playing = np.flatnonzero(live & self._in_lobby), np.flatnonzero(live & ~self._in_lobby)
        self.view.reward[live] = 0
        if len(playing):
            self._play(playing, actions[0])
        if len(lobby):
            self._ai[lobby] = self._source.common_ai_camps({name: array[lobby] for name, array in actions[0].items()})
            self._in_lobby[lobby] = False
            alone = lobby[self._ai[lobby].all(axis=1)]
            while len(alone):  # two camps of `common_ai`: nobody decides, so the battle goes on to its end
                self._play(alone, actions[0])
                alone = alone[~self.view.over[alone]]
            lobby = lobby[~self.view.over[lobby]]
        shown = np.concatenate([playing[~self.view.over[playing]], lobby])
        if len(shown):
            self._show(shown)

    def _play(self, tables: IntArray, actions: Tree) -> None:
        source, arena, camps = self._source, self.arena, self._source.num_camps
        rows = source.action_rows({name: array[tables] for name, array in actions.items()})
        given = np.zeros((len(tables), rules.CAMPS, arena.heroes, rows.shape[-1]), np.int64)
        given[:, :camps] = rows.reshape(len(tables), camps, arena.heroes, -1)
        battles = self._part(tables)
        chosen, ai = orders(arena, battles, given), self._ai[tables]
        if ai.any():
            own = arena.common_ai(battles)
            for name in ("button", "way", "target"):
                getattr(chosen, name)[ai] = getattr(own, name)[ai]
        reward = arena.play(battles, chosen)
        if battles is not self.battles:
            self.battles.put(tables, battles)
        view, frame = self.view, battles.tick * rules.FRAMES_PER_TICK
        view.reward[tables] = reward[:, :camps].reshape(len(tables), -1)
        view.clock[tables] = frame
        over = arena.over(battles) | (frame >= source.max_frames)
        if over.any():
            ended = tables[over]
            stands = battles.hp[over, :, rules.CRYSTAL] > 0
            lead = stands[:, 0].astype(np.float32) - stands[:, 1]
            view.score[ended] = np.stack([lead, -lead], axis=1)[:, : self.spec.num_teams]
            view.over[ended], view.to_act[ended] = True, False

    def _part(self, tables: IntArray) -> Battles:
        """The battles at these tables: all of them in place, or a copy."""
        whole = np.array_equal(tables, np.arange(self.num_tables))
        return self.battles if whole else self.battles.take(tables)

    def _show(self, tables: IntArray) -> None:
        source, camps = self._source, self._source.num_camps
        battles = self._part(tables)
        seats = (len(tables), self.spec.num_seats)
        seen = features(self.arena, battles)
        observation = self.view.observation[0]
        observation["features"][tables, :, : seen.shape[-1]] = seen[:, :camps].reshape(*seats, -1)
        for head, mask in source.legal(flags(self.arena, battles)[:, :camps].reshape(*seats, -1)).items():
            self.view.legal[0][head][tables] = mask
        if source.critic_state:
            shown = np.zeros((*seen.shape[:3], source.num_features), np.float32)
            shown[..., : seen.shape[-1]] = seen
            shown[self._ai[tables]] = 0
            whole = np.concatenate([shown, shown[:, ::-1]], axis=2).reshape(len(tables), rules.CAMPS, -1)
            state = battle_state(self.arena, battles)
            for name, part in (("camps", whole), ("state", state / source.state_scale)):
                by_seat = np.repeat(part[:, :camps], self.arena.heroes, axis=1)
                observation[CRITIC_PREFIX + name][tables] = by_seat
        self.view.to_act[tables] = np.repeat(~self._ai[tables][:, :camps], self.arena.heroes, axis=1)
