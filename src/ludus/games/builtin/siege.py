"""Siege, a small asymmetric game with a clock: an attacker's band against the one guard of four to six towns.

The seed draws the number of towns, each town's value (1 to 3) and walls (1 to 3), and where the guard begins.
Both seats act at tick 0, and again whenever their order is done:

* attacker (seat 0): `wait` for a `pause` of 1, 2 or 4 ticks; `raid` a standing town, which arrives after
  4 ticks and breaks 1 wall; or `storm` it, which arrives after 7 ticks and breaks 3 walls.
* defender (seat 1): `hold` the guard where it is for 2 ticks; or `march` it to a standing town, where it
  arrives after 3 ticks. A marching guard protects no town.

An attack on the guard's town is repelled (a guard that arrives in the same tick is in time) and costs the attacker 2
points. Any other attack breaks walls; a town without walls falls and pays the attacker its value. The defender gets the
opposite. A point is worth one tenth. The game is over when every town has fallen, and is cut off at tick 40.
Both seats see the towns, the guard's town and the time; the defender also sees a storm coming, but never a raid.
All other plans are visible to the critic only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ludus.data import specs
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import RandomBot, Rows
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.seeding import randbelow
from ludus.games.tables import ArrayTables, GameDefaults

WAIT, RAID, STORM = range(3)  # orders of the attacker
HOLD, MARCH = range(2)  # orders of the defender
PAUSES = (1, 2, 4)  # ticks that the attacker may wait

ATTACKER, DEFENDER = 0, 1
FEWEST_TOWNS, MOST_TOWNS = 4, 6
MOST_VALUE = 3
MOST_WALLS = 3
LAST_TICK = 40
REPELLED_COST = 2
POINT = 0.1
NOWHERE = -1

_VALUE, _WALLS, _STANDS, _GUARDED, _STORMED = range(5)  # features of a town; only the defender sees the last one
_ONE_WALL = 1 / 3

_ATTACK_TICKS = np.array([0, 4, 7])
_ATTACK_DAMAGE = np.array([0, 1, 3])
_DEFENCE_TICKS = np.array([2, 3])
_PAUSES = np.array(PAUSES)
_TOWNS = np.arange(MOST_TOWNS)


@dataclass(frozen=True, kw_only=True)
class Siege(GameDefaults):
    """No options."""

    @cached_property
    def spec(self) -> specs.GameSpec:
        attack = specs.ActionSpec(
            heads={
                "order": specs.Choice(num=STORM + 1),
                "target": specs.Pointer(into="towns", when=specs.When(head="order", values=(RAID, STORM))),
                "pause": specs.Choice(num=len(PAUSES), when=specs.When(head="order", values=(WAIT,))),
            }
        )
        defence = specs.ActionSpec(
            heads={
                "order": specs.Choice(num=MARCH + 1),
                "target": specs.Pointer(into="towns", when=specs.When(head="order", values=(MARCH,))),
            }
        )
        return specs.GameSpec(
            name="siege",
            kinds=(_kind("attacker", 4, 1, attack), _kind("defender", 5, 2, defence)),
            seats=(0, 1),
            teams=(0, 1),
            max_length=LAST_TICK,
            timed=True,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return SiegeTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), "rules": SiegeRules(), "storming": SiegeRules(storms=True)}


def _kind(name: str, town_features: int, times: int, action: specs.ActionSpec) -> specs.SeatKind:
    observation = specs.ObservationSpec(
        parts={"towns": specs.Entities(maximum=MOST_TOWNS, features=town_features), "time": specs.Vector(size=times)},
        critic={"plans": specs.Vector(size=2 * MOST_TOWNS + 2)},
    )
    return specs.SeatKind(name=name, observation=observation, action=action)


class SiegeTables(ArrayTables):
    """A step advances to the next tick at which an order is done, so at least one seat acts after it."""

    def __init__(self, spec: specs.GameSpec, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self._num_towns = np.zeros(num_tables, np.int64)
        self._values = np.zeros((num_tables, MOST_TOWNS), np.int64)
        self._walls = np.zeros((num_tables, MOST_TOWNS), np.int64)
        self._guard = np.zeros(num_tables, np.int64)
        self._order = np.zeros((num_tables, 2), np.int64)
        self._target = np.zeros((num_tables, 2), np.int64)
        self._done_at = np.zeros((num_tables, 2), np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        num_towns = FEWEST_TOWNS + randbelow(seeds, 0, MOST_TOWNS - FEWEST_TOWNS + 1)
        exists = num_towns[:, None] > _TOWNS
        self._num_towns[tables] = num_towns
        self._guard[tables] = randbelow(seeds, 1, num_towns)
        self._values[tables] = exists * (1 + randbelow(seeds[:, None], 2 + _TOWNS, MOST_VALUE))
        self._walls[tables] = exists * (1 + randbelow(seeds[:, None], 2 + MOST_TOWNS + _TOWNS, MOST_WALLS))
        self._order[tables] = (WAIT, HOLD)
        self._target[tables] = NOWHERE
        self._done_at[tables] = 0
        self._show(tables)

    def step(self, actions: Actions) -> None:
        view = self.view
        tables = np.flatnonzero(~(view.over | view.truncated))
        self._order_attacker(tables[view.to_act[tables, ATTACKER]], actions)
        self._order_defender(tables[view.to_act[tables, DEFENDER]], actions)

        now = np.minimum(self._done_at[tables].min(axis=1), LAST_TICK)
        done = self._done_at[tables] == now[:, None]
        view.clock[tables] = now
        gain = self._carry_out(tables, done)
        view.reward[tables, ATTACKER] = gain
        view.reward[tables, DEFENDER] = -gain
        view.score[tables] += view.reward[tables]

        over = ~self._walls[tables].any(axis=1)
        truncated = ~over & (now == LAST_TICK)
        view.over[tables] = over
        view.truncated[tables] = truncated
        view.to_act[tables] = done & ~(over | truncated)[:, None]
        self._show(tables)

    def _order_attacker(self, tables: IntArray, actions: Actions) -> None:
        chosen = {name: array[tables, 0] for name, array in actions[ATTACKER].items()}
        order, target, pause = chosen["order"], chosen["target"], chosen["pause"]
        attacks = order != WAIT
        column = np.array(0)
        self._require_legal("order", tables, column, order, kind=ATTACKER)
        self._require_legal("pause", tables, column, pause, kind=ATTACKER, counts=~attacks)
        self._require_legal("target", tables, column, target, kind=ATTACKER, counts=attacks)
        ticks = np.where(attacks, _ATTACK_TICKS[order], _PAUSES[np.where(attacks, 0, pause)])
        self._give_order(ATTACKER, tables, order, np.where(attacks, target, NOWHERE), ticks)

    def _order_defender(self, tables: IntArray, actions: Actions) -> None:
        order, target = (actions[DEFENDER][name][tables, 0] for name in ("order", "target"))
        marches, column = order == MARCH, np.array(0)
        self._require_legal("order", tables, column, order, kind=DEFENDER)
        self._require_legal("target", tables, column, target, kind=DEFENDER, counts=marches)
        self._give_order(DEFENDER, tables, order, np.where(marches, target, NOWHERE), _DEFENCE_TICKS[order])
        self._guard[tables[marches]] = NOWHERE

    def _give_order(self, seat: int, tables: IntArray, order: Array, target: Array, ticks: IntArray) -> None:
        self._order[tables, seat] = order
        self._target[tables, seat] = target
        self._done_at[tables, seat] = self.view.clock[tables] + ticks

    def _carry_out(self, tables: IntArray, done: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Complete the orders that are due, the guard's first; returns the attacker's gain."""
        order, target = self._order[tables], self._target[tables]
        arrives = done[:, DEFENDER] & (order[:, DEFENDER] == MARCH)
        self._guard[tables[arrives]] = target[arrives, DEFENDER]

        strikes = done[:, ATTACKER] & (order[:, ATTACKER] != WAIT)
        town = target[:, ATTACKER]
        repelled = strikes & (self._guard[tables] == town)
        breaks = strikes & ~repelled
        walls = self._walls[tables, town] - _ATTACK_DAMAGE[order[:, ATTACKER]]
        self._walls[tables[breaks], town[breaks]] = np.maximum(walls[breaks], 0)
        falls = breaks & (walls <= 0)

        self._order[tables] = np.where(done, (WAIT, HOLD), order)
        self._target[tables] = np.where(done, NOWHERE, target)
        gain: NDArray[np.float64] = POINT * (falls * self._values[tables, town] - REPELLED_COST * repelled)
        return gain

    def _show(self, tables: IntArray) -> None:
        clock = self.view.clock[tables]
        walls, storm = self._walls[tables], self._order[tables, ATTACKER] == STORM
        to_come = self._done_at[tables] - clock[:, None]
        attacked, marched_to = (self._target[tables, seat, None] == _TOWNS for seat in (ATTACKER, DEFENDER))
        guarded = self._guard[tables, None] == _TOWNS
        common = np.stack([self._values[tables] / MOST_VALUE, walls / MOST_WALLS, walls > 0, guarded], axis=2)
        stormed = attacked & storm[:, None]
        time_left = 1.0 - clock / LAST_TICK
        storm_to_come = storm * to_come[:, ATTACKER] / _ATTACK_TICKS[STORM]
        plans = np.concatenate([attacked, marched_to, to_come / _ATTACK_TICKS[STORM]], axis=1)

        for seat in (ATTACKER, DEFENDER):
            shown = self.view.observation[seat]
            shown["towns"][tables, 0, :, : common.shape[2]] = common
            shown[specs.length_name("towns")][tables, 0] = self._num_towns[tables]
            shown["time"][tables, 0, 0] = time_left
            shown[specs.CRITIC_PREFIX + "plans"][tables, 0] = plans
            self.view.legal[seat]["target"][tables, 0] = walls > 0
            for head in self.view.legal[seat].keys() - {"target"}:
                self.view.legal[seat][head][tables] = True
        self.view.observation[DEFENDER]["towns"][tables, 0, :, common.shape[2]] = stormed
        self.view.observation[DEFENDER]["time"][tables, 0, 1] = storm_to_come


