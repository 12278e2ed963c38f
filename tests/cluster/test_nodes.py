"""A run on several nodes: they are killed and join, and no match is lost or counted twice."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from processes import workers
from ray_runs import check_run, faults_of, needs_ray, nodes_of, ray_run
from small_runs import small

import ludus
from ludus.experiment import ClusterConfig
from ludus.runtime.ray.loopback import LoopbackCluster
from ludus.system.network import RAY_MODE_VARIABLE, RAY_PATH_VARIABLE

pytestmark = [pytest.mark.slow, needs_ray]
APART = ClusterConfig(shared_folder=False, models_kept=4)
"""As if only the learner's node could see the run folder."""


@pytest.fixture
def nodes() -> Iterator[LoopbackCluster]:
    with LoopbackCluster(2, 1, 1) as cluster:
        yield cluster


def test_a_node_is_killed_and_another_joins(tmp_path: Path, nodes: LoopbackCluster) -> None:
    path = tmp_path / "run"
    described = small(budget=10**9, cluster=APART)
    with ray_run(path, described, "--address", nodes.address, environment=nodes.environment) as run:
        run.until(lambda numbers: numbers.get("cluster/bytes_per_s", 0) > 0)
        assert run.last["cluster/nodes"] == 3
        nodes.kill(2)
        run.until(lambda numbers: numbers["cluster/nodes"] == 2)
        run.learned(3_000)
        nodes.add(1)
        run.until(lambda numbers: numbers["cluster/nodes"] == 3)
        run.learned(20_000)
        run.interrupt()
        assert run.end() == 130
    check_run(path)
    assert [row["what"] for row in nodes_of(path)] == ["joined"] * 3 + ["lost", "joined"]
    [fault] = [fault for fault in faults_of(path) if fault["class"] == "node_lost"]
    assert fault["worker"].startswith("actor-")
    assert len(fault["matches"]) >= 2
    assert {fault["class"] for fault in faults_of(path)} == {"node_lost"}


def test_workers_on_any_node_are_killed(tmp_path: Path, nodes: LoopbackCluster) -> None:
    """What they had sent and is still on its way is not taken for their successors'."""
    path, chance = tmp_path / "run", random.Random(5)
    victims = ("actor", "actor", "learner", "actor")
    described = small(budget=10**9, cluster=APART)
    with ray_run(path, described, "--address", nodes.address, environment=nodes.environment) as run:
        run.until(lambda numbers: numbers.get("cluster/bytes_per_s", 0) > 0)
        for restarts, role in enumerate(victims, 1):
            os.kill(chance.choice(workers(nodes.pid, role)), signal.SIGKILL)
            run.until(lambda numbers, wanted=restarts: numbers["restarts"] >= wanted)  # type: ignore[misc]
            run.learned(2_000)
        run.interrupt()
        assert run.end() == 130
    check_run(path)
    assert {fault["class"] for fault in faults_of(path)} == {"killed"}
    assert sorted(fault["worker"].partition("-")[0] for fault in faults_of(path)) == sorted(victims)


def test_the_learner_s_node_is_killed(tmp_path: Path) -> None:
    """It starts again on another one, from the checkpoint. The head holds no worker here."""
    path = tmp_path / "run"
    with (
        LoopbackCluster(0, 2, 2) as nodes,
        ray_run(path, small(budget=10**9), "--address", nodes.address, environment=nodes.environment) as run,
    ):
        run.learned(8_000)
        learner = next(fault for fault in nodes_of(path) if fault["more"].startswith("1 "))["node"]
        nodes.kill(next(number for number in (1, 2) if nodes.ids[number][:6] == learner.partition("/")[2]))
        run.until(lambda numbers: numbers["restarts"] >= 1)
        run.learned(5_000)
        run.interrupt()
        assert run.end() == 130
    check_run(path)
    assert ("node_lost", "learner") in {(fault["class"], fault["worker"]) for fault in faults_of(path)}


def test_policy_workers_are_with_their_actors(tmp_path: Path, nodes: LoopbackCluster) -> None:
    path = tmp_path / "run"
    described = small(budget=20_000, cluster=APART)
    described = replace(described, actor=replace(described.actor, inference="worker"))
    with ray_run(path, described, "--address", nodes.address, environment=nodes.environment) as run:
        run.until(lambda numbers: numbers.get("inference/rows_per_batch", 0) > 0)
        assert run.end() == 0
    check_run(path)
    assert not faults_of(path)


def test_user_code_goes_along_and_other_code_of_ours_is_refused(tmp_path: Path, nodes: LoopbackCluster) -> None:
    copy = tmp_path / "other"
    shutil.copytree(Path(ludus.__file__).parent, copy / "ludus")
    with (copy / "ludus" / "__init__.py").open("a") as file:
        file.write("# another version\n")
    nodes.add(1, {"PYTHONPATH": str(copy)})
    file_of_user = tmp_path / "mine" / "stopping.py"
    file_of_user.parent.mkdir()
    file_of_user.write_text(
        "from ludus.workers.worker import StopTraining\n"
        "from far_enough import LIMIT\n"
        "def stop(worker, step):\n"
        "    if worker.name.startswith('actor') and worker.episodes > LIMIT:\n"
        "        raise StopTraining('far enough')\n"
        "    return step()\n"
    )
    file_of_user.with_name("far_enough.py").write_text("LIMIT = 2_000\n")
    creating = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from dataclasses import replace\n"
        "from small_runs import small\n"
        "from ludus.config import encode\n"
        "from ludus.data.addresses import load_address\n"
        "from ludus.store.run_folder import RunFolder\n"
        f"described = replace(small(budget=10**9), middleware=(load_address({f'{file_of_user}:stop'!r}),))\n"
        f"RunFolder.create({str(tmp_path / 'run')!r}, encode(described), seed=0, command=())\n"
    )
    subprocess.run([sys.executable, "-c", creating], check=True)
    program = [sys.executable, "-m", "ludus.cli.main", "train", "--run", str(tmp_path / "run")]
    done = subprocess.run(
        [*program, "--resume", "--json", "--address", nodes.address],
        env=nodes.environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert '"end": "far enough"' in done.stdout, done.stderr
    [refused] = [row for row in nodes_of(tmp_path / "run") if row["what"] == "refused"]
    assert "digest" in refused["more"]
    assert refused["node"] in refused["more"]


@pytest.mark.parametrize("token", ["wrong", "missing"])
def test_a_cluster_is_entered_with_its_token_only(tmp_path: Path, token: str) -> None:
    with LoopbackCluster(1) as nodes:
        environment = dict(nodes.environment, HOME=str(tmp_path))
        if token == "wrong":
            (tmp_path / "token").write_text("f" * 64)
            os.chmod(tmp_path / "token", 0o600)
            environment[RAY_PATH_VARIABLE] = str(tmp_path / "token")
        else:
            del environment[RAY_PATH_VARIABLE], environment[RAY_MODE_VARIABLE]
        program = [sys.executable, "-m", "ludus.cli.main", "train", "kuhn", "--runtime", "ray"]
        done = subprocess.run(
            [*program, "--address", nodes.address, "--run", str(tmp_path / "run")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2
    assert "token" in done.stderr
    assert nodes.address in done.stderr
    assert "Traceback" not in done.stderr
