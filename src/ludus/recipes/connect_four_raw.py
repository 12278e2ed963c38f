"""Connect four from the stones alone, without threat inputs: harder, so with more gradient steps."""

from __future__ import annotations

from dataclasses import replace

from ludus.experiment import Experiment
from ludus.games.builtin.connect_four import ConnectFour
from ludus.models.network_policy import ActorCritic
from ludus.recipes import connect_four


def experiment() -> Experiment:
    base = connect_four.experiment()
    return replace(
        base,
        name="connect_four_raw",
        game=ConnectFour(threats=False),
        budget=5_000_000,
        model=ActorCritic(hidden=(128, 128), activation="relu"),
        learner=replace(base.learner, epochs=4),
    )
