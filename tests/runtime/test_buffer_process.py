"""The buffer worker as a process of the local runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.algorithms.ppo import PPO
from ludus.algorithms.teacher import Teacher
from ludus.config import encode
from ludus.data.trees import Tree
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import CHECKPOINT
from ludus.runtime.coordinator import Coordinator, Training
from ludus.runtime.processes import ProcessWorkers, default_actors, local_training
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_control import WorkerStatus, read_status
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def experiment(*, memory: int = 0, budget: int = 8_000, **learner: Any) -> Experiment:
    role = Role(matchmaking=SelfPlay(), promotion=BySteps(every=10**9))
    return Experiment(
        name="tiny",
        game=Kuhn(),
        budget=budget,
        model=ActorCritic(hidden=(16,), memory=memory),
        algorithm=PPO(teacher=Teacher(weight=0.01)),
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=8, unroll_length=8),
        learner=LearnerConfig(
            **{
                "batch_size": 1_000,
                "minibatch_size": 500,
                "epochs": 2,
                "buffer_size": 8_000,
                "device": "cpu",
                **learner,
            }
        ),
        league=LeagueRules(roles={"main": role}, bots=("random",)),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=32),
        checkpoint_every=10**9,
    )


@contextmanager
def local(path: Path, described: Experiment, num_actors: int = 1) -> Iterator[Coordinator[ProcessWorkers]]:
    folder = RunFolder.create(path, encode(described), seed=0, command=())
    with folder.lock(), closing(local_training(described, folder, num_actors)) as training:
        yield training


def learned(path: Path) -> Tree:
    checkpoint = RunFolder.open(path).checkpoints(CHECKPOINT).load_latest()
    assert checkpoint is not None
    return {name: array for name, array in checkpoint.arrays.items() if "/live." in name}


def records_of(path: Path) -> list[dict[str, Any]]:
    return list(read_metrics(path / "metrics" / "train.jsonl")[0])


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 8], ids=["plain", "memory"])
def test_the_same_weights_whoever_recomputes(tmp_path: Path, memory: int) -> None:
    """One actor in turn with the learner: what the newest weights recompute is what they played."""
    asked = {"recompute": ("advantages", "teacher")}
    settings: dict[str, dict[str, Any]] = {"nobody": {}, "learner": asked, "worker": {**asked, "buffer_worker": True}}
    for name, learner in settings.items():
        with local(tmp_path / name, experiment(memory=memory, **learner)) as training:
            assert training.run() == FINISHED
            assert training.restarts == 0
            assert (training.workers.buffer_worker_pid is not None) == (name == "worker")
    expected = learned(tmp_path / "nobody")
    for name in ("learner", "worker"):
        weights = learned(tmp_path / name)
        assert weights.keys() == expected.keys()
        for key, array in weights.items():
            np.testing.assert_allclose(array, expected[key], atol=1e-5, err_msg=f"{name}: {key}")
    records = records_of(tmp_path / "worker")
    assert len(records) > 4
    assert all(record["main/recompute_lag"] == 0.0 for record in records)
    assert all(record["main/lag"] == 0.0 for record in records)


def test_side_by_side_with_two_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.runtime.status.PUBLISH_EVERY_S", 0.05)  # a fast machine is done within a second
    described = experiment(
        budget=30_000, schedule="async", max_lag=3, reuse=2, recompute=("advantages", "teacher"), buffer_worker=True
    )
    with local(tmp_path / "run", described, num_actors=2) as training:
        seen: list[WorkerStatus] = []

        def watch(training: Training) -> None:
            status = read_status(training.folder.path / "status.json")
            seen.extend(one for one in (status.workers if status else ()) if one.name == "buffer-worker")

        assert training.run(watch) == FINISHED
        assert training.restarts == 0
    records = records_of(tmp_path / "run")
    assert max(record["main/lag"] for record in records) > 0
    assert max(record["main/max_lag"] for record in records) <= 3
    assert max(record["main/reused"] for record in records) > 0
    assert all(0 <= record["main/recompute_lag"] <= 1 for record in records)
    assert {(one.state, one.restarts) for one in seen} == {("working", 0)}
    assert {tuple(one.shares) for one in seen if one.shares} == {("recomputing", "waiting")}


@pytest.mark.slow
def test_one_buffer_worker_serves_all_ranks(tmp_path: Path) -> None:
    described = experiment(recompute=("values",), buffer_worker=True, ranks=2)
    with local(tmp_path / "run", described, num_actors=2) as training:
        assert training.run() == FINISHED
        assert training.restarts == 0
    records = records_of(tmp_path / "run")
    assert len(records) > 4
    assert all(record["main/recompute_lag"] == 0.0 for record in records)


def test_the_serial_runtime_lets_the_learner_do_it(tmp_path: Path) -> None:
    found: list[Tree] = []
    settings: list[dict[str, Any]] = [
        {},
        {"recompute": ("advantages",)},
        {"recompute": ("advantages",), "buffer_worker": True},
    ]
    for learner in settings:
        described = replace(experiment(budget=4_000, **learner), runtime="serial")
        path = tmp_path / str(len(found))
        folder = RunFolder.create(path, encode(described), seed=0, command=())
        with closing(serial_training(described, folder)) as training:
            assert training.run() == FINISHED
        found.append(learned(path))
    for name, array in found[0].items():
        assert np.array_equal(found[1][name], found[2][name]), name
        np.testing.assert_allclose(found[1][name], array, atol=1e-5, err_msg=name)


def test_it_takes_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.runtime.processes.usable_cores", lambda: 8.0)
    alone = experiment(batch_size=8_000, recompute=("values",))
    helped = replace(alone, learner=replace(alone.learner, buffer_worker=True))
    assert (default_actors(alone), default_actors(helped)) == (7, 6)
