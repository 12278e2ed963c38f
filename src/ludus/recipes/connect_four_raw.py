"""Connect four from the stones alone, without threat inputs: harder, so with more gradient steps."""

from __future__ import annotations

from dataclasses import replace

from ludus import ActorCritic, Experiment
from ludus.games import ConnectFour
from ludus.recipes import connect_four


def experiment() -> Experiment:
    base = connect_four.experiment()
    return replace(
        base,
        name="connect_four_raw",
        game=ConnectFour(threats=False),
        model=ActorCritic(hidden=(128, 128), activation="relu"),
        learner=replace(base.learner, epochs=4),
    )
