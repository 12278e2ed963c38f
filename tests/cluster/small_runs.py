"""A run that starts in seconds, for tests of the cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.shared_parts import SharedParts
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def small(**changes: Any) -> Experiment:
    opponents = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))
    described = Experiment(
        name="small",
        game=Kuhn(),
        budget=12_000,
        model=ActorCritic(hidden=(16,)),
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=8, unroll_length=8),
        learner=LearnerConfig(batch_size=1_000, minibatch_size=1_000, epochs=1, buffer_size=8_000),
        league=LeagueRules(
            roles={"main": Role(matchmaking=opponents, promotion=BySteps(every=4_000))}, bots=("random",)
        ),
        evaluation=EvaluationConfig(opponents=("random",), past=1, episodes=32),
        checkpoint_every=3_000,
        runtime="ray",
    )
    return replace(described, **changes)


def parts_in_memory(num_places: int = 3, ranks: int = 1) -> SharedParts:
    """As a node has them, in this process alone."""
    described = small()
    described = replace(described, learner=replace(described.learner, ranks=ranks))
    return SharedParts(described, {"main": "main"}, num_places, np.zeros)


def play(parts: SharedParts, actor: int, rng: np.random.Generator, count: int = 5) -> Any:
    """Fill slots of an actor with anything, of different lengths; gives their numbers."""
    slots = np.array(list(parts.slots_of(actor)[0])[:count])
    pool = parts.pools[0]
    for array in (*pool.rows.values(), *pool.slots.values()):
        drawn = rng.integers(0, 2, array[slots].shape)
        array[slots] = drawn.astype(array.dtype)
    pool.slots["length"][slots] = rng.integers(1, pool.layout.unroll_length + 1, count)
    return slots
