"""A short training for real: entities, planes, pointers, points and delays through the default network."""

from pathlib import Path

import numpy as np
import pytest

from ludus.config import encode
from ludus.experiment import Experiment
from ludus.games.builtin.skirmish import Mode, Skirmish
from ludus.league.rules import EvaluationConfig
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import load_experiment
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["1v1", "3v3"])
def test_the_default_network_trains(mode: Mode, tmp_path: Path) -> None:
    experiment = Experiment(
        name="skirmish",
        game=Skirmish(mode=mode),
        budget=256,
        model=ActorCritic(hidden=(16,), channels=(4,), entity_size=8),
        actor=ActorConfig(num_tables=8, matches=2, episodes_per_table=2, unroll_length=8),
        learner=LearnerConfig(batch_size=128, minibatch_size=128, epochs=1),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0),  # a match would be whole games
        runtime="serial",
    )
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=0)
    training = serial_training(load_experiment(folder), folder)
    try:
        before = {name: array.copy() for name, array in training.learner.players["main"].weights().items()}
        assert training.run() == FINISHED
        assert training.learner.decisions >= experiment.budget
        after = training.learner.players["main"].weights()
    finally:
        training.close()
    assert all(np.isfinite(array).all() for array in after.values())
    assert any((after[name] != array).any() for name, array in before.items())
