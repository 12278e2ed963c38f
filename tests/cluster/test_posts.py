"""Services on the nodes of a cluster: they go where there is what they need, and come back when it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_runs import descendants, faults_of, is_gone, needs_ray, ray_run, wait_until
from small_runs import small

from ludus.cluster.loopback import LoopbackCluster
from ludus.data.files import load_address
from ludus.services import Resources, UserService
from ludus.services.allotment import NotEnough
from ludus.store.run_status import WorkerStatus, read_status

CODE = """
import os
from ludus.services import service

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
from ludus.services import Solver, ServiceError

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
    from ludus.cluster.posts import require_nodes

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
    code = "import sys, ludus.cluster.post_actor; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


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
            wait_until(
                lambda: all(one.state == "working" for one in services_of(path)), "its return", most_s=120
            )
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
