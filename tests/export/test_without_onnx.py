"""Where neither onnx nor onnxruntime is installed, exports and exported agents say what to install. Networks as JSON
need neither."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import Ludus

import ludus as front_door


@pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
def test_the_missing_library_is_named(
    library: str, ludus: Ludus, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnx", "onnxruntime"):  # one of them is missing, whatever is installed here
        monkeypatch.setitem(sys.modules, name, None if name == library else sys)  # type: ignore[arg-type]
    shown = ludus("export", str(trained), "main", "--to", "agent.onnx")
    assert shown.code == 2
    assert f"{library!r} is not installed; pip install" in shown.err
    assert "export]" in shown.err


def test_a_file_needs_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # type: ignore[arg-type]
    with pytest.raises(front_door.GameError, match="needs onnxruntime: pip install onnxruntime"):
        front_door.load_agent(tmp_path / "agent.onnx")


def test_networks_as_json_need_neither(
    ludus: Ludus, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    shown = ludus("export", str(trained), "main@best", "--to", "out/network.json")
    assert shown.code == 0
    assert "network:  out/network.json" in shown.out
    agent = json.loads((tmp_path / "out" / "network.json").read_text())
    assert (agent["format"], agent["game"], agent["network_of_seat"]) == (1, "kuhn", [0, 0])
    (network,) = agent["networks"]
    assert [(part["name"], part["shape"]) for part in network["parts"]] == [("information", [11])]
    assert network["head"]["name"] == "move"

    (tmp_path / "agent.onnx").write_bytes(b"")
    shown = ludus("export", str(trained), "main", "--to", "agent.json")
    assert "agent.json is the manifest of agent.onnx: choose another name" in shown.err
    shown = ludus("export", str(trained), "main", "--to", "network.json", "--logits")
    assert "--logits and --value are for .onnx files" in shown.err
