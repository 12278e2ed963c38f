"""Kuhn poker on one GPU: the recipe `kuhn` with batches so large that chance in the games hardly moves the policy."""

from __future__ import annotations

from dataclasses import replace

from ludus import BySteps, DeviceConfig, Experiment, Linear
from ludus.recipes import kuhn


def experiment() -> Experiment:
    base = kuhn.experiment()
    main = replace(base.league.roles["main"], promotion=BySteps(every=25_000_000))
    return replace(
        base,
        name="kuhn_device",
        budget=100_000_000,
        actor=replace(base.actor, num_tables=16_384, episodes_per_table=1_024),
        learner=replace(
            base.learner,
            batch_size=131_072,
            buffer_size=131_072,
            minibatch_size=16_384,
            learning_rate=Linear(start=3e-3, end=1e-5),
        ),
        league=replace(base.league, roles={"main": main}),
        checkpoint_every=25_000_000,
        runtime="device",
        device=DeviceConfig(),
    )
