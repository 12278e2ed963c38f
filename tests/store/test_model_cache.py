"""Models for machines without the run folder: cached, bounded, checked; from files, a service or Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from redis_server import RedisServer

from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.runtime.assemble import load_experiment
from ludus.runtime.serial import serial_training
from ludus.store.checkpoints import Arrays
from ludus.store.model_pool import DamagedModel, ModelEntry, ModelPool, ModelsUnreachable, UnknownModel, Variant
from ludus.store.model_storage import MirroredPool, ModelCache, ModelSource, ModelStorage, RedisModels
from ludus.store.run_folder import RunFolder
from ludus.system.machine import install_command

LINE = [ModelId("main", 0, step) for step in (1, 2, 3)]


def weights(step: int, size: int = 100) -> Arrays:
    return {"w": np.full(size, step, np.float32)}


@pytest.fixture
def pool(tmp_path: Path) -> ModelPool:
    pool = ModelPool(tmp_path / "models")
    for parent, model in zip([None, *LINE], LINE, strict=False):
        pool.publish(model, weights(model.step), parent=parent, facts={})
    pool.tag("best", LINE[1])
    return pool


class Counting:
    """A source that counts what it hands out."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self.sent: list[ModelId] = []
        self.entry = source.entry
        self.resolve = source.resolve
        self.lineage = source.lineage

    def content(self, model: ModelId, variant: Variant = "live") -> bytes:
        self.sent.append(model)
        return self._source.content(model, variant)


def test_a_model_is_fetched_once(pool: ModelPool, tmp_path: Path) -> None:
    source = Counting(pool)
    cache = ModelCache(source, tmp_path / "cache")
    for _ in range(3):
        np.testing.assert_array_equal(cache.fetch(LINE[0])["w"], weights(1)["w"])
    another = ModelCache(source, tmp_path / "cache")  # of another process, later
    another.fetch(LINE[0])
    assert source.sent == [LINE[0]]
    assert (cache.hits, cache.misses) == (2, 1)
    assert cache.resolve("main") == LINE[2]
    assert cache.resolve("main@best") == LINE[1]
    assert cache.lineage(LINE[2]) == tuple(reversed(LINE))
    assert cache.entry(LINE[1]).parent == LINE[0]


def test_the_folder_is_bounded_and_what_was_used_last_stays(pool: ModelPool, tmp_path: Path) -> None:
    source = Counting(pool)
    size = len(pool.content(LINE[0]))
    cache = ModelCache(source, tmp_path / "cache", most_bytes=2 * size)
    for at, model in enumerate((LINE[0], LINE[1], LINE[0], LINE[2])):
        cache.fetch(model)
        for file in (tmp_path / "cache").glob("*.safetensors"):  # as if time had passed
            os.utime(file, ns=(0, file.stat().st_mtime_ns - 10**9 * (4 - at)))
    kept = {file.stem for file in (tmp_path / "cache").glob("*.safetensors")}
    assert len(kept) == 2
    assert source.sent == [LINE[0], LINE[1], LINE[2]]
    tiny = ModelCache(source, tmp_path / "tiny", most_bytes=10)
    np.testing.assert_array_equal(tiny.fetch(LINE[2])["w"], weights(3)["w"])
    assert list((tmp_path / "tiny").glob("*.safetensors")) == []


@pytest.mark.parametrize("harm", ["cut", "flipped", "pickle"])
def test_a_damaged_file_is_fetched_again(pool: ModelPool, tmp_path: Path, harm: str) -> None:
    cache = ModelCache(pool, tmp_path / "cache")
    cache.fetch(LINE[0])
    (file,) = (tmp_path / "cache").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes({"cut": content[:-5], "flipped": content, "pickle": b"\x80\x04."}[harm])
    np.testing.assert_array_equal(cache.fetch(LINE[0])["w"], weights(1)["w"])
    assert cache.misses == 2
    cache.fetch(LINE[0])
    assert cache.hits == 1


def test_what_the_source_sends_is_checked_too(pool: ModelPool, tmp_path: Path) -> None:
    class Lying(Counting):
        def content(self, model: ModelId, variant: Variant = "live") -> bytes:
            return pool.content(LINE[1])

    cache = ModelCache(Lying(pool), tmp_path / "cache")
    with pytest.raises(DamagedModel, match="main:0:1 in what the source sent do not match their digest"):
        cache.fetch(LINE[0])
    assert list((tmp_path / "cache").glob("*.safetensors")) == []
    with pytest.raises(UnknownModel, match="no model main:0:9"):
        cache.fetch(ModelId("main", 0, 9))


class Away(Counting):
    """A source that is away for some calls."""

    def __init__(self, source: ModelSource, calls: int) -> None:
        super().__init__(source)
        self.calls = calls
        self.entry = self._entry

    def _entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry:
        if self.calls:
            self.calls -= 1
            raise ModelsUnreachable("nobody is there")
        return self._source.entry(model, variant)


