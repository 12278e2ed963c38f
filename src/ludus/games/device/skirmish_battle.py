"""The battle of skirmish in torch: constants, ends and scores, and how a tick passes. The numpy game has the same in
`builtin/skirmish_battle.py`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish import FORMATION
from ludus.games.builtin.skirmish_battle import NOWHERE, PATCHES_AT, TRACKED
from ludus.games.device.tensor_game import TensorState

HALF = rules.PATCHES // 2
"""Patches of a side."""


class Constants(NamedTuple):
    """Tables of the rules, on a device."""

    health: Tensor
    speed: Tensor
    reach: Tensor
    cost: Tensor
    train_ticks: Tensor
    damage: Tensor
    """[kinds * kinds]: of attacker and target."""
    formation: Tensor
    """[x and y, slots]"""
    patches_at: Tensor
    """[x and y, patches of a side] float64"""
    first_offset: Tensor
    """[x and y, slots]: of the first units from their base."""
    aside: Tensor
    """[slots]: how far a new unit stands aside."""
    towards_middle: Tensor
    """[sides, 1]"""
    slot: Tensor
    side: Tensor
    """[sides, 1]"""
    own_patch: Tensor
    """[sides, slots]: the patch that a worker in this slot begins with."""
    seen_by_unit: Tensor
    """[places, places] float32: 1 where a unit in a cell sees another."""
    seen_by_base: Tensor

    @classmethod
    def on(cls, device: torch.device) -> Constants:
        slot = np.arange(rules.SLOTS)
        first = (slot >= 1) & (slot <= rules.FIRST_WORKERS)
        offset = 0.5 * (slot - 1 - (rules.FIRST_WORKERS - 1) / 2)
        middle = (np.arange(rules.CELLS) + 0.5) * rules.CELL
        x, y = np.tile(middle, rules.CELLS), np.repeat(middle, rules.CELLS)
        apart = np.hypot(x[:, None] - x, y[:, None] - y)
        side = np.arange(rules.SIDES)[:, None]
        arrays = (
            rules.HEALTH.astype(np.int16),
            rules.SPEED,
            rules.RANGE,
            rules.COST.astype(np.int16),
            rules.TRAIN_TICKS.astype(np.int8),
            rules.DAMAGE.astype(np.int16).reshape(-1),
            FORMATION,
            PATCHES_AT,
            np.where(first, np.stack([1.0 + offset, 1.0 - offset]), 0.0).astype(np.float32),
            (slot % 5 - 2).astype(np.float32) * np.float32(0.25),
            rules.TOWARDS_MIDDLE[:, None],
            slot.astype(np.int8),
            side.astype(np.int8),
            (side * HALF + slot % HALF).astype(np.int8),
            (apart <= rules.SIGHT[rules.WORKER]).astype(np.float32),
            (apart <= rules.SIGHT[rules.BASE]).astype(np.float32),
        )
        return cls(*(torch.from_numpy(np.array(array)).to(device) for array in arrays))


_CONSTANTS: dict[torch.device, Constants] = {}


def constants(device: torch.device) -> Constants:
    if device not in _CONSTANTS:
        _CONSTANTS[device] = Constants.on(device)
    return _CONSTANTS[device]


def is_over(state: TensorState) -> Tensor:
    return ~(state["health"][:, :, 0] > 0).all(1) | (state["tick"] >= rules.LAST_TICK)


def score(state: TensorState) -> Tensor:
    """[rows, sides]"""
    stands, left = state["health"][:, :, 0] > 0, state["health"].sum(2)
    lead, total = left[:, 0] - left[:, 1], left.sum(1)
    share = lead.double() / total.clamp(min=1)
    share = torch.where(share.abs() <= rules.NARROW, 0.0, 0.5 * share)
    fallen = stands[:, 0].double() - stands[:, 1].double()
    lead = torch.where(stands.all(1), share, fallen).float()
    return torch.stack((lead, -lead), 1)


# --- a tick ---


def tick(state: TensorState, goal: tuple[Tensor, Tensor], active: Tensor) -> TensorState:
    """One tick of the tables that are active."""
    after = {**state, "tick": state["tick"] + active}
    after = _train(after, active.unsqueeze(1))
    after = _fight_and_walk(after, goal, active.view(-1, 1, 1))
    return _gather(after, active.view(-1, 1, 1))


def _train(state: TensorState, active: Tensor) -> TensorState:
    known = constants(active.device)
    queue, made = state["queue"], state["made"]
    first = queue[:, :, 0]
    trained = state["trained"] + ((first > 0) & active)
    done = (first > 0) & active & (trained >= known.train_ticks[first.long()])
    new, kinds = done.unsqueeze(2), first.unsqueeze(2)
    listed = torch.arange(rules.BUILD_ORDER, device=active.device) == made.sum(2, keepdim=True)
    counted = kinds == torch.arange(rules.WORKER, rules.PATCH, dtype=torch.int8, device=active.device)
    free = state["health"] == 0
    put = new & free & (free.cumsum(2) == 1)
    towards = known.towards_middle
    order = torch.where(first == rules.WORKER, rules.GATHER, rules.NO_OP).unsqueeze(2).to(torch.int8)
    x, y = state["x"], state["y"]
    return {
        **state,
        "build_order": torch.where(new & listed, kinds, state["build_order"]),
        "made": made + (new & counted),
        "kind": torch.where(put, kinds, state["kind"]),
        "health": torch.where(put, known.health[first.long()].unsqueeze(2), state["health"]),
        "x": torch.where(put, x[:, :, :1] + towards * (1 + known.aside), x),
        "y": torch.where(put, y[:, :, :1] + towards * (1 - known.aside), y),
        "order": torch.where(put, order, state["order"]),
        "target": torch.where(put, known.own_patch, state["target"]),
        "digging": torch.where(put, 0, state["digging"]),
        "carries": state["carries"] & ~put,
        "queue": torch.where(new, functional.pad(queue[:, :, 1:], (0, 1)), queue),
        "trained": torch.where(done, 0, trained),
    }


def _fight_and_walk(state: TensorState, goal: tuple[Tensor, Tensor], active: Tensor) -> TensorState:
    known = constants(active.device)
    x, y, kind, health = state["x"], state["y"], state["kind"], state["health"]
    alive = (health > 0) & active
    fights, enemy, order = _enemies(state, alive)
    enemy_x, enemy_y, enemy_kind = (one.flip(1).gather(2, enemy) for one in (x, y, kind))
    reach = known.reach[kind.long()] + (enemy_kind == rules.BASE)
    strikes = fights & (_length(enemy_x - x, enemy_y - y) <= reach)
    comes_near = fights & ~strikes

    gathers = order == rules.GATHER
    walks = alive & (order != rules.NO_OP) & (order != rules.ATTACK) & ~fights
    home = state["carries"]
    to_x, to_y = (
        torch.where(
            comes_near, enemy_at, torch.where(gathers, torch.where(home, at[:, :, :1], _patch_at(state, axis)), sent)
        )
        for axis, at, sent, enemy_at in (("x", x, goal[0], enemy_x), ("y", y, goal[1], enemy_y))
    )
    way_x, way_y = to_x - x, to_y - y
    left = _length(way_x, way_y).clamp(min=1e-6)
    share = (known.speed[kind.long()] / left).clamp(max=1.0)
    moves = walks | comes_near
    arrives = walks & ~gathers & (left * (1 - share) <= rules.ARRIVED)
    order = torch.where(arrives, rules.NO_OP, order)

    damage = known.damage[kind.long() * rules.NUM_KINDS + enemy_kind.long()] * strikes
    # As int32: kernels of Triton cannot add to int16.
    taken = torch.zeros_like(health, dtype=torch.int32).scatter_add(2, enemy, damage.int()).flip(1).to(health.dtype)
    health = (health - taken).clamp(min=0)
    # An attack ends with its target: the next unit in that slot is another one.
    target_fell = health.flip(1).gather(2, state["target"].long()) == 0
    order = torch.where((health > 0) & active & (order == rules.ATTACK) & target_fell, rules.NO_OP, order)
    return {
        **state,
        "x": torch.where(moves, x + way_x * share, x),
        "y": torch.where(moves, y + way_y * share, y),
        "order": order,
        "health": health,
    }


def _enemies(state: TensorState, alive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The units that fight in this tick, the slot of the enemy of each, and orders without the attacks that ended."""
    order, kind, target = state["order"], state["kind"], state["target"].long()
    # Dead units are placed far away from all others.
    x, y = (torch.where(state["health"] > 0, state[axis], NOWHERE) for axis in ("x", "y"))
    across, up = (at[:, 0].unsqueeze(2) - at[:, 1].unsqueeze(1) for at in (x, y))
    apart = across * across + up * up  # [rows, slots of side 0, slots of side 1]
    nearest = [apart[:, :, 1:].min(2), apart[:, 1:].min(1)]  # without the base
    to_unit = _root(torch.stack([one.values for one in nearest], 1))
    slot = torch.stack([one.indices for one in nearest], 1) + 1
    to_base = _root(torch.stack((apart[:, :, 0], apart[:, 0]), 1))
    tracked = torch.stack((apart.amin(1), apart.amin(2)), 1).gather(2, target)

    watches = ((order == rules.NO_OP) & (kind != rules.WORKER)) | (order == rules.ADVANCE)
    sees_unit, sees_base = to_unit <= rules.NOTICE, to_base <= rules.NOTICE
    base_first = sees_base & (~sees_unit | (to_base + rules.BASE_LAST < to_unit))
    attacks = alive & (order == rules.ATTACK)
    lost = attacks & (tracked > TRACKED**2)
    fights = (alive & watches & (sees_unit | sees_base)) | (attacks & ~lost)
    enemy = torch.where(attacks, target, torch.where(base_first, 0, slot))
    return fights, enemy, torch.where(lost, rules.NO_OP, order)


