"""Where neither onnx nor onnxruntime is installed, exports and exported agents say what to install."""

from __future__ import annotations

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
