"""The model pool as a service: what it says of models, and its errors, are the pool's."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ludus.data.records import ModelId
from ludus.runtime.services import ModelService, ServedModels
from ludus.services.registry import Instance, MemoryRegistry, here, listen_unix
from ludus.services.server import Server, ServerThread
from ludus.store.model_pool import ModelPool, UnknownModel
from ludus.store.model_storage import ModelCache


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


def test_it_serves_the_run_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUDUS_RUN", raising=False)
    with pytest.raises(ValueError, match="name the folder of a model pool"):
        ModelService()
    model = ModelId("main", 0, 1)
    ModelPool(tmp_path / "models").publish(model, {"w": np.ones(3)}, parent=None, facts={})
    monkeypatch.setenv("LUDUS_RUN", str(tmp_path))
    assert ModelService().resolve("main") == str(model)
