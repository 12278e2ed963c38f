"""Models on a node that does not see the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from small_runs import small

from ludus.config import encode
from ludus.data.records import ModelId
from ludus.runtime.ray.transfer import ArrayMessage, pack
from ludus.runtime.ray.user_code import Mirror
from ludus.store.model_pool import UnknownModel
from ludus.store.run_folder import RunFolder
from ludus.system.arrays import WireError


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    run = RunFolder.create(tmp_path / "run", encode(small()), seed=0, command=())
    made = Mirror(str(run.path), (run.path / "run.json").read_bytes(), [], shared=False)
    yield made
    made.close()


def weights(step: int) -> ArrayMessage:
    return pack({"w": np.full(4, step, np.float32)})


def test_the_cache_keeps_those_that_were_asked_for_last(mirror: Mirror) -> None:
    models = [ModelId("main", 0, step) for step in range(4)]
    for model in models[:3]:
        mirror.keep_model(model, "live", weights(model.step), most=3)
    mirror.keep_model(models[0], "live", None, most=3)  # asked for again
    mirror.keep_model(models[3], "average", weights(3), most=3)
    pool = mirror.folder.models
    assert pool.fetch(models[0])["w"].tolist() == [0] * 4
    assert pool.fetch(models[3], "average")["w"].tolist() == [3] * 4
    with pytest.raises(UnknownModel):
        pool.fetch(models[1])
    mirror.keep_model(models[1], "live", weights(1), most=3)
    assert pool.fetch(models[1])["w"].tolist() == [1] * 4, "what has left may come again"


def test_a_damaged_model_is_not_kept(mirror: Mirror) -> None:
    parcel = weights(0)
    body = parcel.body.copy()
    body[0] ^= 1
    with pytest.raises(WireError):
        mirror.keep_model(ModelId("main", 0, 0), "live", msgspec.structs.replace(parcel, body=body), most=3)
    with pytest.raises(UnknownModel):
        mirror.folder.models.fetch(ModelId("main", 0, 0))
