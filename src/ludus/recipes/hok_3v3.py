"""Honor of Kings, three against three: one policy for all heroes, and a critic that sees both camps (MAPPO)."""

from __future__ import annotations

from dataclasses import replace

from ludus import Experiment, Linear
from ludus.algorithms import mappo
from ludus.recipes import hok_1v1


def experiment() -> Experiment:
    base = hok_1v1.experiment()
    return replace(
        base,
        name="hok_3v3",
        game=replace(base.game, mode="3v3"),  # type: ignore[type-var]
        budget=150_000,
        algorithm=mappo(gamma=0.995, lambda_=0.95, entropy=Linear(start=0.01, end=0.003)),
        actor=replace(base.actor, num_tables=base.actor.num_tables // 2),
    )
