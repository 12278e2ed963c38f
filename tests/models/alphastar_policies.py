"""Kinds of seat and small AlphaStar networks for them."""

from dataclasses import replace

import numpy as np
import torch
from batches import PLAIN, RICH, play

from ludus.data.specs import (
    ActionSpec,
    Choice,
    Entities,
    ObservationSpec,
    Planes,
    Point,
    Pointer,
    SeatKind,
    Vector,
    When,
)
from ludus.models.alphastar import AlphaStar
from ludus.models.alphastar_encoder import Scatter

BATTLE = SeatKind(
    name="battle",
    observation=ObservationSpec(
        parts={
            "scalars": Vector(size=4),
            "clock": Vector(size=2),
            "units": Entities(maximum=7, features=4, types=6),
            "screen": Planes(channels=2, height=17, width=18, dtype="uint8"),
            "creep": Planes(channels=1, height=17, width=18, dtype="bool"),
            "minimap": Planes(channels=3, height=8, width=8),
        },
        critic={"enemies": Entities(maximum=5, features=3, types=6), "whole": Vector(size=3)},
    ),
    action=ActionSpec(
        heads={
            "type": Choice(num=6),
            "delay": Choice(num=3, masked=False),
            "group": Pointer(into="units", picks=3, when=When(head="type", values=(1, 2, 3))),
            "target": Pointer(into="units", when=When(head="type", values=(1,))),
            "near": Point(height=17, width=18, when=When(head="type", values=(2,)), masked=True),
            "far": Point(height=32, width=32, when=When(head="type", values=(3,))),
        }
    ),
    rewards=("build_order", "built"),
)
ONLY_MAP = SeatKind(
    name="only map",
    observation=ObservationSpec(parts={"map": Planes(channels=1, height=16, width=16)}),
    action=ActionSpec(heads={"place": Point(height=16, width=16)}),
)
PICKS_FIRST = SeatKind(
    name="picks first",
    observation=ObservationSpec(parts={"units": Entities(maximum=4, features=1, types=3)}),
    action=ActionSpec(heads={"units": Pointer(into="units", picks=2), "order": Choice(num=3), "much": Choice(num=2)}),
)
ORDERS = SeatKind(
    name="orders",
    observation=ObservationSpec(
        parts={
            "scalars": Vector(size=4),
            "units": Entities(maximum=5, features=5, types=6, categories=(4, 3)),
            "steps": Entities(maximum=3, features=2, types=4, categories=(3,)),
        },
        critic={"units": Entities(maximum=5, features=5, types=6, categories=(4, 3)), "scalars": Vector(size=4)},
    ),
    action=ActionSpec(heads={"type": Choice(num=3), "target": Pointer(into="units")}),
)
SMALL = AlphaStar(
    scalar_size=4,
    entity_size=8,
    entity_hidden=8,
    scatter_channels=3,
    map_channels=4,
    down=(6, 5),
    spatial_size=8,
    hidden=(12,),
    memory=7,
    action_size=12,
    head_hidden=9,
    key_size=6,
    embedding_size=10,
    up=(3,),
    value_size=8,
)
ONTO_SCREEN = Scatter(entities="units", onto="screen", x=1, y=3, scale=2.0)
CONFIGS = {
    "plain": (PLAIN, SMALL),
    "rich": (RICH, replace(SMALL, memory_layers=0, value_normalisation=True)),
    "battle": (BATTLE, replace(SMALL, scatter=(ONTO_SCREEN,), context=("clock",))),
    "deep": (
        BATTLE,
        replace(
            SMALL,
            memory_layers=3,
            map_blocks=2,
            entity_layers=2,
            action_blocks=2,
            separate_critic=True,
            central_critic=True,
            bounded_value=True,
            temperatures={"type": 0.8, "group": 0.8},
        ),
    ),
    "cut": (
        BATTLE,
        replace(
            SMALL,
            entity_types=(0, 3, 4),
            actions=(0, 1, 2, 3),
            parts={"minimap": False, "clock": False, "screen": True},
        ),
    ),
    "orders": (
        ORDERS,
        replace(
            SMALL,
            part_sizes={"scalars": 6, "steps": 4},
            context=("scalars", "steps"),
            separate_critic=True,
            central_critic=True,
            parts={"critic.units": False},
        ),
    ),
    "only map": (ONLY_MAP, replace(SMALL, hidden=(), memory=0, map_blocks=0, action_blocks=0, up=())),
    "picks first": (PICKS_FIRST, SMALL),
}


def build(name, seed=0):
    """A policy whose heads are far from uniform: their last layers start small."""
    kind, config = CONFIGS[name]
    policy = config.build(kind, seed)
    with torch.no_grad():
        for parameter in policy.heads.parameters():
            if parameter.abs().max() < 0.1:
                parameter.mul_(50.0)
    return policy


def a_batch(policy, num_steps=6, num_columns=5, seed=1):
    return play(policy, np.random.default_rng(seed), num_steps, num_columns)
