"""The football recipe: what it plays, and that it trains."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.config import encode
from ludus.experiment import Experiment
from ludus.games.isolation.isolated import Isolated
from ludus.league.rules import EvaluationConfig
from ludus.models.network_policy import ActorCritic
from ludus.recipes import football_3v1
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig


@pytest.fixture
def experiment() -> Experiment:
    try:
        return football_3v1.experiment()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_three_seats_of_one_team_are_paid_for_goals_and_checkpoints(experiment: Experiment) -> None:
    assert isinstance(experiment.game, Isolated)
    assert experiment.game.processes == 2
    spec = experiment.game.spec
    assert (spec.teams, spec.reward_is_score) == ((0, 0, 0), False)


@pytest.mark.slow
def test_trains_a_few_updates(experiment: Experiment, tmp_path: Path) -> None:
    short = replace(
        experiment,
        runtime="serial",
        budget=128,
        model=ActorCritic(hidden=(8,)),
        actor=ActorConfig(num_tables=2, matches=1, episodes_per_table=1, unroll_length=8),
        learner=replace(experiment.learner, batch_size=64, minibatch_size=32, buffer_size=256),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0, episodes=1),
    )
    folder = RunFolder.create(tmp_path / "run", encode(short), seed=short.seed, command=())
    with closing(serial_training(short, folder)) as training:
        assert training.run() == FINISHED
        assert training.learner.decisions >= 128
