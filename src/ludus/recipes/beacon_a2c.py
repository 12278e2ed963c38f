"""The mini-game MoveToBeacon by plain actor-critic: each batch is used once."""

from __future__ import annotations

from dataclasses import replace

from ludus import A2C, Experiment
from ludus.recipes import beacon


def experiment() -> Experiment:
    base = beacon.experiment()
    return replace(
        base,
        name="beacon_a2c",
        budget=500_000,
        algorithm=A2C(gamma=0.95, lambda_=0.9, entropy=0.001),
        actor=replace(base.actor, unroll_length=8),
        learner=replace(base.learner, batch_size=512, minibatch_size=512, epochs=1, buffer_size=8_192),
    )
