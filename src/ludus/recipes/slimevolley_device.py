"""SlimeVolley for one large GPU, not run on one yet: the recipe `slimevolley` with batches of thousands of rallies.

As there, the game's own player, `baseline`, is an examiner only. Products stay float32, because bfloat16 would round
the place of the ball to a third of its radius.
"""

from __future__ import annotations

from dataclasses import replace

from ludus import ActorCritic, BySteps, Experiment, Linear, Warmup
from ludus.league import BoundedHistory
from ludus.recipes import slimevolley


def experiment() -> Experiment:
    base = slimevolley.experiment()
    promotion = BySteps(every=125_000_000)
    main = replace(base.league.roles["main"], promotion=promotion, history=BoundedHistory(size=16))
    return replace(
        base,
        name="slimevolley_device",
        budget=2_500_000_000,
        model=ActorCritic(hidden=(128, 128)),
        actor=replace(base.actor, num_tables=8_192, matches=16, episodes_per_table=2),
        learner=replace(
            base.learner,
            batch_size=1_048_576,  # 64 frames of each table, as in `slimevolley`
            minibatch_size=32_768,
            buffer_size=1_048_576,
            epochs=3,
            learning_rate=Warmup(then=Linear(start=1e-3, end=5e-5), over=0.005),
        ),
        league=replace(base.league, roles={"main": main}),
        checkpoint_every=500_000_000,
    )