@dataclass(frozen=True, kw_only=True)
class SiegeRules:
    """As attacker: raids the unguarded town with the most value per wall; with `storms`, storms two walls or more.

    As defender: marches to a stormed town, else to the town with the most value per wall. Ties are broken at random.
    """

    storms: bool = False

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        towns, standing = rows.observation["towns"], rows.mask("target")
        worth = towns[:, :, _VALUE] / np.maximum(towns[:, :, _WALLS], _ONE_WALL)
        guarded = towns[:, :, _GUARDED] > 0
        if rows.kind.name == "attacker":
            target = _best(worth - 10 * guarded, standing, rng)
            walls = np.take_along_axis(towns[:, :, _WALLS], target[:, None], axis=1)[:, 0]
            order = np.where(self.storms & (walls > 1.5 * _ONE_WALL), STORM, RAID)
            return _actions(order=order, target=target, pause=np.zeros_like(target))
        target = _best(worth + 10 * towns[:, :, _STORMED], standing, rng)
        there = np.take_along_axis(guarded, target[:, None], axis=1)[:, 0]
        return _actions(order=np.where(there, HOLD, MARCH), target=target)


def _best(worth: Array, standing: NDArray[np.bool_], rng: np.random.Generator) -> Array:
    """[rows]: a random one of the towns with the highest worth."""
    worth = np.where(standing, worth, -np.inf)
    equals = worth >= worth.max(axis=1, keepdims=True) - 1e-3
    best: Array = np.where(equals, rng.random(equals.shape), -1.0).argmax(axis=1)
    return best


def _actions(**heads: Array) -> Tree:
    return {name: values.astype(np.int32) for name, values in heads.items()}
