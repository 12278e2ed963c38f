"""Skirmish in torch: seats that command a side (mode 1v1), as functions of tensors [tables, sides, slots].

A step plays the orders of the seats that act, then ticks until one of them must act again. Every table makes
`LONGEST_DELAY` ticks; those after its next decision change nothing. Numbers are computed in the order and types of
the numpy game (`skirmish_battle.py`, `skirmish_view.py`), so that both play the same episodes bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ludus.data.specs import CRITIC_PREFIX, length_name
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.skirmish_view import COUNT_UNIT, PLANES, RESOURCE_UNIT
from ludus.games.device.skirmish_battle import HALF, constants, is_over, score, tick
from ludus.games.device.skirmish_bots import TensorCommanders
from ludus.games.device.tensor_game import START, Function, TensorActions, TensorState, TensorStep, TensorTwin
from ludus.games.game import GameSource
from ludus.games.seeding import uniform

_PLACES = rules.CELLS**2
_UNITS = rules.SIDES * rules.SLOTS
_NUMBERS = 2 + 2 * HALF
_FULL, _LONGEST = int(rules.HEALTH[rules.BASE]), int(rules.TRAIN_TICKS.max())
"""Numbers of Python: a compiled function would stop to read those of numpy."""
_COARSE = 2.0**24
"""A random number of the numpy game has 53 bits: it is drawn as two float32 numbers, coarse and fine."""


class _Sight(NamedTuple):
    """What a side of each table sees, [rows, ...], with its own base at the lower left."""

    own: Tensor
    """[rows, slots] bool: own units."""
    enemies: Tensor
    patches: Tensor
    x: Tensor
    """[rows, entities]: of own units, enemies and patches."""
    y: Tensor
    cells: Tensor
    visible: Tensor
    """[rows, places] float32: 1 where a cell is in sight."""


@dataclass(frozen=True)
class TensorSkirmish(TensorTwin):
    """The state, by unit [rows, sides, slots]: `kind`, `health` (0: the slot is free), `x`, `y`, `order`, `goal` (the
    cell that it is sent to), `target`, `digging`, `carries`; by side: `queue`, `trained`, `resources`, `acts_at`,
    `made` and `build_order`; `patch` [rows, sides, patches of a side], and the places of those of side 0; `tick`."""

    simultaneous: ClassVar[bool] = True
    start_draws: ClassVar[int] = 2 * _NUMBERS

    @classmethod
    def of(cls, game: GameSource) -> TensorSkirmish | None:
        """None for games of heroes, in which a team has several seats."""
        assert isinstance(game, Skirmish)
        return cls(game) if game.mode == "1v1" else None

    def tensor_bots(self) -> TensorCommanders | None:
        return TensorCommanders.of(self.game.bots())

    def draws(self, seeds: NDArray[np.uint64], step: int) -> NDArray[np.float32]:
        if step != START:
            return np.zeros((len(seeds), 0), np.float32)
        scaled = uniform(seeds[:, None], np.arange(_NUMBERS)[None, :]) * _COARSE
        coarse = np.floor(scaled)
        fine = np.floor((scaled - coarse) * _COARSE)
        return (np.stack([coarse, fine], 2) / _COARSE).reshape(len(seeds), self.start_draws).astype(np.float32)

    def start(self, draws: Tensor) -> TensorState:
        rows, device, known = len(draws), draws.device, constants(draws.device)
        pairs = draws.double().view(rows, _NUMBERS, 2)
        numbers = pairs[:, :, 0] + pairs[:, :, 1] / _COARSE
        home = rules.HOME + 2.0 * (numbers[:, :2] - 0.5)
        jitter = 0.8 * (numbers[:, 2:].view(rows, 2, HALF) - 0.5)
        patch_at = (home.unsqueeze(2) + known.patches_at + jitter).float()
        own = home.float().unsqueeze(2) + known.first_offset
        both = torch.stack((own, rules.MAP - own), 2)  # [rows, x and y, sides, slots]

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        units, side = (rules.SIDES, rules.SLOTS), (rules.SIDES,)
        is_worker = (known.slot >= 1) & (known.slot <= rules.FIRST_WORKERS)
        kind = (is_worker * rules.WORKER).to(torch.int8).expand(rows, *units)
        here = known.slot <= rules.FIRST_WORKERS
        return {
            "kind": kind.clone(),
            "health": torch.where(here, known.health[kind.long()], 0),
            "x": both[:, 0].contiguous(),
            "y": both[:, 1].contiguous(),
            "order": zeros(*units, dtype=torch.int8),
            "goal": zeros(*units, dtype=torch.uint8),
            "target": zeros(*units, dtype=torch.int8),
            "digging": zeros(*units, dtype=torch.int8),
            "carries": zeros(*units, dtype=torch.bool),
            "queue": zeros(*side, rules.QUEUE, dtype=torch.int8),
            "trained": zeros(*side, dtype=torch.int8),
            "resources": zeros(*side, dtype=torch.int16) + rules.FIRST_RESOURCES,
            "acts_at": zeros(*side, dtype=torch.int16),
            "made": zeros(*side, len(rules.TRAINED), dtype=torch.int8),
            "build_order": zeros(*side, rules.BUILD_ORDER, dtype=torch.int8) - 1,
            "patch": zeros(*side, HALF, dtype=torch.int16) + rules.PATCH_AMOUNT,
            "patch_x": patch_at[:, 0].contiguous(),
            "patch_y": patch_at[:, 1].contiguous(),
            "tick": zeros(dtype=torch.int16),
        }

    def to_act(self, state: TensorState) -> Tensor:
        return state["acts_at"] <= state["tick"].unsqueeze(1)

    def built(self, state: TensorState) -> tuple[Tensor, Tensor]:
        """What each seat has built: its order [rows, seats, places] and facts [rows, seats, facts], as the CPU game
        has them in its `StrategyView`."""
        least = torch.stack([state["made"] >= number for number in rules.BUILT], -1)
        return state["build_order"], least.flatten(2)

    # --- what a seat sees and may do ---

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        known, sight = constants(seats.device), _sight(state, seats)
        kind, health, order = (_own_first(state[name], seats) for name in ("kind", "health", "order"))
        carries, rows = _own_first(state["carries"], seats), len(seats)
        left = state["patch"].flatten(1)
        kinds = functional.pad(kind.flatten(1), (0, rules.PATCHES), value=rules.PATCH)
        is_own = torch.arange(rules.ENTITIES, device=seats.device) < rules.SLOTS
        is_unit = torch.arange(rules.ENTITIES, device=seats.device) < _UNITS
        share = torch.cat((health.flatten(1) / known.health[kind.flatten(1).long()], left / rules.PATCH_AMOUNT), 1)
        nothing = torch.zeros_like(share)
        own_order = functional.pad(order[:, 0], (0, rules.ENTITIES - rules.SLOTS))
        features = [
            kinds.float(),
            is_own.float().expand_as(share),
            (is_unit & ~is_own).float().expand_as(share),
            nothing,  # a hero
            share,
            sight.x / rules.MAP,
            sight.y / rules.MAP,
            functional.pad(carries[:, 0], (0, rules.ENTITIES - rules.SLOTS)).float(),
            nothing,  # the seat itself
            *((own_order == one).float() for one in range(rules.MOVE, rules.GATHER + 1)),
        ]
        present = torch.cat((sight.own, sight.enemies, sight.patches), 1)
        length = present.sum(1)
        # Where each entity of the list comes from. Those that are not seen are written to a place that is cut off.
        place = torch.where(present, present.cumsum(1) - 1, rules.ENTITIES)
        number = torch.arange(rules.ENTITIES, device=seats.device).expand_as(place)
        source = torch.zeros(rows, rules.ENTITIES + 1, dtype=torch.int64, device=seats.device).scatter(1, place, number)
        source = source[:, : rules.ENTITIES].unsqueeze(2)
        table = torch.stack(features, 2)
        listed = table.gather(1, source.expand_as(table)) * (number < length.unsqueeze(1)).unsqueeze(2)

        plane = torch.where(is_unit, torch.where(is_own, 0, 2), 4) + (kinds == rules.BASE)
        cell = plane * _PLACES + sight.cells
        counts = torch.zeros(rows, (PLANES - 1) * _PLACES, device=seats.device)
        counts = counts.scatter_add(1, cell, present.float())
        minimap = torch.cat((counts, sight.visible), 1).view(rows, PLANES, rules.CELLS, rules.CELLS)
        return {
            "scalars": self._scalars(state, seats, kind, sight),
            "entities": listed,
            length_name("entities"): length.int(),
            "minimap": minimap,
            CRITIC_PREFIX + "whole": self._whole(state, seats, kind, health),
        }

    def _scalars(self, state: TensorState, seats: Tensor, kind: Tensor, sight: _Sight) -> Tensor:
        queue, resources, trained, health = (
            _own_first(state[name], seats)[:, 0] for name in ("queue", "resources", "trained", "health")
        )
        own, seen, queued = [], [], []
        for each in rules.TRAINED:
            own.append((sight.own & (kind[:, 0] == each)).sum(1) / COUNT_UNIT)
            queued.append((queue == each).sum(1) / rules.QUEUE)
            seen.append((sight.enemies & (kind[:, 1] == each)).sum(1) / COUNT_UNIT)
        columns = [
            1.0 - state["tick"] / rules.LAST_TICK,
            resources / RESOURCE_UNIT,
            *own,
            *queued,
            sight.own.sum(1) / rules.SLOTS,
            trained / _LONGEST,
            health[:, 0] / _FULL,
            *seen,
        ]
        return torch.stack(columns, 1)

    def _whole(self, state: TensorState, seats: Tensor, kind: Tensor, health: Tensor) -> Tensor:
        numbers = [((health > 0) & (kind == each)).sum(2) / COUNT_UNIT for each in rules.TRAINED]
        numbers += [
            _own_first(state["resources"], seats) / RESOURCE_UNIT,
            health[:, :, 0] / _FULL,
            health.sum(2) / _FULL,
        ]
        return torch.cat(numbers, 1)

    def legal(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        known, sight = constants(seats.device), _sight(state, seats)
        kind, queue, resources = (_own_first(state[name], seats)[:, 0] for name in ("kind", "queue", "resources"))
        num_own, num_enemies = sight.own.sum(1, keepdim=True), sight.enemies.sum(1, keepdim=True)
        place = torch.arange(rules.ENTITIES, device=seats.device)
        mine = (place > 0) & (place < num_own)
        enemies = (place >= num_own) & (place < num_own + num_enemies)
        commands, attacks = num_own > 1, num_enemies > 0
        workers = (sight.own & (kind == rules.WORKER)).any(1, keepdim=True)
        waiting = (queue > 0).sum(1, keepdim=True)
        room = (waiting < rules.QUEUE) & (num_own + waiting < rules.SLOTS)
        affords = resources.unsqueeze(1) >= known.cost[rules.WORKER : rules.PATCH]
        always = torch.ones_like(commands)
        actions = [always, commands, commands, commands & attacks, workers, room & affords]
        return {"action": torch.cat(actions, 1), "units": mine, "target_unit": enemies}

    # --- a step ---

    def step(self, state: TensorState, actions: TensorActions, draws: Tensor) -> TensorStep:
        return _played(state, actions, self._begun, self._ticked, self._ended)

    def step_apart(self, compiled: Callable[[Function], Function]) -> Callable[..., TensorStep]:
        begun, ticked, ended = (compiled(part) for part in (self._begun, self._ticked, self._ended))
        return lambda state, actions, draws: _played(state, actions, begun, ticked, ended)

    def _begun(self, state: TensorState, actions: dict[str, Tensor]) -> tuple[TensorState, tuple[Tensor, Tensor]]:
        """The state after the orders of the seats that act, and the places that units are sent to."""
        now = _command(state, actions, self.to_act(state))
        return now, _goals(now["goal"])

    def _ticked(self, now: TensorState, goal: tuple[Tensor, Tensor], active: Tensor) -> tuple[TensorState, Tensor]:
        """One tick at the `active` tables, and those of them that go on."""
        now = tick(now, goal, active)
        return now, active & ~(is_over(now) | self.to_act(now).any(1))

    def _ended(self, state: TensorState, now: TensorState) -> TensorStep:
        over = is_over(now)
        reward = torch.where(over.unsqueeze(1), score(now), 0.0)
        return TensorStep(now, reward, over, elapsed=now["tick"] - state["tick"])


def _played(
    state: TensorState, actions: TensorActions, begun: Function, ticked: Function, ended: Function
) -> TensorStep:
    """A step: ticks up to the next decision of a seat."""
    now, goal = begun(state, actions)
    active = torch.ones_like(state["tick"], dtype=torch.bool)
    for _ in range(rules.LONGEST_DELAY):
        now, active = ticked(now, goal, active)
    played: TensorStep = ended(state, now)
    return played


def _own_first(by_side: Tensor, seats: Tensor) -> Tensor:
    """[rows, sides, ...] with the side of the seat first."""
    return torch.where(seats.view(-1, *(1,) * (by_side.dim() - 1)) == 0, by_side, by_side.flip(1))


def _turned(at: Tensor, seats: Tensor) -> Tensor:
    """Coordinates [rows, ...] as the side sees them, or back: the map makes a half turn for side 1."""
    return torch.where(seats.view(-1, *(1,) * (at.dim() - 1)) == 0, at, rules.MAP - at)


def _sight(state: TensorState, seats: Tensor) -> _Sight:
    known = constants(seats.device)
    alive = _own_first(state["health"], seats) > 0
    ends = []
    for axis in ("x", "y"):
        patches = torch.cat((state[f"patch_{axis}"], rules.MAP - state[f"patch_{axis}"]), 1)
        ends.append(_turned(torch.cat((_own_first(state[axis], seats).flatten(1), patches), 1), seats))
    columns, rows = ((at / rules.CELL).long().clamp(0, rules.CELLS - 1) for at in ends)
    cells = rows * rules.CELLS + columns
    stands = torch.zeros(len(seats), _PLACES, device=seats.device)
    stands = stands.scatter_add(1, cells[:, 1 : rules.SLOTS], alive[:, 0, 1:].float()).clamp(max=1.0)
    visible = (stands @ known.seen_by_unit + known.seen_by_base.index_select(0, cells[:, 0]) > 0).float()
    seen = visible.gather(1, cells[:, rules.SLOTS :]) > 0
    left = state["patch"].flatten(1) > 0
    return _Sight(
        own=alive[:, 0],
        enemies=alive[:, 1] & seen[:, : rules.SLOTS],
        patches=left & seen[:, rules.SLOTS :],
        x=ends[0],
        y=ends[1],
        cells=cells,
        visible=visible,
    )


def _command(state: TensorState, actions: dict[str, Tensor], acts: Tensor) -> TensorState:
    """The state after the orders of the seats that act."""
    known = constants(acts.device)
    action = actions["action"]
    chosen = action.unsqueeze(2)
    ordered = acts & (action >= rules.MOVE) & (action <= rules.GATHER)
    alive = state["health"] > 0
    place = (alive.cumsum(2) - 1).unsqueeze(3)  # own units come first in the list of entities
    counts = (actions["units"] >= 0).cumprod(2).bool().unsqueeze(2)  # picks after the first -1 do not
    picked = alive & ((actions["units"].unsqueeze(2) == place) & counts).any(3)
    gets = ordered.unsqueeze(2) & picked & ((chosen != rules.GATHER) | (state["kind"] == rules.WORKER))
    enemy = torch.stack([_aimed_at(state, actions, side) for side in range(rules.SIDES)], 1)
    target = torch.where(chosen == rules.ATTACK, enemy.unsqueeze(2).to(torch.int8), known.own_patch)

    trains = acts & (action > rules.GATHER)
    kind = torch.where(trains, action - rules.GATHER, 0)
    waiting = (state["queue"] > 0).sum(2, keepdim=True)
    joins = trains.unsqueeze(2) & (torch.arange(rules.QUEUE, device=acts.device) == waiting)
    cost = torch.where(trains, known.cost[kind], 0)
    next_at = (state["tick"].unsqueeze(1) + 1 + actions["delay"]).to(torch.int16)
    return {
        **state,
        "order": torch.where(gets, chosen.to(torch.int8), state["order"]),
        "digging": torch.where(gets, 0, state["digging"]),
        "goal": torch.where(gets, actions["target_point"].unsqueeze(2).to(torch.uint8), state["goal"]),
        "target": torch.where(gets, target, state["target"]),
        "queue": torch.where(joins, kind.unsqueeze(2).to(torch.int8), state["queue"]),
        "resources": state["resources"] - cost,
        "acts_at": torch.where(acts, next_at, state["acts_at"]),
    }


def _aimed_at(state: TensorState, actions: dict[str, Tensor], side: int) -> Tensor:
    """[rows]: the slot of the enemy that a side points at."""
    sight = _sight(state, torch.full_like(state["tick"], side, dtype=torch.int64))
    place = sight.own.sum(1, keepdim=True) + sight.enemies.cumsum(1) - 1
    aimed = sight.enemies & (place == actions["target_unit"][:, side : side + 1])
    return (aimed * torch.arange(rules.SLOTS, device=place.device)).sum(1)


def _goals(goal: Tensor) -> tuple[Tensor, Tensor]:
    """x and y [rows, sides, slots] of the places that units are sent to."""
    known, cell, found = constants(goal.device), goal.long(), []
    for axis, number in ((0, cell % rules.CELLS), (1, cell // rules.CELLS)):
        wanted = (number + 0.5) * rules.CELL + known.formation[axis]
        inside = wanted.clamp(0.5, rules.MAP - 0.5)
        found.append(torch.where(known.side == 0, inside, rules.MAP - inside))
    return found[0], found[1]
