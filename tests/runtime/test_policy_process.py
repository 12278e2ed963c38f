"""The policy worker as a process of the local runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ludus.config import encode
from ludus.data.trees import Tree
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import find_device
from ludus.runtime.assemble import CHECKPOINT
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.processes import ProcessWorkers, local_training
from ludus.runtime.rounds import FINISHED
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def has_gpu() -> bool:
    return find_device("auto").type == "cuda"


def experiment(*, memory: int = 0, league: bool = True) -> Experiment:
    opponents = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))
    role = Role(matchmaking=opponents if league else SelfPlay(), promotion=BySteps(every=4_000 if league else 10**9))
    return Experiment(
        name="tiny",
        game=Kuhn(),
        budget=12_000,
        model=ActorCritic(hidden=(16,), memory=memory),
        actor=ActorConfig(
            num_tables=32, matches=2, episodes_per_table=8, unroll_length=8, inference="worker", inference_device="cpu"
        ),
        learner=LearnerConfig(batch_size=1_000, minibatch_size=1_000, epochs=1, buffer_size=8_000, device="cpu"),
        league=LeagueRules(roles={"main": role}, bots=("random",)),
        evaluation=EvaluationConfig(opponents=("random",) if league else (), past=0, episodes=32),
        checkpoint_every=10**9,
        runtime="local",
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


@pytest.mark.parametrize("memory", [0, 8], ids=["plain", "memory"])
def test_the_same_weights_as_inline_bit_for_bit(tmp_path: Path, memory: int) -> None:
    """One actor in turn with the learner; matches are self-play, so nothing depends on who is how fast."""
    asked = experiment(memory=memory, league=False)
    inline = replace(asked, actor=replace(asked.actor, inference="inline"))
    for name, described in (("asked", asked), ("inline", inline)):
        with local(tmp_path / name, described) as training:
            assert training.run() == FINISHED
    weights, expected = learned(tmp_path / "asked"), learned(tmp_path / "inline")
    assert len(weights) > 4
    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        assert np.array_equal(array, expected[name]), name


def test_two_actors_share_a_policy_worker(tmp_path: Path) -> None:
    described = experiment()
    described = replace(described, actor=replace(described.actor, inference_delay_ms=20.0))
    with local(tmp_path / "run", described, num_actors=2) as training:
        assert training.run() == FINISHED
        assert training.restarts == 0
        assert training.numbers()["inference/rows_per_batch"] > 0
        assert len(training.league.candidates.frozen()) >= 3
    records, _ = read_metrics(tmp_path / "run" / "metrics" / "train.jsonl")
    assert max(record["inference/requests_per_batch"] for record in records) > 1.0
    assert max(record["inference/rows_per_batch"] for record in records) <= 2 * 32
    assert all(record["inference/wait_ms"] >= 0.0 for record in records)
    assert all(record["main/lag"] == 0.0 for record in records), "sync, whoever runs the policies"
    assert all(abs(record["main/kl"]) < 1e-8 for record in records), "not the weights that are stamped"


@pytest.mark.skipif(not has_gpu(), reason="needs a GPU")
def test_it_decides_on_a_gpu(tmp_path: Path) -> None:
    described = experiment(memory=8)
    described = replace(described, actor=replace(described.actor, inference_device="cuda"))
    with local(tmp_path / "run", described, num_actors=2) as training:
        assert training.run() == FINISHED
        assert training.restarts == 0
    records, _ = read_metrics(tmp_path / "run" / "metrics" / "train.jsonl")
    assert all(record["main/lag"] == 0.0 for record in records)
    assert all(abs(record["main/kl"]) < 1e-6 for record in records), "acting and unrolling do not agree"
