"""Recipes of games that may not be installed: whom they meet, and that they train."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ludus.config import encode
from ludus.experiment import Experiment
from ludus.league.matchmaking import PFSP, Mixture
from ludus.league.rules import EvaluationConfig
from ludus.models.network_policy import ActorCritic
from ludus.recipes import microrts, slimevolley
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig


def made(recipe: ModuleType) -> Experiment:
    try:
        found: Experiment = recipe.experiment()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    return found


def test_slimevolley_never_trains_against_the_baseline() -> None:
    experiment = made(slimevolley)
    assert experiment.league.bots == ()
    assert "baseline" in experiment.evaluation.opponents
    matchmaking = experiment.league.roles["main"].matchmaking
    assert isinstance(matchmaking, Mixture)
    for _, branch in matchmaking.branches:
        assert not (isinstance(branch, PFSP) and branch.include_scripted)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [slimevolley, microrts], ids=lambda recipe: recipe.__name__)
def test_trains_a_few_updates(recipe: ModuleType, tmp_path: Path) -> None:
    found = made(recipe)
    experiment = replace(
        found,
        runtime="serial",
        budget=128,
        model=ActorCritic(hidden=(8,), channels=(2, 2)),
        actor=ActorConfig(num_tables=4, matches=2, episodes_per_table=2, unroll_length=8),
        learner=replace(found.learner, batch_size=64, minibatch_size=32, buffer_size=256),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0, episodes=1),
    )
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=experiment.seed, command=())
    with closing(serial_training(experiment, folder)) as training:
        assert training.run() == FINISHED
        assert training.learner.decisions >= 128
