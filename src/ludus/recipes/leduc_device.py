"""Leduc poker on one GPU: the recipe `leduc` with batches so large that chance in the games hardly moves the policy."""

from __future__ import annotations

from dataclasses import replace

from ludus import BySteps, DeviceConfig, Experiment
from ludus.recipes import leduc


def experiment() -> Experiment:
    base = leduc.experiment()
    main = replace(base.league.roles["main"], promotion=BySteps(every=100_000_000))
    return replace(
        base,
        name="leduc_device",
        budget=300_000_000,
        actor=replace(base.actor, num_tables=32_768, episodes_per_table=1_024),
        learner=replace(base.learner, batch_size=262_144, buffer_size=262_144, minibatch_size=16_384),
        league=replace(base.league, roles={"main": main}),
        checkpoint_every=100_000_000,
        runtime="device",
        device=DeviceConfig(),
    )
