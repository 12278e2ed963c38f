"""A node that cannot keep a model it is sent: the run says so, goes on, and sends it again."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from ray_runs import check_run, faults_of, needs_ray, ray_run
from small_runs import small

from ludus.data.records import ModelId
from ludus.experiment import ClusterConfig
from ludus.league.matchmaking import PFSP
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.runtime.ray.loopback import LoopbackCluster
from ludus.store.model_pool import ModelPool, UnknownModel
from ludus.workers.config import Supervision

pytestmark = [pytest.mark.slow, needs_ray]


def caches() -> set[Path]:
    """Of nodes that do not see the run folder."""
    found = Path(tempfile.gettempdir()).glob("ludus-site-run-*/models")
    return {models for models in found if not models.is_symlink()}


def faults_so_far(path: Path, kind: str) -> list[dict[str, Any]]:
    if not (path / "metrics" / "faults.jsonl").exists():
        return []
    return [fault for fault in faults_of(path) if fault["class"] == kind]


def has_model(models: Path, model: ModelId, variant: Any) -> bool:
    try:
        ModelPool(models).fetch(model, variant)
    except UnknownModel:
        return False
    return True


def test_the_run_names_node_and_reason_and_sends_it_again(tmp_path: Path) -> None:
    path, before = tmp_path / "run", caches()
    described = small(
        budget=10**9,
        cluster=ClusterConfig(shared_folder=False),
        league=LeagueRules(roles={"main": Role(matchmaking=PFSP(), promotion=BySteps(every=10_000))}),
        supervision=Supervision(quarantine_after=100),
    )
    with (
        LoopbackCluster(2, 1) as nodes,
        ray_run(path, described, "--address", nodes.address, environment=nodes.environment) as run,
    ):
        run.until(lambda numbers: numbers.get("cluster/bytes_per_s", 0) > 0)
        [models] = caches() - before
        away = models.with_name("away")
        models.rename(away)
        models.write_text("no folder")  # as a disk that fails
        run.until(lambda _: bool(faults_so_far(path, "model_not_kept")))
        models.unlink()
        away.rename(models)
        fault = faults_so_far(path, "model_not_kept")[0]
        [node] = [one[:6] for one in nodes.ids if one[:6] in fault["worker"]]
        words = fault["reason"].split()
        assert words[:4] == ["node", fault["worker"], "cannot", "keep"]
        assert node == nodes.ids[1][:6]
        assert "Error: " in fault["reason"]
        model, variant = ModelId.parse(words[4]), words[5].strip("():")
        run.until(lambda _: has_model(models, model, variant))
        run.learned(5_000)
        run.interrupt()
        assert run.end() == 130
    check_run(path)
    others = [fault for fault in faults_of(path) if fault["class"] != "model_not_kept"]
    assert {(one["worker"], one["then"]) for one in others} == {("actor-1", "started again")}
