"""One table says what every metric is: real trainings have no other names, and the docs show the table."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.actor_critic import A2C, Impala
from ludus.algorithms.algorithm import Algorithm
from ludus.algorithms.alphastar import AlphaStarGradient
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.config import encode
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.observe.metric_names import METRICS, as_markdown, find_metric, series_name
from ludus.runtime.coordinator import Training
from ludus.runtime.processes import local_training
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig

DOCS = Path(__file__).parent.parent.parent / "docs" / "metrics.md"


def experiment(algorithm: Algorithm, **settings: Any) -> Experiment:
    described = Experiment(
        name="tiny",
        game=Kuhn(),
        budget=400,
        model=ActorCritic(hidden=(8,)),
        algorithm=algorithm,
        actor=ActorConfig(num_tables=8, matches=2, episodes_per_table=2, unroll_length=4),
        learner=LearnerConfig(batch_size=100, minibatch_size=100, epochs=1, buffer_size=800),
        league=LeagueRules(
            roles={"main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=10_000))}, bots=("random",)
        ),
        evaluation=EvaluationConfig(episodes=8),
    )
    return replace(described, **settings)


def names(path: Path, described: Experiment) -> set[str]:
    folder = RunFolder.create(path, encode(described), seed=0, command=())
    with folder.lock():
        serial = described.runtime == "serial"
        training: Training = serial_training(described, folder) if serial else local_training(described, folder, 1)
        with closing(training):
            training.run()
    rows, _ = read_metrics(folder.metrics / "train.jsonl")
    assert rows
    return {name for row in rows for name in row}


@pytest.mark.parametrize("algorithm", [PPO(), A2C(), Impala(), MagnetPolicyGradient(), AlphaStarGradient()])
def test_a_training_has_no_other_names(tmp_path: Path, algorithm: Algorithm) -> None:
    found = names(tmp_path / "run", experiment(algorithm, runtime="serial"))
    assert {name for name in found if find_metric(name).metric not in METRICS} == set()
    assert {"time", "decisions", "main/entropy", "main/episode_reward", "main/episode_length"} <= found


@pytest.mark.slow
def test_processes_have_no_other_names(tmp_path: Path) -> None:
    learner = LearnerConfig(batch_size=100, minibatch_size=100, epochs=1, buffer_size=800, schedule="async", max_lag=2)
    actor = ActorConfig(num_tables=8, matches=2, episodes_per_table=2, unroll_length=4, inference="worker")
    described = experiment(PPO(), budget=20_000, runtime="local", learner=learner, actor=actor)
    found = names(tmp_path / "run", described)
    assert {name for name in found if find_metric(name).metric not in METRICS} == set()
    wanted = {"main/lag_share.1", "inference/wait_ms", "queue_wait", "updates", "main/episode_score"}
    assert wanted <= found


def test_the_docs_show_the_table() -> None:
    assert as_markdown() in DOCS.read_text(encoding="utf-8"), (
        "put what `python -m ludus.observe.metric_names` prints into docs/metrics.md"
    )


def test_every_metric_is_one_thing() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert len({series_name(metric) for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.meaning.endswith(".")


@pytest.mark.parametrize(
    ("name", "declared", "labels"),
    [
        ("decisions", "decisions", {}),
        ("main.3/entropy", "PLAYER/entropy", {"player": "main.3"}),
        ("main/entropy.unit.x", "PLAYER/entropy.HEAD", {"player": "main", "head": "unit.x"}),
        ("cluster/nodes", "cluster/nodes", {}),
        ("main/lag_share.2", "PLAYER/lag_share.UPDATES", {"player": "main", "updates": "2"}),
        ("main/my_own", "PLAYER/my_own", {"player": "main"}),
    ],
)
def test_names_are_found(name: str, declared: str, labels: dict[str, str]) -> None:
    found = find_metric(name)
    assert found.metric.name == declared
    assert found.labels == labels
    assert (find_metric(name).metric in METRICS) == ("my_own" not in name)
