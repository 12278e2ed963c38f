"""Skirmish, a small real-time strategy game: gather, train, scout and fight until one base has fallen.

Two sides stand at opposite corners of a symmetric map of 32 by 32. In mode `1v1` a seat commands a side: workers
carry resources to the base, which trains workers, spears, horses and bows; a spear beats a horse beats a bow
beats a spear. In `3v3` and `5v5` a seat is a hero, stronger than a fighter of its kind, who returns 80 ticks
after its death, while the bases send waves of fighters by themselves.
Each decision names the number of ticks (1 to 8) until the next one; orders stay in force. A side sees only what
is near its own units. Destroying the enemy's base wins 1; after 512 ticks the stronger side gets half its lead.
All numbers are in `skirmish_rules.py`, all rules in docs/skirmish.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ludus.data import specs
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import RandomBot
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_battle import State, set_up, skill_targets, tick, use_skills
from ludus.games.builtin.skirmish_bots import HERO_STRATEGIES, STRATEGIES
from ludus.games.builtin.skirmish_view import (
    FEATURES,
    HERO_SCALARS,
    PLANES,
    SCALARS,
    SELF,
    SKILL_SCALARS,
    WHOLE,
    draw,
    see,
    turned,
)
from ludus.games.game import Actions, Bot, GameBatch, StrategyView
from ludus.games.tables import ArrayTables, GameDefaults

FORMATION = np.stack([np.arange(rules.SLOTS) % 5 - 2, np.arange(rules.SLOTS) // 5 % 5 - 2]).astype(np.float32) * 0.5
"""[x and y, slot]: offset of a unit from the point that it is sent to."""

Mode = Literal["1v1", "3v3", "5v5"]
HEROES: Mapping[str, tuple[int, ...]] = {
    "1v1": (),
    "3v3": (rules.SPEAR, rules.HORSE, rules.BOW),
    "5v5": (rules.SPEAR, rules.HORSE, rules.BOW, rules.SPEAR, rules.BOW),
}
"""The kinds of a side's heroes, by mode."""
KINDS: Mapping[str, int] = {"spear": rules.SPEAR, "horse": rules.HORSE, "bow": rules.BOW}


@dataclass(frozen=True, kw_only=True)
class Skirmish(GameDefaults):
    """The game in one of its modes."""

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.skirmish:TensorSkirmish.of"
    mode: Mode = "1v1"
    """`1v1`: a seat commands a side; `3v3` or `5v5`: a seat is a hero."""
    heroes: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    """The heroes of each side (spear, horse, bow), who then have skills: a spear heals own units around it, a horse
    charges at an enemy, a bow shoots a volley at several. None: the usual heroes, without skills."""

    def __post_init__(self) -> None:
        if self.mode not in HEROES:
            raise ValueError(f"Skirmish.mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}")
        if self.heroes is None:
            return
        size = len(HEROES[self.mode])
        if len(self.heroes) != rules.SIDES or {len(side) for side in self.heroes} != {size} or not size:
            wanted = f"{size} heroes for each of 2 sides" if size else "no heroes: its seats command a side"
            raise ValueError(f"Skirmish.heroes: mode {self.mode} has {wanted}, got {self.heroes}")
        for hero in (hero for side in self.heroes for hero in side):
            if hero not in KINDS:
                raise ValueError(f"Skirmish.heroes: a hero is one of {', '.join(KINDS)}, got {hero!r}")

    @cached_property
    def spec(self) -> specs.GameSpec:
        heroes = HEROES[self.mode]
        places = max(1, len(heroes))
        observation = specs.ObservationSpec(
            parts={
                "scalars": specs.Vector(
                    size=SCALARS + HERO_SCALARS * bool(heroes) + SKILL_SCALARS * (self.heroes is not None)
                ),
                "entities": specs.Entities(maximum=rules.ENTITIES, features=FEATURES, types=rules.NUM_KINDS),
                # Not uint8, which networks scale by 1 / 255.
                "minimap": specs.Planes(channels=PLANES, height=rules.CELLS, width=rules.CELLS, dtype="int8"),
            },
            critic={"whole": specs.Vector(size=WHOLE)},
        )
        return specs.GameSpec.symmetric(
            name="skirmish" if self.mode == "1v1" else f"skirmish {self.mode}",
            num_seats=2 * places,
            teams=(0,) * places + (1,) * places,
            observation=observation,
            action=_action(hero=bool(heroes), skills=self.heroes is not None),
            max_length=rules.LAST_TICK,
            timed=True,
        )

    def tables(self, num_tables: int) -> GameBatch:
        heroes = HEROES[self.mode]
        if heroes:
            line_ups = tuple(tuple(KINDS[hero] for hero in side) for side in self.heroes or ())
            return SkirmishTables(self.spec, num_tables, heroes, line_ups)
        return CommandedTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        strategies: Mapping[str, Bot] = HERO_STRATEGIES if HEROES[self.mode] else STRATEGIES
        return {"random": RandomBot(), **strategies}


