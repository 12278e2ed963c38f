from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.algorithms.actor_critic import A2C
from ludus.algorithms.algorithm import Algorithm
from ludus.config import encode
from ludus.experiment import Experiment
from ludus.games.builtin.beacon import Beacon
from ludus.league.rules import EvaluationConfig
from ludus.recipes import beacon
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig

RECIPE = beacon.experiment()


def small(algorithm: Algorithm) -> Experiment:
    return replace(
        RECIPE,
        game=Beacon(decisions=16),
        algorithm=algorithm,
        budget=128,
        model=replace(RECIPE.model, channels=(4, 4), hidden=(8,)),  # type: ignore[type-var]
        actor=ActorConfig(num_tables=4, matches=1, episodes_per_table=1, unroll_length=8),
        learner=replace(RECIPE.learner, batch_size=64, minibatch_size=32, buffer_size=256),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=1),
    )


@pytest.mark.parametrize("algorithm", [RECIPE.algorithm, A2C(gamma=0.95)], ids=["as it is", "A2C"])
def test_trains_a_few_updates(algorithm: Algorithm, tmp_path: Path) -> None:
    experiment = small(algorithm)
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=experiment.seed, command=())
    with closing(serial_training(experiment, folder)) as training:
        assert training.run() == FINISHED
        assert training.learner.decisions >= 128
