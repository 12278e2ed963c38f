"""The recipes for StarCraft II: they train on PySC2's mock, and without PySC2 say what is missing."""

from __future__ import annotations

import importlib.util
import math
import re
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus import AlphaStar, Experiment
from ludus.config import ConfigError, encode
from ludus.games import WithStrategies
from ludus.league.rules import EvaluationConfig
from ludus.lookup import find_experiment
from ludus.models.alphastar_encoder import AlphaStarSizes
from ludus.recipes import sc2_alphastar
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.system.machine import install_command
from ludus.workers.actor import ActorConfig

needs_pysc2 = pytest.mark.skipif(importlib.util.find_spec("pysc2") is None, reason="pysc2 is not installed")
RECIPES = ("sc2_beacon", "sc2_simple64", "sc2_alphastar")
LITTLE: dict[str, Any] = {"screen": 16, "minimap": 16, "raw_resolution": 16, "mock": True}


@needs_pysc2
@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES[:2])
def test_trains_a_few_updates_on_the_mock(recipe: str, tmp_path: Path) -> None:
    found = find_experiment(recipe, ("game.mock=true", "runtime=serial"))
    game: Any = replace(found.game, **LITTLE)  # type: ignore[type-var]
    train(replace(found, game=game), tmp_path)


@needs_pysc2
@pytest.mark.slow
def test_alphastar_follows_strategies_on_the_mock(tmp_path: Path) -> None:
    found = sc2_alphastar.build(strategies=some_strategies(tmp_path))
    assert isinstance(found.game, WithStrategies)
    game: Any = found.game.game
    found = replace(found, game=replace(found.game, game=replace(game, **LITTLE), shown=1.0, active=1.0))
    kind = found.game.spec.kinds[0]
    assert kind.rewards == ("build_order", "built_units", "effects", "upgrades")
    values = {name for name in train(found, tmp_path) if name.startswith("value_loss")}
    assert values == {"value_loss", *(f"value_loss.{reward}" for reward in kind.rewards)}


def some_strategies(folder: Path) -> str:
    from ludus.games.adapters.pysc2_history import BUILD_ORDER, NUM_FACTS

    order = np.full((2, BUILD_ORDER), -1, np.int16)
    order[:, :2] = [[3, 5], [7, 3]]
    path = folder / "z.npz"
    np.savez(path, build_order=order, built=np.eye(2, NUM_FACTS, dtype=np.bool_), build_place=order)
    return str(path)


def train(found: Experiment, tmp_path: Path) -> dict[str, float]:
    """Train for a few updates with small networks, and give the last statistics of the loss."""
    sizes = {field.name: getattr(AlphaStar(), field.name) for field in fields(AlphaStarSizes)}
    model: Any = found.model
    if isinstance(model, AlphaStar):
        model = replace(model, **(sizes | {"part_sizes": model.part_sizes}))
    experiment = replace(
        found,
        model=model,
        budget=128,
        actor=ActorConfig(num_tables=2, matches=1, episodes_per_table=2, unroll_length=8),
        learner=replace(found.learner, batch_size=64, minibatch_size=32, buffer_size=256),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=1),
    )
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=experiment.seed, command=())
    with closing(serial_training(experiment, folder)) as training:
        assert training.run() == FINISHED
        assert math.isfinite(training.learner.decisions)
        assert training.learner.decisions >= 128
    last = read_metrics(folder.metrics / "train.jsonl")[0][-1]
    return {name.rpartition("/")[2]: value for name, value in last.items()}


@needs_pysc2
def test_the_network_of_alphastar_has_about_139_million_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PySC2's own spec. The weights are not filled here: that takes a minute."""
    monkeypatch.setattr(
        "ludus.models.operators._orthogonal", lambda *shape, gain: torch.nn.Parameter(torch.empty(shape))
    )
    found = find_experiment("sc2_alphastar", ())
    assert set(found.game.spec.kinds[0].observation.critic) > {"units", "minimap", "scores"}
    found = sc2_alphastar.build(strategies=some_strategies(tmp_path))
    (kind,) = found.game.spec.kinds
    with torch.device("meta"):
        policy: Any = found.model.build(kind, 0)
    counted = {name: parameter.numel() for name, parameter in policy.named_parameters()}
    to_act = sum(count for name, count in counted.items() if not name.startswith("critic."))
    assert sum(counted.values()) == pytest.approx(139e6, rel=0.05)
    assert to_act == pytest.approx(55e6, rel=0.05)


@pytest.mark.parametrize("recipe", RECIPES)
def test_without_pysc2_the_install_command_is_named(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(f"PySC2, which is not installed; {install_command('sc2')}")):
        find_experiment(recipe, ())
