"""Connect four by search on a CPU: `connect_four_device` with a smaller network and fewer tables. It takes about 25
minutes of one core; docs/search.md has what it reaches, beside PPO."""

from __future__ import annotations

from dataclasses import replace

from ludus import ActorCritic, BySteps, Experiment
from ludus.recipes import connect_four_device


def experiment() -> Experiment:
    base = connect_four_device.experiment()
    main = replace(base.league.roles["main"], promotion=BySteps(every=250_000))
    return replace(
        base,
        name="connect_four_search",
        budget=8_000_000,
        model=ActorCritic(hidden=(256, 256), activation="relu", separate_critic=False),
        actor=replace(base.actor, num_tables=1_024),
        learner=replace(base.learner, batch_size=8_192, minibatch_size=1_024, buffer_size=8_192),
        league=replace(base.league, roles={"main": main}),
        checkpoint_every=1_000_000,
    )
