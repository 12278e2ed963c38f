"""The other recipes of beacon and skirmish: each trains a few updates, made small."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.actor_critic import A2C
from ludus.algorithms.alphastar import AlphaStarGradient
from ludus.config import apply_overrides, encode
from ludus.experiment import Experiment
from ludus.games.builtin.beacon import Beacon
from ludus.games.builtin.skirmish_bots import HERO_STRATEGIES, STRATEGIES
from ludus.league.rules import EvaluationConfig
from ludus.models.alphastar import AlphaStar
from ludus.models.fully_conv import FullyConv
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import ModelConfig
from ludus.recipes import beacon_a2c, beacon_alphastar, skirmish, skirmish_3v3, skirmish_alphastar
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig

TINY: dict[type, dict[str, Any]] = {
    FullyConv: {"channels": (4, 4), "hidden": (8,)},
    ActorCritic: {"hidden": (8,), "channels": (2, 2), "entity_size": 8},
    AlphaStar: {
        **dict.fromkeys(("scalar_size", "entity_size", "entity_hidden", "spatial_size"), 8),
        **dict.fromkeys(("action_size", "head_hidden", "embedding_size", "value_size"), 8),
        **dict.fromkeys(("scatter_channels", "map_channels", "key_size"), 4),
        **{"down": (4, 4), "up": (4,), "hidden": (8,)},
    },
}
MODULES = (beacon_a2c, beacon_alphastar, skirmish, skirmish_3v3, skirmish_alphastar)
RECIPES = [module.experiment for module in MODULES]


def small(found: Experiment) -> Experiment:
    """As the recipe is, but with tiny networks, short batches and no evaluation to speak of."""
    model: Any = found.model
    return replace(
        found,
        runtime="serial",
        game=Beacon(decisions=16) if isinstance(found.game, Beacon) else found.game,
        budget=128,
        model=replace(model, **TINY[type(model)]),
        actor=ActorConfig(num_tables=4, matches=2, episodes_per_table=2, unroll_length=8),
        learner=replace(found.learner, batch_size=64, minibatch_size=32, buffer_size=256),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0, episodes=1),
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__module__.rpartition(".")[2])
def test_trains_a_few_updates(recipe: Callable[[], Experiment], tmp_path: Path) -> None:
    experiment = small(recipe())
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=experiment.seed, command=())
    with closing(serial_training(experiment, folder)) as training:
        assert training.run() == FINISHED
        assert training.learner.decisions >= 128


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__module__.rpartition(".")[2])
def test_is_called_as_its_file(recipe: Callable[[], Experiment]) -> None:
    assert recipe().name == recipe.__module__.rpartition(".")[2]


def test_each_beacon_recipe_changes_what_it_is_for() -> None:
    plain: ModelConfig = beacon_a2c.experiment().model
    assert isinstance(plain, FullyConv)
    assert isinstance(beacon_a2c.experiment().algorithm, A2C)
    assert beacon_a2c.experiment().learner.epochs == 1  # plain actor-critic uses a batch once
    assert isinstance(beacon_alphastar.experiment().model, AlphaStar)


@pytest.mark.parametrize(
    ("recipe", "bots"),
    [
        (skirmish.experiment, STRATEGIES),
        (skirmish_alphastar.experiment, STRATEGIES),
        (skirmish_3v3.experiment, HERO_STRATEGIES),
    ],
)
def test_a_league_of_skirmish_meets_every_strategy(recipe: Callable[[], Experiment], bots: dict[str, Any]) -> None:
    experiment = recipe()
    assert set(experiment.league.bots) == set(bots) == set(experiment.evaluation.opponents)
    assert set(bots) <= set(experiment.game.bots())


def test_alphastar_on_skirmish_has_every_part_of_the_publication() -> None:
    experiment = apply_overrides(skirmish_alphastar.experiment(), {"league.roles.*.start": "clone:0:0"})
    (kind,), algorithm = experiment.game.spec.kinds, experiment.algorithm
    policy: Any = experiment.model.build(kind, seed=0)
    assert policy.memory is not None
    assert "z" in kind.observation.parts
    assert kind.rewards == ("build_order", "built")
    assert any(name.startswith("critic.") for name in policy.critic.array_names), "it sees both sides"
    assert isinstance(algorithm, AlphaStarGradient)
    assert algorithm.teacher is not None
    roles = experiment.league.roles
    assert list(roles) == ["main", "main_exploiter", "league_exploiter"]
    assert {role.start for role in roles.values()} == {"clone:0:0"}
    assert [role.reset_probability for role in roles.values()] == [0.0, 1.0, 0.25]