def test_a_source_that_comes_back_is_waited_for(
    pool: ModelPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.store.model_storage._RETRY_S", 0.01)
    source, waits = Away(pool, 3), []
    cache = ModelCache(source, tmp_path / "cache", patience_s=30.0, waiting=lambda: waits.append(1))
    np.testing.assert_array_equal(cache.fetch(LINE[0])["w"], weights(1)["w"])
    assert len(waits) == 3
    assert cache.has(LINE[0], "live")
    assert not cache.has(LINE[1], "live")
    source.calls = 10**9
    np.testing.assert_array_equal(cache.fetch(LINE[0])["w"], weights(1)["w"])  # what is here needs no source
    impatient = ModelCache(source, tmp_path / "other", patience_s=0.05)
    with pytest.raises(ModelsUnreachable, match="nobody is there"):
        impatient.fetch(LINE[0])


def test_as_many_models_as_may_be_kept(pool: ModelPool, tmp_path: Path) -> None:
    cache = ModelCache(pool, tmp_path / "cache", most_models=2)
    for at, model in enumerate(LINE):
        cache.fetch(model)
        for file in (tmp_path / "cache").glob("*.safetensors"):
            os.utime(file, ns=(0, file.stat().st_mtime_ns - 10**9 * (4 - at)))
    assert [cache.has(model, "live") for model in LINE] == [False, True, True]


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    pool: ModelPool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cache = ModelCache(pool, tmp_path / "cache")
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("no folder")  # as a disk that fails
    np.testing.assert_array_equal(cache.fetch(LINE[0])["w"], weights(1)["w"])
    assert f"main:0:1 (live) cannot be kept in {tmp_path / 'cache'}" in capfd.readouterr().err


# --- Redis ---


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RedisServer(tmp_path_factory.mktemp("r"))
    yield server.url
    server.stop()


@pytest.mark.slow
@pytest.mark.ci
def test_models_are_in_redis_too(redis_url: str, pool: ModelPool, tmp_path: Path) -> None:
    with closing(RedisModels(f"{redis_url}#run-1")) as mirror:
        mirrored = MirroredPool(pool.folder, mirror)
        new = ModelId("main", 1, 4)
        mirrored.publish(new, weights(4), parent=LINE[2], facts={})  # brings the earlier ones along
        cache = ModelCache(RedisModels(f"{redis_url}#run-1"), tmp_path / "cache")
        for model in (*LINE, new):
            np.testing.assert_array_equal(cache.fetch(model)["w"], weights(model.step)["w"])
            assert cache.entry(model) == pool.entry(model)
        assert cache.resolve("main") == cache.resolve("main@latest") == new
        assert cache.resolve("main@best") == LINE[1]
        assert cache.resolve("main:0:2") == LINE[1]
        assert cache.lineage(new) == (new, *reversed(LINE))
        with pytest.raises(UnknownModel, match=r"no models of player 'mian'.*did you mean 'main'"):
            cache.resolve("mian")
        with pytest.raises(UnknownModel, match="no model main:0:9"):
            cache.fetch(ModelId("main", 0, 9))
        with pytest.raises(UnknownModel, match="'main@bset'; did you mean 'main@best'"):
            cache.resolve("main@bset")
        assert mirrored.collect_garbage(keep_last=1) == [LINE[0], LINE[2]]  # the best one is tagged
        with pytest.raises(UnknownModel, match="no longer in Redis"):
            mirror.content(LINE[0])
        assert cache.lineage(new) == (new, *reversed(LINE))
        with closing(RedisModels(f"{redis_url}#run-2")) as other:
            assert other.known() == set()  # each run has names of its own
        mirror._redis.flushdb()  # as a server that was started again without a disk
        assert mirror.known() == set()
        mirrored.publish(ModelId("main", 1, 5), weights(5), parent=new, facts={})
        np.testing.assert_array_equal(cache.source.content(LINE[1]), pool.content(LINE[1]))
        mirror._redis.delete("ludus:run-1:weights:main:0:2 live")  # as a server whose memory is full
        mirrored.mirror_all("all")
        assert mirror.content(LINE[1]) == pool.content(LINE[1])


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_puts_its_models_into_redis(redis_url: str, tmp_path: Path) -> None:
    described: Experiment = load_address("ludus.recipes.kuhn:experiment")()
    experiment = replace(described, budget=3_000, models=ModelStorage(backend=redis_url), runtime="serial", services={})
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=0, command=())
    with closing(serial_training(load_experiment(folder), folder)) as training:
        training.run()
    elsewhere = ModelCache(RedisModels(experiment.models.address(folder)), tmp_path / "cache")
    entries = folder.models.entries()
    assert len(entries) >= 4  # live and average, of the first weights and the last
    for entry in entries:
        here = folder.models.fetch(entry.model, entry.variant)
        there = elsewhere.fetch(entry.model, entry.variant)
        assert here.keys() == there.keys()
        for name, array in here.items():
            np.testing.assert_array_equal(there[name], array)
    assert elsewhere.resolve("main") == folder.models.resolve("main")


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_goes_on_without_redis(pool: ModelPool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("redis")
    away = RedisModels(f"unix://{tmp_path}/nobody#run-1")
    new = ModelId("main", 1, 4)
    MirroredPool(pool.folder, away).publish(new, weights(4), parent=LINE[2], facts={})
    assert f"only {pool.folder} has main:1:4: Redis" in capfd.readouterr().err
    np.testing.assert_array_equal(pool.fetch(new)["w"], weights(4)["w"])


def test_without_the_library_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from ludus.store.model_storage import RedisModels\n"
        "RedisModels('redis://127.0.0.1:1/0#run')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert install_command("redis") in done.stderr
