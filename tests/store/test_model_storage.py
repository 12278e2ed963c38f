"""Which places for models can be named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.store.model_storage import ModelStorage
from ludus.store.run_folder import RunFolder


@pytest.mark.parametrize("backend", ["reddis://h:1", "", "Files", "http://h:1", "redis://h:1/0#mine"])
def test_what_is_no_place_is_refused(backend: str) -> None:
    with pytest.raises(ValueError, match="backend"):
        ModelStorage(backend=backend)


def test_every_run_has_a_name_of_its_own(tmp_path: Path) -> None:
    storage = ModelStorage(backend="redis://127.0.0.1:6379/0")
    first, second = (
        RunFolder.create(tmp_path / place / "kuhn-001", {}, seed=0, command=()) for place in ("here", "there")
    )
    assert storage.address(first).startswith("redis://127.0.0.1:6379/0#kuhn-001-")
    assert storage.address(first) == storage.address(RunFolder.open(first.path))
    assert storage.address(first) != storage.address(second)
    assert ModelStorage().address(first) == "service:models"
    mirror = tmp_path / "node"  # as a node of a cluster has it
    mirror.mkdir()
    (mirror / "run.json").write_bytes((first.path / "run.json").read_bytes())
    (mirror / "models").symlink_to(first.path / "models")
    assert storage.address(RunFolder.open(mirror)) == storage.address(first)
    assert type(ModelStorage().open(first)) is type(first.models)
