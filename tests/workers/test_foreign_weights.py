"""Files that other programs wrote: weights come out, and nothing is executed."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ludus.runtime.imported_models import WHOLE_FILE, BadCheckpoint, read_foreign


class Marks:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    optimiser = torch.optim.Adam(network.parameters())
    network(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    return network, optimiser


def test_the_only_state_dict_is_found_among_the_rest(tmp_path: Path) -> None:
    network, optimiser = trained()
    path = tmp_path / "agent.pt"
    torch.save(
        {
            "epoch": 3,
            "best": torch.tensor(0.5),
            "model_state_dict": network.state_dict(),
            "optimizer_state_dict": optimiser.state_dict(),
        },
        path,
    )
    foreign = read_foreign(path)
    assert foreign.find_place() == "model_state_dict"
    arrays = foreign.arrays("model_state_dict")
    assert {name: array.shape for name, array in arrays.items()} == {
        "0.weight": (2, 3), "0.bias": (2,), "1.weight": (1, 2), "1.bias": (1,),
    }  # fmt: skip
    assert arrays["0.bias"].tolist() == network.state_dict()["0.bias"].tolist()


def test_several_places_have_to_be_chosen_from(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    state = trained()[0].state_dict()
    torch.save({"agent": {"live": state, "ema": state}}, path)
    foreign = read_foreign(path)
    with pytest.raises(BadCheckpoint, match=r"agent/live \(4 tensors\), agent/ema \(4 tensors\)"):
        foreign.find_place()
    assert "0.weight" in foreign.arrays("agent/ema")
    assert "live.0.weight" in foreign.arrays("agent")
    with pytest.raises(BadCheckpoint, match="did you mean agent/live"):
        foreign.arrays("agent/liv")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_bare_state_dict_in_either_format(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "agent.pt"
    torch.save(trained()[0].state_dict(), path, _use_new_zipfile_serialization=not legacy)
    assert read_foreign(path).find_place() == WHOLE_FILE


def test_safetensors_of_half_precision(tmp_path: Path) -> None:
    path = tmp_path / "agent.safetensors"
    safetensors.torch.save_file({"w": torch.tensor([0.5, 1.5], dtype=torch.bfloat16)}, path)
    array = read_foreign(path).arrays(WHOLE_FILE)["w"]
    assert array.dtype.name == "float32"
    assert array.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("how", ["torch", "legacy", "pickle", "pickle of old"])
def test_a_file_that_would_execute_is_refused_and_does_not(tmp_path: Path, how: str) -> None:
    mark, path = tmp_path / "mark", tmp_path / "evil.pt"
    content = {"w": torch.zeros(2), "x": Marks(mark)}
    if how.startswith("pickle"):
        path.write_bytes(pickle.dumps({"x": Marks(mark)}, protocol=2 if "old" in how else None))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(BadCheckpoint, match=r"evil.pt .*refused"):
        read_foreign(path)
    assert not mark.exists()
    if how == "torch":
        with pytest.raises(BadCheckpoint, match=r"posix.mkdir"):
            read_foreign(path)
        torch.load(path, weights_only=False)
        assert mark.exists(), "the file does harm where it is trusted"


def test_a_whole_module_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "module.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(BadCheckpoint, match=r"needs torch.nn.modules.linear.Linear .*state_dict\(\)"):
        read_foreign(path)


def test_a_tensor_that_claims_more_than_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.pt"
    torch.save({"w": torch.zeros(1).expand(10**12)}, path)
    with pytest.raises(BadCheckpoint, match="more than its file holds"):
        read_foreign(path).arrays(WHOLE_FILE)


def test_a_sparse_tensor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sparse.pt"
    torch.save({"w": torch.eye(2).to_sparse()}, path)
    with pytest.raises(BadCheckpoint, match="'w' is sparse"):
        read_foreign(path).arrays(WHOLE_FILE)


@pytest.mark.parametrize("content", [b"", b"\x80\x04junk", b"PK\x03\x04junk", b"GIF89a" * 40])
def test_junk_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "junk.pt"
    path.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"junk.pt"):
        read_foreign(path)


def test_a_list_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "list.pt"
    torch.save([torch.zeros(2)], path)
    with pytest.raises(BadCheckpoint, match="holds a list"):
        read_foreign(path)


def test_names_that_go_round_in_a_circle_are_refused(tmp_path: Path) -> None:
    tree: dict[str, Any] = {"weight": torch.zeros(2)}
    tree["model"] = tree
    torch.save(tree, tmp_path / "circle.pt")
    with pytest.raises(BadCheckpoint, match="names inside names without an end"):
        read_foreign(tmp_path / "circle.pt")


def repacked(path: Path, how: str) -> None:
    """The same archive, as a hostile one."""
    with zipfile.ZipFile(path) as archive:
        contents = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if how == "compressed" else zipfile.ZIP_STORED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
        archive.comment = b"more" if how == "commented" else b""
    if how == "overlapping":
        content = bytearray(path.read_bytes())
        first = content.index(b"PK\x01\x02")
        content[first + 24 : first + 28] = (2**31).to_bytes(4, "little")  # the size of the first entry, unpacked
        content[first + 20 : first + 24] = (2**31).to_bytes(4, "little")
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "said"),
    [("compressed", "compressed"), ("commented", "a comment"), ("overlapping", r"claims to hold 2,14\d,\d+,\d+ bytes")],
)
def test_an_archive_that_grows_when_it_is_unpacked_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, said: str
) -> None:
    """A 4.2 MB file took 4.35 GB before."""
    path = tmp_path / "bomb.pt"
    torch.save({"weight": torch.zeros(1000)}, path)
    repacked(path, how)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(BadCheckpoint, match=said):
        read_foreign(path)


def test_groups_that_share_groups_are_not_walked_for_ever(tmp_path: Path) -> None:
    group: dict[str, Any] = {"weight": torch.ones(1)}
    for _ in range(40):
        group = {"left": group, "right": group}
    torch.save(group, tmp_path / "many.pt")
    with pytest.raises(BadCheckpoint, match="without an end"):
        read_foreign(tmp_path / "many.pt")


def test_one_tensor_under_many_names_claims_no_more_than_its_file(tmp_path: Path) -> None:
    held = torch.zeros(1000)
    torch.save({f"weight_{number}": held for number in range(100)}, tmp_path / "many.pt")
    with pytest.raises(BadCheckpoint, match="and those before it claim more than"):
        read_foreign(tmp_path / "many.pt").arrays(WHOLE_FILE)
