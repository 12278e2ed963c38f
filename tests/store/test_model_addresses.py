"""Where a model is, said in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ludus.data.records import ModelId, PlayerAdded
from ludus.store.downloads import DownloadError
from ludus.store.files import StoreError
from ludus.store.model_addresses import LocalFile, RunModel, WebFile, find_address
from ludus.store.run_folder import RunFolder

DIGEST = "ab" * 32


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """main:0:0 and main:0:4, tagged, of which the league has frozen the second with its average."""
    folder = RunFolder.create(tmp_path / "other", {"name": "x"}, seed=0)
    for step in (0, 4):
        for variant in ("live", "average"):
            weights = {"w": np.full(2, step + (variant == "average"), np.float32)}
            model = ModelId("main", 0, step)
            folder.models.publish(model, weights, parent=None, variant=variant, facts={})  # type: ignore[arg-type]
    folder.models.tag("best", ModelId("main", 0, 0))
    with folder.ledger() as ledger:
        ledger.append(
            [
                PlayerAdded(player="main", role="main"),
                PlayerAdded(player="main.1", role="frozen", model="main:0:4", weights="average"),
            ]
        )
    return folder


@pytest.mark.parametrize(
    ("name", "model", "variant"),
    [
        ("main", "main:0:4", "average"),
        ("main@latest", "main:0:4", "average"),
        ("main@best", "main:0:0", "live"),
        ("main@latest/live", "main:0:4", "live"),
        ("main@best/average", "main:0:0", "average"),
        ("main:0:0", "main:0:0", "live"),
        ("main.1", "main:0:4", "average"),
        ("main.1/live", "main:0:4", "live"),
    ],
)
def test_models_of_a_run(run: RunFolder, name: str, model: str, variant: str) -> None:
    found = find_address(f"{run.path}#{name}")
    assert isinstance(found, RunModel)
    assert (str(found.model), found.variant) == (model, variant)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("#mian", "no player 'mian' .*did you mean 'main'"),
        ("#main@bst", "no tag 'bst'; did you mean 'best'"),
        ("#main:0:9", "no model main:0:9"),
        ("#main/averge", "no weights 'averge'; there are live, average"),
        ("", "which model.*#PLAYER; there are main"),
    ],
)
def test_what_a_run_does_not_have_is_named(run: RunFolder, name: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        find_address(f"{run.path}{name}")


def test_files_and_urls_with_and_without_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    path.write_bytes(b"x")
    assert find_address(str(path)) == LocalFile(path=path)
    assert find_address(f"{path}#sha256={DIGEST}") == LocalFile(path=path, sha256=DIGEST)
    assert find_address("https://host/a.pt") == WebFile(url="https://host/a.pt")
    url = f"https://host/a.pt#sha256={DIGEST.upper()}"
    assert find_address(url) == WebFile(url="https://host/a.pt", sha256=DIGEST)
    with pytest.raises(StoreError, match="sha256=DIGITS"):
        find_address("https://host/a.pt#main")
    with pytest.raises(DownloadError, match="64 hex digits"):
        find_address("https://host/a.pt#sha256=abc")
    with pytest.raises(StoreError, match=f"did you mean {path}"):
        find_address(str(tmp_path / "agnt.pt"))


def test_names_of_an_index(tmp_path: Path) -> None:
    (tmp_path / "near.safetensors").write_bytes(b"x")
    index = tmp_path / "index.json"
    index.write_text(
        json.dumps(
            {
                "far": {"url": "https://host/far.pt", "sha256": DIGEST, "description": "strong"},
                "near": {"url": "near.safetensors", "sha256": f"sha256:{DIGEST}"},
            }
        )
    )
    assert find_address("far", index=str(index)) == WebFile(url="https://host/far.pt", sha256=DIGEST)
    near = LocalFile(path=tmp_path / "near.safetensors", sha256=DIGEST)
    assert find_address("near", index=str(index)) == near
    with pytest.raises(StoreError, match=r"no model 'fer' in index .*did you mean 'far'"):
        find_address("fer", index=str(index))
    with pytest.raises(StoreError, match="LUDUS_MODEL_INDEX"):
        find_address("far")
    index.write_text('{"far": {"url": "https://host/far.pt"}}')
    with pytest.raises(StoreError, match="missing required field `sha256`"):
        find_address("far", index=str(index))