def _action(hero: bool, skills: bool) -> specs.ActionSpec:
    heads: dict[str, specs.Head] = {
        "action": specs.Choice(num=rules.NUM_HERO_ACTIONS + skills if hero else rules.NUM_ACTIONS),
        "delay": specs.Choice(num=rules.LONGEST_DELAY, masked=False),
    }
    if not hero:
        ordered = specs.When(head="action", values=(rules.MOVE, rules.ADVANCE, rules.ATTACK, rules.GATHER))
        heads["units"] = specs.Pointer(into="entities", picks=rules.PICKS, when=ordered)
    moved = specs.When(head="action", values=(rules.MOVE, rules.ADVANCE))
    heads["target_unit"] = specs.Pointer(into="entities", when=specs.When(head="action", values=(rules.ATTACK,)))
    heads["target_point"] = specs.Point(height=rules.CELLS, width=rules.CELLS, when=moved)
    return specs.ActionSpec(heads=heads)


class SkirmishTables(ArrayTables):
    """The first half of the seats is side 0. With `heroes`, place i of a side is the unit in slot 1 + i. With
    `line_ups`, the kinds of both sides' heroes, these have skills."""

    def __init__(
        self, spec: specs.GameSpec, num_tables: int, heroes: tuple[int, ...], line_ups: tuple[tuple[int, ...], ...] = ()
    ) -> None:
        super().__init__(spec, num_tables)
        self.heroes = heroes
        self.line_ups = line_ups
        self.state = State.allocate(num_tables)
        self._side = np.asarray(spec.teams)
        self._slot = np.arange(spec.num_seats) % max(1, len(heroes)) + bool(heroes)
        """The slot of each seat: its hero, or the base if the seat commands the side."""
        self._acts_at = np.zeros((num_tables, spec.num_seats), np.int32)
        self._things = np.full((num_tables, spec.num_seats, rules.ENTITIES), -1, np.int8)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        set_up(self.state, tables, seeds, self.heroes, self.line_ups)
        self._acts_at[tables] = 0
        self._show(tables)

    def step(self, actions: Actions) -> None:
        live = np.flatnonzero(~self.view.over)
        self._command(live, actions[0])
        # Tables that wait longest come first, so that those still waiting are a slice and not a copy.
        unit = (live[:, None], self._side, self._slot)
        acts_at = np.where(self.state.alive[unit], self._acts_at[live], self.state.respawn_at[unit])
        waits = acts_at.min(axis=1) - self.state.tick[live]
        tables = live[np.argsort(-waits, kind="stable")]
        part = self.state.take(tables)
        waiting = len(tables)
        while waiting:
            now = part.first(waiting)
            tick(now, heroes=len(self.heroes))
            at = tables[:waiting]
            due = self._acts_at[at] <= now.tick[:, None]
            due &= now.alive[:, self._side, self._slot]
            over = ~now.alive[:, :, 0].all(axis=1) | (now.tick >= rules.LAST_TICK)
            ready = over | due.any(axis=1)
            self.view.to_act[at] = due & ~over[:, None]
            self.view.over[at] = over
            waiting -= int(np.count_nonzero(ready))
            if ready[:waiting].any():
                order = np.argsort(ready, kind="stable")
                now.put(np.arange(len(order)), now.take(order))
                tables[: len(order)] = at[order]
        self.state.put(tables, part)
        self.view.clock[live] = self.state.tick[live]
        self.view.reward[live] = 0.0
        if self.view.over[live].any():
            self._score(live[self.view.over[live]])
        self._show(live)

    def _score(self, tables: IntArray) -> None:
        state = self.state.take(tables)
        stands = state.alive[:, :, 0]
        health = state.health * state.alive
        # Heroes return, but bases do not heal.
        left = health[:, :, 0] if self.heroes else health.sum(axis=2)
        lead = (left[:, 0] - left[:, 1]) / np.maximum(left.sum(axis=1), 1)
        narrow = 0.0 if self.heroes else rules.NARROW
        lead = np.where(np.abs(lead) <= narrow, 0.0, 0.5 * lead)
        # A fallen base decides; two that fall in one tick are a draw.
        lead = np.where(stands.all(axis=1), lead, stands[:, 0].astype(np.float64) - stands[:, 1])
        self.view.score[tables] = np.stack([lead, -lead], axis=1)
        self.view.reward[tables] = self.view.score[tables][:, self._side]

    def _command(self, live: IntArray, actions: Tree) -> None:
        rows, seats = np.nonzero(self.view.to_act[live])
        tables = live[rows]
        chosen = {name: array[tables, seats] for name, array in actions.items()}
        action, delay = chosen["action"], chosen["delay"]
        self._check(tables, seats, chosen)
        self._acts_at[tables, seats] = self.state.tick[tables] + 1 + delay

        if self.heroes:
            row = np.flatnonzero((action != rules.NO_OP) & (action <= rules.ATTACK))
            self._order(tables[row], seats[row], self._slot[seats[row]], chosen, row)
            uses = action == rules.SKILL
            if self.line_ups and uses.any():
                use_skills(self.state, self._units(tables[uses], seats[uses]))
            return
        row, pick = np.nonzero((chosen["units"] >= 0) & ((action > rules.NO_OP) & (action <= rules.GATHER))[:, None])
        # Picks after the first -1 do not count.
        ended = np.logical_or.accumulate(chosen["units"] < 0, axis=1)[row, pick]
        row, pick = row[~ended], pick[~ended]
        slots = self._things[tables[row], seats[row], chosen["units"][row, pick]].astype(np.int64)
        self._order(tables[row], seats[row], slots, chosen, row)
        for kind, number in rules.TRAIN.items():
            base = (tables[action == number], self._side[seats[action == number]])
            waiting = (self.state.queue[base] > 0).sum(axis=1)
            self.state.queue[(*base, waiting)] = kind
            self.state.resources[base] -= rules.COST[kind]

    def _order(self, tables: IntArray, seats: IntArray, slots: IntArray, chosen: Tree, row: IntArray) -> None:
        """Give unit i the order of its seat, chosen[row[i]]."""
        state = self.state
        action = chosen["action"][row]
        sides = self._side[seats]
        able = (action != rules.GATHER) | (state.kind[tables, sides, slots] == rules.WORKER)
        tables, seats, slots, row, action, sides = (array[able] for array in (tables, seats, slots, row, action, sides))
        at = (tables, sides, slots)
        state.order[at] = action
        state.digging[at] = 0
        point = chosen["target_point"][row]
        for goal, axis, cell in ((state.goal_x, 0, point % rules.CELLS), (state.goal_y, 1, point // rules.CELLS)):
            wanted = ((cell + 0.5) * rules.CELL).astype(np.float32) + FORMATION[axis, slots]
            goal[at] = turned(np.clip(wanted, 0.5, rules.MAP - 0.5), sides)
        half = rules.PATCHES // 2
        attacks = action == rules.ATTACK
        enemy = self._things[tables, seats, np.where(attacks, chosen["target_unit"][row], 0)] - rules.SLOTS
        state.target[at] = np.where(attacks, enemy, sides * half + slots % half)

    def _check(self, tables: IntArray, seats: IntArray, chosen: Tree) -> None:
        action = chosen["action"]
        counts = {
            "action": True,
            "delay": True,
            "target_unit": action == rules.ATTACK,
            "target_point": (action == rules.MOVE) | (action == rules.ADVANCE),
        }
        for head, counted in counts.items():
            self._require_legal(head, tables, seats, chosen[head], counts=counted)
        if not self.heroes:
            ordered = (action != rules.NO_OP) & (action <= rules.GATHER)
            ended = np.logical_or.accumulate(chosen["units"] < 0, axis=1)
            ended[:, 0] = False  # the first pick is required
            counted = ordered[:, None] & ~ended
            self._require_legal("units", tables[:, None], seats[:, None], chosen["units"], counts=counted)

    def _show(self, tables: IntArray) -> None:
        """Write observations and masks of the seats to act at these tables."""
        rows, seats = np.nonzero(self.view.to_act[tables])
        if not len(rows):
            return
        sides = self._side[seats]
        pairs, pair = np.unique(tables[rows] * rules.SIDES + sides, return_inverse=True)
        seen = see(self.state, pairs // rules.SIDES, pairs % rules.SIDES)
        observation, at = self.view.observation[0], (tables[rows], seats)
        entities = seen.entities if len(pairs) == len(pair) else seen.entities[pair]
        things = seen.things[pair]
        self._things[at] = things
        scalars = seen.scalars[pair]
        if self.heroes:
            scalars, self_row = self._hero_scalars(*at), things == self._slot[seats][:, None]
            scalars = np.concatenate([seen.scalars[pair], scalars], axis=1)
            entities[:, :, SELF] = self_row
        observation["entities"][at] = entities
        observation[specs.length_name("entities")][at] = seen.length[pair]
        observation["minimap"][at] = seen.minimap[pair]
        observation["scalars"][at] = scalars
        observation[specs.CRITIC_PREFIX + "whole"][at] = seen.whole[pair]
        self._allow(at, sides, things)

    def _allow(self, at: tuple[IntArray, IntArray], sides: IntArray, things: Array) -> None:
        legal, tables = self.view.legal[0], at[0]
        enemies = (things >= rules.SLOTS) & (things < rules.SIDES * rules.SLOTS)
        mine = (things > 0) & (things < rules.SLOTS)
        actions = np.ones((len(tables), self.spec.kinds[0].num_options("action")), np.bool_)
        actions[:, rules.ATTACK] = enemies.any(axis=1)
        if not self.heroes:
            alive, kind = self.state.alive[tables, sides], self.state.kind[tables, sides]
            actions[:, rules.MOVE : rules.GATHER] &= mine.any(axis=1, keepdims=True)
            actions[:, rules.GATHER] = (alive & (kind == rules.WORKER)).any(axis=1)
            waiting = (self.state.queue[tables, sides] > 0).sum(axis=1)
            room = (waiting < rules.QUEUE) & (alive.sum(axis=1) + waiting < rules.SLOTS)
            for each, number in rules.TRAIN.items():
                actions[:, number] = room & (self.state.resources[tables, sides] >= rules.COST[each])
            legal["units"][at] = mine
        elif self.line_ups:
            actions[:, rules.SKILL] = skill_targets(self.state, self._units(*at)) >= 0
        legal["action"][at] = actions
        legal["target_unit"][at] = enemies

    def _hero_scalars(self, tables: IntArray, seats: IntArray) -> NDArray[np.float32]:
        sides = self._side[seats]
        at = (tables, sides, self._slot[seats])
        x, y = (turned(place[at], sides) / rules.MAP for place in (self.state.x, self.state.y))
        kind = self.state.kind[at]
        scalars = [x, y, self.state.health[at] / (rules.HEALTH[kind] * rules.HERO_HEALTH)]
        if self.line_ups:
            left = np.maximum(self.state.ready_at[at] - self.state.tick[tables], 0)
            scalars += [left / max(rules.SKILL_TICKS.values()), *(kind == each for each in rules.FIGHTERS)]
        return np.stack(scalars, axis=1).astype(np.float32)

    def _units(self, tables: IntArray, seats: IntArray) -> IntArray:
        """The flat indices of the seats' heroes."""
        units: IntArray = (tables * rules.SIDES + self._side[seats]) * rules.SLOTS + self._slot[seats]
        return units

    def things(self, table: int, seat: int) -> IntArray:
        """Rows of the seat's entity list: own slot, rules.SLOTS + enemy slot or 2 * rules.SLOTS + patch; then -1."""
        rows: IntArray = self._things[table, seat].astype(np.int64)
        return rows

    def render(self, table: int, seat: int | None = None) -> NDArray[np.uint8]:
        """RGB [512, 512, 3]: the table as the seat's side sees it, or whole."""
        return draw(self.state, table, None if seat is None else int(self._side[seat]))


class CommandedTables(SkirmishTables):
    """Tables at which a seat commands a side and chooses the units to train."""

    def __init__(self, spec: specs.GameSpec, num_tables: int) -> None:
        super().__init__(spec, num_tables, ())
        facts = len(rules.TRAINED) * len(rules.BUILT)
        self.strategy = StrategyView(
            build_order=self.state.build_order, built=np.zeros((num_tables, rules.SIDES, facts), np.bool_)
        )

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        super().reset(tables, seeds)
        self.strategy.built[tables] = False

    def step(self, actions: Actions) -> None:
        super().step(actions)
        built = self.state.made[..., None] >= np.array(rules.BUILT)
        self.strategy.built[:] = built.reshape(self.strategy.built.shape)
