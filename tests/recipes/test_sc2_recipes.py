"""The recipes for StarCraft II: they train on PySC2's mock, and without PySC2 say what is missing."""

from __future__ import annotations

import importlib.util
import math
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.config import ConfigError, encode
from ludus.league.rules import EvaluationConfig
from ludus.lookup import find_experiment
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.system.machine import install_command
from ludus.workers.actor import ActorConfig

needs_pysc2 = pytest.mark.skipif(importlib.util.find_spec("pysc2") is None, reason="pysc2 is not installed")
RECIPES = ("sc2_beacon", "sc2_simple64")


@needs_pysc2
@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_trains_a_few_updates_on_the_mock(recipe: str, tmp_path: Path) -> None:
    found = find_experiment(recipe, ("game.mock=true", "runtime=serial"))
    game: Any = replace(found.game, screen=16, minimap=16, raw_resolution=16)  # type: ignore[type-var]
    experiment = replace(
        found,
        game=game,
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


@pytest.mark.parametrize("recipe", RECIPES)
def test_without_pysc2_the_install_command_is_named(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(f"PySC2, which is not installed; {install_command('sc2')}")):
        find_experiment(recipe, ())
