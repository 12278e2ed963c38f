"""The pool: an id has one content, what is in opens as it was, garbage goes and lineage stays."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.data.records import ModelId
from ludus.store.files import BadName
from ludus.store.model_pool import DamagedModel, ModelConflict, ModelPool, ModelPoolError, UnknownModel

HOSTILE_NAMES = ["../x", "..", "/etc/passwd", "a/b", "'; DROP TABLE rows", "main@best", "a:1:2", ".hidden"]
REFUSED_NAMES = ["", "a\0b", "a\nb", "x" * 10_000, "\u202egnp.exe"]


def weights(value: float = 1.0) -> dict[str, NDArray[Any]]:
    return {"layer.weight": np.full((2, 3), value, np.float32), "steps": np.array(3)}


def main(step: int, incarnation: int = 0) -> ModelId:
    return ModelId("main", incarnation, step)


@pytest.fixture
def pool(tmp_path: Path) -> ModelPool:
    return ModelPool(tmp_path / "models")


def publish(pool: ModelPool, model: ModelId, value: float = 1.0, parent: ModelId | None = None) -> None:
    pool.publish(model, weights(value), parent=parent, facts={"decisions": model.step * 100})


def weights_file(pool: ModelPool, model: ModelId) -> Path:
    return pool.folder / model.player / f"{model.incarnation}-{model.step}.safetensors"


def test_weights_and_facts_come_back(pool: ModelPool) -> None:
    publish(pool, main(0))
    entry = pool.publish(main(1), weights(2.0), parent=main(0), facts={"decisions": 5, "loss": 0.5, "by": "me"})
    again = ModelPool(pool.folder)
    assert again.entry(main(1)) == entry
    assert entry.facts == {"decisions": 5, "loss": 0.5, "by": "me"}
    assert entry.parent == main(0)
    assert entry.architecture == again.entry(main(0)).architecture
    assert entry.digest != again.entry(main(0)).digest
    fetched = again.fetch(main(1))
    assert fetched.keys() == weights().keys()
    assert np.array_equal(fetched["layer.weight"], weights(2.0)["layer.weight"])
    assert weights_file(pool, main(1)).is_file()


def test_live_and_average_weights_lie_side_by_side(pool: ModelPool) -> None:
    publish(pool, main(1))
    with pytest.raises(UnknownModel, match=r"no model main:0:1 \(average\)"):
        pool.fetch(main(1), "average")
    pool.publish(main(1), weights(9.0), parent=None, variant="average", facts={})
    assert pool.fetch(main(1), "average")["layer.weight"][0, 0] == 9.0
    assert pool.fetch(main(1))["layer.weight"][0, 0] == 1.0
    assert [entry.variant for entry in pool.entries()] == ["average", "live"]
    with pytest.raises(ModelPoolError, match=r"no variant 'best' .*live, average"):
        pool.fetch(main(1), "best")  # type: ignore[arg-type]


def test_an_id_has_one_content(pool: ModelPool) -> None:
    first = pool.publish(main(1), weights(1.0), parent=None, facts={"decisions": 1})
    file = weights_file(pool, main(1))
    before = file.stat()
    assert pool.publish(main(1), weights(1.0), parent=None, facts={"decisions": 1}) == first
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(ModelConflict, match=r"main:0:1 \(live\) has content .* refused"):
        publish(pool, main(1), value=2.0)
    assert pool.fetch(main(1))["layer.weight"][0, 0] == 1.0


def test_publishers_that_race_agree_on_one_content(pool: ModelPool) -> None:
    code = (
        "import sys; import numpy as np\n"
        "from ludus.data.records import ModelId\n"
        "from ludus.store.model_pool import ModelConflict, ModelPool\n"
        "pool, own, conflicts = ModelPool(sys.argv[1]), float(sys.argv[2]), 0\n"
        "for step in range(20):\n"
        "    try: pool.publish(ModelId('main', 0, step), {'w': np.full(9, own)}, parent=None, facts={})\n"
        "    except ModelConflict: conflicts += 1\n"
        "print(conflicts)\n"
    )
    commands = [[sys.executable, "-c", code, str(pool.folder), own] for own in ("1", "2")]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    assert sum(int(racer.communicate()[0]) for racer in racers) == 20
    for step in range(20):
        assert pool.fetch(main(step))["w"].shape == (9,)


def test_a_cut_or_a_flipped_bit_is_found(pool: ModelPool) -> None:
    publish(pool, main(1))
    file = weights_file(pool, main(1))
    content = file.read_bytes()
    rng = random.Random(0)
    damaged = [content[:length] for length in range(len(content))]
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    for attempt in damaged:
        file.write_bytes(attempt)
        with pytest.raises(DamagedModel, match=r"main:0:1 in .*0-1\.safetensors"):
            pool.fetch(main(1))
    file.write_bytes(content)
    pool.fetch(main(1))
    file.unlink()
    with pytest.raises(DamagedModel, match="missing"):
        pool.fetch(main(1))


def test_other_weights_or_a_pickle_in_place_are_refused(pool: ModelPool, tmp_path: Path) -> None:
    publish(pool, main(1))
    publish(pool, main(2), value=2.0)
    canary = tmp_path / "canary"

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (canary,)

    weights_file(pool, main(1)).write_bytes(weights_file(pool, main(2)).read_bytes())
    with pytest.raises(DamagedModel, match="do not match their digest"):
        pool.fetch(main(1))
    weights_file(pool, main(1)).write_bytes(pickle.dumps(Attack()))
    with pytest.raises(DamagedModel, match="pickle"):
        pool.fetch(main(1))
    assert not canary.exists()
    sidecar = weights_file(pool, main(1)).with_suffix(".json")
    sidecar.write_bytes(weights_file(pool, main(2)).with_suffix(".json").read_bytes())
    with pytest.raises(DamagedModel, match="describes main:0:2, not main:0:1"):
        pool.entry(main(1))
    sidecar.write_bytes(b"{")
    with pytest.raises(DamagedModel, match=r"0-1\.json does not read"):
        pool.entries()


def test_lineage_goes_back_to_the_first(pool: ModelPool) -> None:
    publish(pool, main(0))
    publish(pool, main(5), 2.0, parent=main(0))
    rival = ModelId("rival", 0, 0)
    publish(pool, rival, 2.0, parent=main(5))
    assert pool.lineage(rival) == (rival, main(5), main(0))
    publish(pool, main(7), parent=main(6))
    with pytest.raises(UnknownModel, match="no model main:0:6"):
        pool.lineage(main(7))
    publish(pool, main(6), parent=main(5))
    assert pool.lineage(main(7)) == (main(7), main(6), main(5), main(0))


@pytest.mark.parametrize("facts", [{"x": float("nan")}, {"x": None}, {"x": np.float32(1)}])
def test_facts_that_would_not_read_back_are_refused(pool: ModelPool, facts: dict[str, Any]) -> None:
    with pytest.raises(ModelPoolError, match="facts of main:0:1 do not read back"):
        pool.publish(main(1), weights(), parent=None, facts=facts)
    assert pool.entries() == []


def test_tags_move_and_are_resolved(pool: ModelPool) -> None:
    publish(pool, main(1))
    pool.publish(main(2), weights(2.0), parent=main(1), tags=("best", "a/b"), facts={})
    publish(pool, main(1, incarnation=1), 3.0)
    assert pool.resolve("main@best") == main(2)
    assert pool.resolve("main@a/b") == main(2)
    pool.tag("best", main(1))
    assert ModelPool(pool.folder).resolve("main@best") == main(1)
    assert pool.resolve("main") == pool.resolve("main@latest") == main(1, incarnation=1)
    assert pool.resolve("main:0:2") == main(2)


def test_what_cannot_be_resolved_is_answered_with_the_nearest(pool: ModelPool) -> None:
    with pytest.raises(UnknownModel, match="no models of player 'main'"):
        pool.resolve("main")
    publish(pool, main(1))
    pool.tag("best", main(1))
    for text, message in {
        "main@bst": "player 'main' has no tag 'bst'; did you mean 'best'",
        "mian": "no models of player 'mian'.*did you mean 'main'",
        "main:0:2": "no model main:0:2.*did you mean 'main:0:1'",
    }.items():
        with pytest.raises(UnknownModel, match=message):
            pool.resolve(text)
    with pytest.raises(UnknownModel, match="main:0:9"):
        pool.tag("best", main(9))
    with pytest.raises(UnknownModel, match="main:0:9"):
        pool.pin(main(9))
    with pytest.raises(ModelPoolError, match="'latest' always means the newest"):
        pool.tag("latest", main(1))


def test_only_garbage_is_collected(pool: ModelPool) -> None:
    for step in range(8):
        publish(pool, main(step), float(step), parent=main(step - 1) if step else None)
    pool.publish(main(2), weights(9.0), parent=None, variant="average", facts={})
    publish(pool, ModelId("rival", 0, 0))
    pool.tag("best", main(1))
    pool.pin(main(3))
    assert pool.collect_garbage(keep_last=2, referenced={main(4)}) == [main(0), main(2), main(5)]
    assert {entry.model for entry in pool.entries()} == {
        main(1), main(3), main(4), main(6), main(7), ModelId("rival", 0, 0)
    }  # fmt: skip
    assert not list(pool.folder.glob("*/0-2*.safetensors"))
    with pytest.raises(UnknownModel, match=r"weights of main:0:2 .* were deleted"):
        pool.fetch(main(2))
    assert pool.lineage(main(7)) == tuple(main(step) for step in range(7, -1, -1))
    pool.unpin(main(3))
    pool.unpin(main(3))
    assert pool.collect_garbage(keep_last=2, referenced={main(4)}) == [main(3)]
    assert pool.collect_garbage(keep_last=0) == [main(4), main(6), main(7), ModelId("rival", 0, 0)]
    with pytest.raises(ValueError, match="keep_last is -1"):
        pool.collect_garbage(keep_last=-1)


def test_models_are_discarded_unless_something_holds_them(pool: ModelPool) -> None:
    for step in range(5):
        publish(pool, main(step), float(step), parent=main(step - 1) if step else None)
    pool.publish(main(0), weights(9.0), parent=None, variant="average", facts={})
    pool.tag("best", main(1))
    pool.pin(main(2))
    [half] = pool.folder.glob("*/0-3.json")
    half.rename(half.with_suffix(".gone"))  # as a removal that was killed leaves it
    everything = [main(step) for step in (0, 1, 2, 3, 7)]
    assert pool.discard(everything) == [main(1), main(2)]
    left = {path.name for path in pool.folder.glob("*/*.safetensors")}
    assert left == {"0-1.safetensors", "0-2.safetensors", "0-4.safetensors"}
    assert pool.lineage(main(4)) == tuple(main(step) for step in range(4, -1, -1))
    pool.unpin(main(2))
    pool.tag("best", main(4))
    assert pool.discard(everything) == []
    assert [str(entry.model) for entry in pool.entries()] == ["main:0:4"]


def test_a_collected_id_keeps_its_meaning(pool: ModelPool) -> None:
    publish(pool, main(1))
    assert pool.collect_garbage(keep_last=0) == [main(1)]
    with pytest.raises(ModelConflict):
        publish(pool, main(1), value=2.0)
    publish(pool, main(1))
    assert pool.fetch(main(1))["layer.weight"][0, 0] == 1.0
    assert pool.collect_garbage(keep_last=0) == [main(1)]


def test_what_died_half_way_is_neither_seen_nor_kept(pool: ModelPool) -> None:
    publish(pool, main(1))
    orphan = weights_file(pool, main(2))
    orphan.write_bytes(weights_file(pool, main(1)).read_bytes())  # killed before its sidecar
    aside = orphan.with_name(f".{'0' * 16}.tmp")
    aside.write_bytes(b"half")
    assert [entry.model for entry in pool.entries()] == [main(1)]
    with pytest.raises(UnknownModel):
        pool.fetch(main(2))
    publish(pool, main(2), value=7.0)
    assert pool.fetch(main(2))["layer.weight"][0, 0] == 7.0
    weights_file(pool, main(3)).write_bytes(b"")
    assert pool.collect_garbage(keep_last=5) == []
    assert not aside.exists()
    assert not weights_file(pool, main(3)).exists()


@pytest.mark.parametrize("player", HOSTILE_NAMES)
def test_hostile_player_names_stay_in_the_folder(tmp_path: Path, player: str) -> None:
    pool = ModelPool(tmp_path / "inner" / "models")
    model = ModelId(player, 0, 1)
    pool.publish(model, weights(), parent=None, tags=("../../x",), facts={})
    pool.pin(model)
    assert pool.fetch(model).keys() == weights().keys()
    assert pool.resolve(f"{player}@../../x") == pool.resolve(f"{player}@latest") == model
    assert os.listdir(tmp_path) == ["inner"]
    assert os.listdir(tmp_path / "inner") == ["models"]
    assert [folder.is_dir() for folder in pool.folder.iterdir()] == [True]


@pytest.mark.parametrize("player", REFUSED_NAMES)
def test_deceiving_player_names_are_refused(pool: ModelPool, player: str) -> None:
    with pytest.raises(BadName, match="player"):
        publish(pool, ModelId(player, 0, 1))
    assert not pool.folder.exists()


def test_negative_numbers_are_refused(pool: ModelPool) -> None:
    with pytest.raises(ModelPoolError, match="negative"):
        publish(pool, main(-1))
