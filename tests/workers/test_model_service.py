"""The model pool as a service: what it says of models, and its errors, are the pool's."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest

from ludus.config import ConfigError
from ludus.data.addresses import load_address
from ludus.data.records import Match, ModelId, Side
from ludus.experiment import ClusterConfig, Experiment
from ludus.runtime.actor_process import ControlMatchClient
from ludus.runtime.services import ModelService, ServedModels, with_model_service
from ludus.services.registry import Instance, MemoryRegistry, here, listen_unix
from ludus.services.resources import UserService
from ludus.services.server import Server, ServerThread
from ludus.store.model_pool import ModelPool, ModelsUnreachable, UnknownModel
from ludus.store.model_storage import ModelCache, ModelStorage
from ludus.system.process import receive, send
from ludus.workers.messages import Done, FromActor, FrozenFound, MatchFound, VoidMatch


def test_latest_pinned_and_lineage_from_elsewhere(tmp_path: Path) -> None:
    pool = ModelPool(tmp_path / "run" / "models")
    first, second = ModelId("main", 0, 1), ModelId("main", 0, 2)
    weights = {"w": np.random.default_rng(0).normal(size=(100, 50)).astype(np.float32)}
    pool.publish(first, weights, parent=None, facts={"decisions": 5})
    pool.publish(second, {"w": weights["w"] + 1}, parent=first, facts={})
    pool.publish(second, {"w": weights["w"] + 2}, parent=first, variant="average", facts={})

    registry = MemoryRegistry()
    listening, address = listen_unix(tmp_path / "models-0.sock")
    serving = ServerThread(Server("models-0", ModelService(str(pool.folder))), listening)
    registry.announce(Instance(service="models", name="models-0", address=address, host=here(), pid=os.getpid()))
    try:
        with closing(ServedModels(registry=registry)) as served:
            cache = ModelCache(served, tmp_path / "cache")
            assert cache.resolve("main") == second
            np.testing.assert_array_equal(cache.fetch(first)["w"], weights["w"])
            np.testing.assert_array_equal(cache.fetch(second, "average")["w"], weights["w"] + 2)
            assert cache.entry(first) == pool.entry(first)
            assert cache.lineage(second) == (second, first)
            with pytest.raises(UnknownModel, match=r"no model main:0:3 .*did you mean 'main:0:2'"):
                cache.fetch(ModelId("main", 0, 3))
            with pytest.raises(UnknownModel, match="no models of player 'mian'"):
                cache.resolve("mian")
    finally:
        serving.close()
    with (
        closing(ServedModels(registry=MemoryRegistry(), time_limit_s=0.3)) as nobody,
        pytest.raises(ModelsUnreachable, match="the model pool's service: no service 'models'"),
    ):
        nobody.entry(first)


def test_a_run_on_a_cluster_has_the_service() -> None:
    described: Experiment = load_address("ludus.recipes.kuhn:experiment")()
    assert with_model_service(described, None) is described  # all nodes of a private cluster see the folder
    apart = replace(described, cluster=ClusterConfig(shared_folder=False))
    for served in (with_model_service(described, "10.0.0.1:6379"), with_model_service(apart, None)):
        assert served.services["models"].address == "ludus.runtime.services:ModelService"
        assert with_model_service(served, "10.0.0.1:6379") is served
    in_redis = replace(described, models=ModelStorage(backend="redis://127.0.0.1:1/0"))
    assert with_model_service(in_redis, "10.0.0.1:6379") is in_redis
    taken = replace(described, services={"models": UserService(address="mine.py:Models")})
    with pytest.raises(ConfigError, match=r"services\.models is mine\.py:Models, but on a cluster 'models' names"):
        with_model_service(taken, "10.0.0.1:6379")


def test_a_match_whose_model_cannot_be_had_is_void(tmp_path: Path) -> None:
    pool = ModelPool(tmp_path / "pool")
    here_, away = ModelId("main", 0, 1), ModelId("main", 0, 2)
    pool.publish(here_, {"w": np.ones(3)}, parent=None, facts={})
    ours, theirs = Pipe()
    client = ControlMatchClient(ours, ModelCache(pool, tmp_path / "cache"), learning=("main",))
    asked: list[object] = []

    def answer() -> None:
        """As the controller does: the first match needs a model that nobody has."""
        for opponent, model in (("main.2", away), ("main.1", here_)):
            match = Match(len(asked), "training", (Side(("main",), True), Side((opponent,))), 1, 1)
            for reply in (MatchFound(match, 1), FrozenFound(str(model), "live"), Done())[: 2 + (model is away)]:
                asked.append(receive(theirs, FromActor))
                send(theirs, reply)

    controller = threading.Thread(target=answer)
    controller.start()
    match = client.next_match(1)
    controller.join()
    assert match.sides[1].players == ("main.1",)
    [void] = [one for one in asked if isinstance(one, VoidMatch)]
    assert (void.match_id, void.kind) == (0, "models_unreachable")
    assert "no model main:0:2" in void.reason
    ours.close()
    theirs.close()


def test_it_serves_the_run_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUDUS_RUN", raising=False)
    with pytest.raises(ValueError, match="name the folder of a model pool"):
        ModelService()
    model = ModelId("main", 0, 1)
    ModelPool(tmp_path / "models").publish(model, {"w": np.ones(3)}, parent=None, facts={})
    monkeypatch.setenv("LUDUS_RUN", str(tmp_path))
    assert ModelService().resolve("main") == str(model)
