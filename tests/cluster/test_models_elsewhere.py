"""Nodes that do not see the run folder read frozen models from the pool's service or from Redis, which may be away."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import descendants
from ray_runs import check_run, faults_of, needs_ray, ray_run
from redis_server import RedisServer
from small_runs import small

from ludus.experiment import ClusterConfig, Experiment
from ludus.league.matchmaking import PFSP
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.runtime.ray.loopback import LoopbackCluster
from ludus.store.model_storage import ModelStorage

pytestmark = [pytest.mark.slow, needs_ray]


def apart(backend: str) -> Experiment:
    """Every match has a frozen player, and only the learner's node may look into the run folder."""
    return small(
        budget=10**9,
        cluster=ClusterConfig(shared_folder=False, models_kept=4),
        league=LeagueRules(roles={"main": Role(matchmaking=PFSP(), promotion=BySteps(every=3_000))}),
        models=ModelStorage(backend=backend, patience_s=1.0),
    )


def caches() -> set[Path]:
    """Of nodes that do not see the run folder."""
    found = Path(tempfile.gettempdir()).glob("ludus-site-run-*/models")
    return {models for models in found if not models.is_symlink()}


def unreachable(path: Path) -> list[dict[str, Any]]:
    found = faults_of(path) if (path / "metrics" / "faults.jsonl").exists() else []
    return [fault for fault in found if fault["class"] == "models_unreachable"]


@pytest.fixture
def nodes() -> Iterator[LoopbackCluster]:
    with LoopbackCluster(2, 1) as cluster:
        yield cluster


def check_end(path: Path, reason: str) -> None:
    check_run(path)
    assert {fault["class"] for fault in faults_of(path)} <= {"models_unreachable", "service_lost"}
    void = [fault for fault in unreachable(path) if fault["then"] == "the match is void"]
    assert void
    assert all(reason in fault["reason"] and len(fault["matches"]) == 1 for fault in void)


def test_from_the_service_of_the_pool(tmp_path: Path, nodes: LoopbackCluster) -> None:
    path, before = tmp_path / "run", caches()
    with ray_run(path, apart("files"), "--address", nodes.address, environment=nodes.environment) as run:
        run.until(lambda numbers: numbers.get("cluster/bytes_per_s", 0) > 0)
        run.learned(12_000)
        [cache] = caches() - before
        assert 1 <= len(list(cache.glob("*.safetensors"))) <= 4
        assert not unreachable(path)
        [service] = [pid for pid in descendants(run.process.pid) if is_service(pid)]
        os.kill(service, signal.SIGSTOP)  # it answers nothing any more
        run.until(lambda _: bool(unreachable(path)))
        os.kill(service, signal.SIGKILL)  # another one is started
        run.until(lambda numbers: numbers.get("cluster/bytes_per_s", 0) > 0)
        told = len(unreachable(path))
        run.learned(12_000)
        assert len(unreachable(path)) <= told + 2, "those that waited meanwhile"
        run.interrupt()
        assert run.end() == 130
    check_end(path, "the model pool's service")


def is_service(pid: int) -> bool:
    try:
        return "ludus.services" in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_from_redis(tmp_path: Path, nodes: LoopbackCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    path, before = tmp_path / "run", caches()
    server = RedisServer(tmp_path_factory.mktemp("r"))
    try:
        with ray_run(path, apart(server.url), "--address", nodes.address, environment=nodes.environment) as run:
            run.until(lambda numbers: numbers.get("cluster/bytes_per_s", 0) > 0)
            run.learned(12_000)
            [cache] = caches() - before
            assert 1 <= len(list(cache.glob("*.safetensors"))) <= 4
            assert not unreachable(path)
            server.stop()
            run.until(lambda _: bool(unreachable(path)))
            server.start()  # empty: the learner's next snapshot brings everything back
            told = len(unreachable(path))
            run.learned(15_000)
            left = len(unreachable(path))
            run.learned(9_000)
            assert len(unreachable(path)) == left, f"{told} while it was away"
            run.interrupt()
            assert run.end() == 130
    finally:
        server.stop()
    check_end(path, "Redis (unix://")