def _patch_at(state: TensorState, axis: str) -> Tensor:
    """[rows, sides, slots]: where the patch of each worker is. Other units have any."""
    at = torch.cat((state[f"patch_{axis}"], rules.MAP - state[f"patch_{axis}"]), 1)
    number = state["target"].long() % rules.PATCHES
    return at.gather(1, number.flatten(1)).view(number.shape)


def _gather(state: TensorState, active: Tensor) -> TensorState:
    x, y, carries, patch = (state[name] for name in ("x", "y", "carries", "patch"))
    known = constants(active.device)
    works = (state["health"] > 0) & active & (state["order"] == rules.GATHER)
    delivers = works & carries & (_length(x[:, :, :1] - x, y[:, :, :1] - y) <= rules.BASE_REACH)
    number = (state["target"] - known.side * HALF).long() % HALF  # among the patches of its side
    to_patch = _length(_patch_at(state, "x") - x, _patch_at(state, "y") - y)
    left = patch.gather(2, number)
    digs = works & ~carries & (to_patch <= rules.REACH) & (left > 0)
    digging = state["digging"] + digs
    full = digs & (digging >= rules.DIG_TICKS)
    # The first workers get a load, while the patch has any left.
    claims = full.unsqueeze(3) & (number.unsqueeze(3) == torch.arange(HALF, device=x.device))
    before = (claims.cumsum(2) - claims.long()).gather(3, number.unsqueeze(3)).squeeze(3)
    loaded = full & (before * rules.LOAD < left)
    dug = (loaded.unsqueeze(3) & claims).sum(2) * rules.LOAD
    leaves = works & ~carries & (left == 0)
    onwards = known.side * HALF + (number + 1) % HALF
    return {
        **state,
        "resources": state["resources"] + (delivers.sum(2) * rules.LOAD).to(torch.int16),
        "patch": patch - dug.to(torch.int16),
        "digging": torch.where(loaded | leaves, 0, digging),
        "carries": (carries & ~delivers) | loaded,
        "target": torch.where(leaves, onwards.to(torch.int8), state["target"]),
    }


def _length(x: Tensor, y: Tensor) -> Tensor:
    return _root(x * x + y * y)


def _root(squares: Tensor) -> Tensor:
    """Rounded as numpy does: some kernels of PyTorch do not round square roots of float32 correctly."""
    return squares.double().sqrt().float()
