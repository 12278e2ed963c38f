"""The recipe for Atari Pong: it trains a few updates, made small."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ale_py", reason="ale-py is not installed: pip install -e '.[atari]'")

from ludus.config import encode
from ludus.games.adapters.atari import Atari
from ludus.league.rules import EvaluationConfig
from ludus.recipes import atari_pong
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig


def test_trains_a_few_updates(tmp_path: Path) -> None:
    recipe = atari_pong.experiment()
    experiment = replace(
        recipe,
        game=Atari(game="pong", max_frames=64),
        budget=128,
        model=replace(recipe.model, channels=(2, 4, 4), hidden=(8,)),  # type: ignore[type-var]
        actor=ActorConfig(num_tables=2, matches=1, episodes_per_table=1, unroll_length=8),
        learner=replace(recipe.learner, batch_size=64, minibatch_size=32, buffer_size=256),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=1),
    )
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=experiment.seed, command=())
    with closing(serial_training(experiment, folder)) as training:
        assert training.run() == FINISHED
        assert training.learner.decisions >= 128
