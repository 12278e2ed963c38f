"""The mini-game MoveToBeacon by AlphaStar's network in its mini size; wants a GPU, or patience."""

from __future__ import annotations

from dataclasses import replace

from ludus import AlphaStar, Experiment, Linear
from ludus.recipes import beacon


def experiment() -> Experiment:
    base = beacon.experiment()
    return replace(
        base,
        name="beacon_alphastar",
        budget=500_000,
        model=AlphaStar(),
        algorithm=replace(base.algorithm, entropy=0.003),  # type: ignore[type-var]
        learner=replace(base.learner, learning_rate=Linear(start=8e-4, end=5e-5)),
    )
