"""Services on the nodes of a cluster: they go where there is what they need, and come back when it does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from processes import descendants, is_gone, wait_until
from ray_runs import faults_of, needs_ray, ray_run
from small_runs import small

import ludus
from ludus import Resources, UserService
from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.experiment import ClusterConfig
from ludus.runtime.ray.loopback import LoopbackCluster
from ludus.services.resources import NotEnough
from ludus.store.run_control import WorkerStatus, read_status
from ludus.store.run_folder import RunFolder

CODE = """
import os
from ludus import service

class Clerk:
    def __init__(self):
        seen = [os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
        print("GPU {} threads {}".format(*seen), flush=True)

    @service(reply=False)
    def note(self, worker):
        print("heard", worker, flush=True)
"""

MIDDLEWARE = """
from functools import cache
from ludus import Solver, ServiceError

@cache
def clerk():
    return Solver("clerk", time_limit_s=0.5)

def tell(worker, step):
    progress = step()
    try:
        clerk().solve("note", worker.name)
    except ServiceError:
        pass  # it is being started again
    return progress
"""


def node(name: str, **has: float) -> dict[str, Any]:
    return {"NodeManagerHostname": name, "NodeID": "0123456789", "Resources": has}


@needs_ray
def test_what_no_node_has_is_named() -> None:
    from ludus.runtime.ray.service_starter import require_nodes

    nodes = [node("one", CPU=4), node("two", CPU=2, GPU=1, memory=1e9)]

    def asking(count: int = 1, **resources: Any) -> dict[str, UserService]:
        return {"judge": UserService(address="a.py:A", count=count, resources=Resources(**resources))}

    require_nodes(asking(count=2, cpus=3), nodes)  # Ray knows where
    with pytest.raises(
        NotEnough,
        match=r"services\.judge asks for 3 cpus, 1 gpus a process, but no node of the cluster has that: "
        r"one/012345 has 4 cpus, 0 gpus; two/012345 has 2 cpus, 1 gpus",
    ):
        require_nodes(asking(cpus=3, gpus=1), nodes)
    with pytest.raises(NotEnough, match="one/012345 has 0 memory_mb, 0 disk; two/012345 has 1000 memory_mb"):
        require_nodes(asking(memory_mb=10, custom={"disk": 1}), nodes)
    with pytest.raises(NotEnough, match=r"services ask for 1\.5 gpus, but all nodes .* together have 1 gpus"):
        require_nodes(asking(count=3, gpus=0.5), nodes)


@needs_ray
def test_a_post_loads_no_torch() -> None:
    code = "import sys, ludus.runtime.ray.service_starter; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@needs_ray
def test_services_take_cores_first_that_no_worker_was_to_have() -> None:
    from ludus.runtime.ray.connection import _places_left

    assert _places_left({"CPU": 8, "ludus_actor": 6}, 0.0) == 6
    assert _places_left({"CPU": 8, "ludus_actor": 6}, 2.0) == 6
    assert _places_left({"CPU": 8, "ludus_actor": 6}, 3.5) == 4
    assert _places_left({"CPU": 8, "ludus_actor": 6, "ludus_learner": 1}, 3.0) == 4
    assert _places_left({"CPU": 2, "ludus_actor": 6}, 2.0) == 4, "more places than cores, as somebody wants it"
    assert _places_left({"CPU": 8}, 2.0) == 0


class Deaf:
    """In place of Ray and of a post: never answers, as one whose process hangs."""

    def __getattr__(self, name: str) -> Deaf:
        return self

    def __call__(self, *_: Any, **__: Any) -> Deaf:
        return self

    def get(self, answer: Any, timeout: float) -> Any:
        from ray.exceptions import GetTimeoutError

        time.sleep(0.01)
        raise GetTimeoutError


@needs_ray
@pytest.mark.parametrize("restart", [True, False])
def test_what_is_started_again_keeps_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool) -> None:
    from ludus.runtime.ray import service_starter as posts

    monkeypatch.setattr(posts, "ray", Deaf())
    monkeypatch.setattr(posts, "SERVICE_ACTOR", Deaf())
    needed = Resources(cpus=1)
    described = UserService(address="a.py:A", resources=needed, restart=restart)
    starter = posts.RayServiceStarter(
        RunFolder.create(tmp_path / "run", encode(small()), seed=0, command=()), ClusterConfig(silent_after_s=20.0)
    )
    starter._facts, starter._code = b"", []
    starter._told = {"LUDUS_SERVICES": "tcp:127.0.0.1:1", "LUDUS_SERVICES_TOKEN": "token"}
    process = starter.start("judge", "judge-0", described)
    assert starter.taken() == {"": [needed]}
    process.kill()
    assert process.lost is None, "killed by us"
    assert starter.taken() == ({"": [needed]} if restart else {})
    ended = starter.start("judge", "judge-0", described)
    ended.exit_code = 1
    assert starter.taken() == ({"": [needed]} if restart else {})
    ended.kill()


DYING = """
import os, threading
from ludus import service

class Dying:
    def __init__(self):
        print("x" * 20_000)
        print("my last words", flush=True)
        threading.Timer(1.0, os._exit, [7]).start()

    @service()
    def nothing(self):
        pass
"""


@needs_ray
@pytest.mark.slow
def test_last_words_come_from_a_node_without_the_run_folder(tmp_path: Path) -> None:
    """On a private cluster, which has room for all that is asked for."""
    (tmp_path / "dying.py").write_text(DYING)
    needed = Resources(memory_mb=1, custom={"seat": 1.5})
    described = small(
        budget=10**9,
        cluster=ClusterConfig(shared_folder=False),
        services={"dying": UserService(address=f"{tmp_path / 'dying.py'}:Dying", resources=needed, restart=False)},
    )
    path = tmp_path / "run"
    with ray_run(path, described) as run:
        wait_until(lambda: [one.state for one in services_of(path)] == ["ended"], "its end")
        log = (path / "logs" / "service-dying-0.log").read_bytes()
        assert b"run service-dying-0: my last words\n" in log
        assert 8_000 < len(log) <= 16_384
        run.interrupt()
        assert run.end() == 130


@needs_ray
@pytest.mark.slow
def test_a_node_with_other_code_is_passed_over(tmp_path: Path) -> None:
    copy = tmp_path / "other"
    shutil.copytree(Path(ludus.__file__).parent, copy / "ludus")
    with (copy / "ludus" / "__init__.py").open("a") as file:
        file.write("# another version\n")
    (tmp_path / "clerk.py").write_text(CODE)
    clerk = UserService(address=f"{tmp_path / 'clerk.py'}:Clerk", count=2, resources=Resources(gpus=0.5))
    path = tmp_path / "run"
    with LoopbackCluster(2) as nodes:
        nodes.add(2, {"PYTHONPATH": str(copy)}, gpus=1)
        described = small(budget=10**9, services={"clerk": clerk})
        with ray_run(path, described, "--address", nodes.address, environment=nodes.environment) as run:
            assert run.end() == 1, "no other node has what it needs"
        said = (path / "stderr.txt").read_text()
        assert "install the same version on it\n" in said, "and no log that nobody has written"
        number = nodes.add(2, gpus=1)["number"]
        path = tmp_path / "again"
        with ray_run(path, described, "--address", nodes.address, environment=nodes.environment) as run:
            run.learned()
            assert {one.node.rpartition("/")[2] for one in services_of(path)} == {nodes.ids[number][:6]}
            run.interrupt()
            assert run.end() == 130


def services_of(path: Path) -> list[WorkerStatus]:
    status = read_status(path / "status.json")
    return [one for one in (status.workers if status else ()) if one.name.startswith("service-")]


@needs_ray
@pytest.mark.slow
def test_services_go_to_the_node_that_has_what_they_need_and_come_back_with_it(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "clerk.py").write_text(CODE)
    (code / "telling.py").write_text(MIDDLEWARE)
    needed = Resources(cpus=1, gpus=1)
    described = small(
        budget=10**9,
        services={"clerk": UserService(address=f"{code / 'clerk.py'}:Clerk", count=2, resources=needed)},
        middleware=(load_address(f"{code / 'telling.py'}:tell"),),
    )
    path = tmp_path / "run"
    with LoopbackCluster(2) as nodes:
        number = nodes.add(3, gpus=2)["number"]  # a core is left for an actor
        with ray_run(path, described, "--address", nodes.address, environment=nodes.environment) as run:
            run.learned(2_000)
            assert run.last["cluster/nodes"] == 2
            before = services_of(path)
            assert [one.name for one in before] == ["service-clerk-0", "service-clerk-1"]
            for one in before:
                assert one.state == "working"
                assert one.node.endswith(f"/{nodes.ids[number][:6]}")
                assert one.address.startswith("tcp:127.0.0.1:")
                assert one.restarts == 0
            logs = "".join((path / "logs" / f"{one.name}.log").read_text() for one in before)
            assert "GPU 0 threads 1" in logs
            assert "GPU 1 threads 1" in logs
            assert "heard learner" in logs, "found from the learner's node"
            assert "heard actor-" in logs
            nodes.kill(number)
            wait_until(lambda: {one.state for one in services_of(path)} == {"waiting"}, "its loss")
            run.learned(2_000)
            number = nodes.add(3, gpus=2)["number"]
            wait_until(lambda: all(one.state == "working" for one in services_of(path)), "its return", most_s=120)
            for one in services_of(path):
                assert one.node.endswith(f"/{nodes.ids[number][:6]}")
                assert one.restarts >= 1
            lost = [fault for fault in faults_of(path) if fault["class"] == "service_lost"]
            assert len(lost) >= 2
            assert "was lost with node" in lost[0]["reason"]
            pids = [one.pid for one in services_of(path) if one.pid is not None]
            assert set(pids) <= set(descendants(nodes.pid)), "they run where Ray has put them"
            run.interrupt()
            assert run.end() == 130
            wait_until(lambda: all(map(is_gone, pids)), "the end of the services")
