"""The recipe for Pong: it trains a few updates, made small, and without PettingZoo says what is missing."""

from __future__ import annotations

import importlib.util
import re
import sys
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

NEEDED = ("pettingzoo", "multi_agent_ale_py", "ale_py")
needs_games = pytest.mark.skipif(
    any(importlib.util.find_spec(library) is None for library in NEEDED),
    reason="needs `pip install -e '.[multi-atari]'`",
)


@needs_games
@pytest.mark.slow
def test_trains_a_few_updates(tmp_path: Path) -> None:
    found = find_experiment("pong", ("runtime=serial",))
    game: Any = replace(found.game, max_length=20)  # type: ignore[type-var]
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
        assert training.learner.decisions >= 128


def test_without_pettingzoo_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("pettingzoo", "ludus.games.adapters.pettingzoo", "ludus.recipes.pong")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.setitem(sys.modules, "pettingzoo.utils", None)
    with pytest.raises(ConfigError, match=re.escape(f"is not installed; {install_command('pettingzoo')} adds it")):
        find_experiment("pong", ())
