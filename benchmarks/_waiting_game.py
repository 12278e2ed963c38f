"""Connect four at the pace of a game that runs elsewhere: an actor mostly waits, so that nodes of one machine
do not take each other's processor time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from ludus.experiment import Experiment
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.game import Actions, GameBatch
from ludus.league.matchmaking import SelfPlay
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.recipes import connect_four
from ludus.workers.actor import ActorConfig


@dataclass(frozen=True, kw_only=True)
class Waiting(ConnectFour):
    """Connect four whose steps take their time."""

    step_s: float = 0.04

    def tables(self, num_tables: int) -> GameBatch:
        batch: Any = super().tables(num_tables)
        plain = batch.step

        def step(actions: Actions) -> None:
            plain(actions)
            time.sleep(self.step_s)

        batch.step = step
        made: GameBatch = batch
        return made


def experiment() -> Experiment:
    """As the recipe, in smaller batches: an update every second or so. It only plays itself and is not
    evaluated, so that every step of every table is a decision to learn from, from the first to the last."""
    described = connect_four.experiment()
    return replace(
        described,
        name="waiting",
        game=Waiting(threats=True),
        actor=ActorConfig(num_tables=48, matches=2, episodes_per_table=4, unroll_length=16),
        learner=replace(described.learner, batch_size=2_048, epochs=1),
        league=LeagueRules(roles={"main": Role(matchmaking=SelfPlay())}),
        evaluation=EvaluationConfig(opponents=(), past=0),
    )
