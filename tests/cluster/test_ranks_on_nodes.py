"""Ranks of the learner on several nodes: they learn as one, and go on from the checkpoint if a node is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ray_runs import check_run, faults_of, needs_ray, nodes_of, ray_run
from small_runs import small
from two_machines import Namespaces

from ludus.config import encode
from ludus.experiment import ClusterConfig, Experiment
from ludus.runtime.ray.connection import Node
from ludus.runtime.ray.loopback import LoopbackCluster
from ludus.runtime.ray.node_pool import place_ranks
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.worker import TrainingFailed

pytestmark = needs_ray


def node(name: str, cores: float, *, gpus: float = 0, places: int | None = None, learns: bool = False) -> Node:
    return Node(id=name, host=name, cores=cores, gpus=gpus, actor_places=places, learns=learns, is_own=False)


def test_ranks_go_to_the_first_node_while_it_has_room() -> None:
    a, b, c = node("a", 2), node("b", 1.5), node("c", 4)
    assert place_ranks([a, b, c], 2, ClusterConfig(), "auto") == {"a": 2}
    assert place_ranks([a, b, c], 4, ClusterConfig(), "auto") == {"a": 2, "b": 1, "c": 1}
    assert place_ranks([a, b, c], 3, ClusterConfig(ranks_per_node=1), "auto") == {"a": 1, "b": 1, "c": 1}
    assert place_ranks([node("d", 0.5)], 1, ClusterConfig(), "auto") == {"d": 1}, "one goes anywhere"


def test_where_there_are_gpus_each_rank_has_one() -> None:
    nodes = [node("a", 8, gpus=2), node("b", 8, gpus=1)]
    assert place_ranks(nodes, 3, ClusterConfig(), "auto") == {"a": 2, "b": 1}
    assert place_ranks(nodes, 3, ClusterConfig(), "cpu") == {"a": 3}


def test_only_nodes_that_state_it_learn_if_some_do() -> None:
    nodes = [node("a", 4, places=3, learns=True), node("b", 8, places=8), node("c", 2, places=1, learns=True)]
    assert place_ranks(nodes, 5, ClusterConfig(), "auto") == {"a": 4, "c": 1}
    with pytest.raises(TrainingFailed, match=r"learner.ranks=7, but .* room for 6: a/a 4, b/b 0, c/c 2;"):
        place_ranks(nodes, 7, ClusterConfig(), "auto")


def test_after_a_loss_the_nodes_that_are_left_take_all() -> None:
    nodes, one_each = [node("a", 2), node("b", 2)], ClusterConfig(ranks_per_node=1)
    with pytest.raises(TrainingFailed, match=r"room for 2: a/a 1, b/b 1 \(cluster.ranks_per_node is 1\); .* Lower"):
        place_ranks(nodes, 3, one_each, "auto")
    assert place_ranks(nodes, 3, one_each, "auto", overfull=True) == {"a": 2, "b": 1}


def ranked(ranks: int, **changes: object) -> Experiment:
    """A rank on each node, of which only that of rank 0 may look into the run folder. All ranks are compared with each
    other with every checkpoint: after every update."""
    described = small(
        budget=10**9, checkpoint_every=1, cluster=ClusterConfig(shared_folder=False, ranks_per_node=1), **changes
    )
    return replace(described, learner=replace(described.learner, ranks=ranks))


def silent_after(described: Experiment, seconds: float) -> Experiment:
    return replace(described, cluster=replace(described.cluster, silent_after_s=seconds))


def ranks_of(path: Path) -> dict[str, str]:
    """The node of every rank, as `ludus status` tells it."""
    program = [sys.executable, "-m", "ludus.cli.main", "status", str(path), "--json"]
    status = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    return {one["name"]: one["node"] for one in status["workers"] if one["name"].startswith("learner")}


@pytest.mark.slow
def test_a_node_with_a_rank_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with LoopbackCluster(2, 2, 1) as nodes:
        too_many = RunFolder.create(tmp_path / "many", encode(ranked(4)), seed=0, command=()).path
        program = [sys.executable, "-m", "ludus.cli.main", "train", "--run", str(too_many), "--resume"]
        refused = subprocess.run(
            [*program, "--address", nodes.address], env=nodes.environment, capture_output=True, text=True
        )
        assert refused.returncode != 0
        assert "learner.ranks=4, but the nodes of the cluster have room for 3:" in " ".join(refused.stderr.split())
        assert "Traceback" not in refused.stderr
        with ray_run(path, ranked(2), "--address", nodes.address, environment=nodes.environment) as run:
            run.until(lambda numbers: numbers.get("cluster/bytes_per_s", 0) > 0)
            run.learned(6_000)
            where = ranks_of(path)
            assert where.keys() == {"learner", "learner-1"}
            assert len({*where.values()}) == 2
            lost = where["learner-1"].partition("/")[2]
            nodes.kill(next(number for number in (1, 2) if nodes.ids[number].startswith(lost)))
            run.until(lambda numbers: numbers["restarts"] >= 1)
            run.learned(6_000)
            again = ranks_of(path)
            assert where["learner-1"] not in again.values()
            run.interrupt()
            assert run.end() == 130
    check_run(path)
    rows, _ = read_metrics(path / "metrics" / "train.jsonl")
    assert max(row["main/max_lag"] for row in rows) <= ranked(2).learner.lag
    assert "lost" in [row["what"] for row in nodes_of(path)]
    faults = faults_of(path)
    assert {fault["class"] for fault in faults} == {"node_lost"}
    [learner] = [fault for fault in faults if fault["worker"] == "learner"]
    assert lost in learner["reason"]
    assert learner["then"] == "all started again from the checkpoint"


@pytest.mark.slow
def test_the_cable_between_two_machines_with_ranks_is_cut(tmp_path: Path) -> None:
    """Each machine is a network namespace with an address of its own; nothing but the cable connects them."""
    path = tmp_path / "run"
    with Namespaces() as machines:
        for number in range(2):
            machines.start_node(number, cpus=2)
        with ray_run(
            path,
            silent_after(ranked(2), 8.0),
            "--address",
            machines.address,
            environment=machines.environment,
            inside=machines.inside(0),
        ) as run:
            run.until(lambda numbers: numbers.get("updates", 0) >= 5)
            where = ranks_of(path)
            assert len({*where.values()}) == 2, where
            machines.cut()
            run.until(lambda numbers: numbers["restarts"] >= 1)
            run.learned(4_000)
            assert {*ranks_of(path).values()} == {where["learner"]}
            run.interrupt()
            assert run.end() == 130
    check_run(path)
    assert {fault["class"] for fault in faults_of(path)} == {"node_lost"}
