"""Weights & Biases, by its own library: offline, and against a host that is not there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from ludus.observe.metrics import RunMetrics
from ludus.observe.sinks import WandB, run_id, settings
from ludus.store.run_folder import RunFolder

pytest.importorskip("wandb")

KEY = "0123456789abcdef0123456789abcdef01234567"
EXPERIMENT = {
    "name": "made_up",
    "learner": {"batch_size": 7},
    "models": {"backend": "redis://someone:secret@127.0.0.1/0"},
}
FIXED = {"WANDB_ERROR_REPORTING": "false"}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine where nobody has set up anything."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name, value in FIXED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / ".netrc"))
    (tmp_path / "home").mkdir()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", EXPERIMENT, seed=0, command=("ludus", "train"))


def record(folder: RunFolder, output: WandB, *steps: int) -> list[str]:
    """Rows of these steps, through the process that hands them on; gives what the user was told."""
    told: list[str] = []
    with closing(RunMetrics(folder, (output,), told.append)) as recorder:
        for step in steps:
            recorder.append({"decisions": step, "main/entropy": step / 8})
    return told


READ = """
import json, struct, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2 as messages

BLOCK, FULL, LAST = 32768, 1, 4

def records(content):
    # A log as LevelDB writes it, after a header of 7 bytes; a record may be in pieces.
    at, pieces = 7, b""
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        pieces += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            yield pieces
            pieces = b""

found = {"history": [], "run": None, "config": {}}
for file in sorted(Path(sys.argv[1]).glob("offline-run-*/*.wandb")):
    for data in records(file.read_bytes()):
        record = messages.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found["history"].append(
                {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            )
        elif kind == "run":
            run = record.run
            found["run"] = [run.project, run.run_group, run.display_name, list(run.tags), run.run_id]
            found["config"] |= {item.key: item.value_json for item in run.config.update}
print(json.dumps(found))
"""


def kept(folder: RunFolder) -> dict[str, object]:
    """What the library has written down."""
    read = [sys.executable, "-W", "ignore", "-c", READ, str(folder.metrics / "wandb")]
    said = subprocess.run(read, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, object] = json.loads(said.stdout)
    return found


def test_a_run_is_kept_offline_with_its_names_and_settings(folder: RunFolder) -> None:
    output = WandB(project="games", group="night", name="first", tags=("a", "b"), mode="offline")
    assert record(folder, output, 8, 16) == []
    found = kept(folder)
    assert found["run"] == ["games", "night", "first", ["a", "b"], run_id(folder)]
    history = [(row["decisions"], row["main/entropy"]) for row in found["history"]]  # type: ignore[attr-defined]
    assert history == [("8", "1"), ("16", "2")]
    assert found["config"]["learner.batch_size"] == "7"  # type: ignore[index]


@pytest.mark.slow
def test_the_environment_fills_in_what_the_experiment_leaves_out(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "from_outside")
    monkeypatch.setenv("WANDB_TAGS", "x,y")
    assert record(folder, WandB(), 8) == []
    assert kept(folder)["run"] == ["from_outside", "made_up", "run", ["x", "y"], run_id(folder)]


@pytest.mark.slow
def test_without_a_key_it_is_offline_and_says_so_once(folder: RunFolder) -> None:
    [line] = record(folder, WandB(), 8, 16)
    assert "WandB is offline (no key: set WANDB_API_KEY, or run `wandb login`)" in line
    assert f"`wandb sync {folder.metrics}" in line
    assert len(kept(folder)["history"]) == 2  # type: ignore[arg-type]


def test_a_host_that_is_not_there_means_offline_and_the_key_stays_secret(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    [line] = record(folder, WandB(), 8)
    assert f"WandB is offline (127.0.0.1:{port} cannot be reached (Connection refused))" in line
    assert len(kept(folder)["history"]) == 1  # type: ignore[arg-type]
    written = [path for path in folder.path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(written) > 5
    for path in written:
        assert KEY.encode() not in path.read_bytes(), f"{path} holds the key"
        if "wandb" in path.parts:
            assert b"someone:secret" not in path.read_bytes(), f"{path} holds a password"


@pytest.mark.slow
def test_a_host_that_answers_nothing_means_offline_within_seconds(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and is silent: the library's own patience would be minutes."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        held: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    held.append(silent.accept()[0])
            except OSError:
                return

        thread = threading.Thread(target=accept)
        thread.start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        told = record(folder, WandB(), 8)
        silent.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for connection in held:
            connection.close()
    assert len(told) == 1
    assert "WandB is offline" in told[0]
    assert KEY not in told[0]
    assert len(kept(folder)["history"]) == 1  # type: ignore[arg-type]


def test_passwords_in_addresses_are_left_out_of_the_settings() -> None:
    assert dict(settings(EXPERIMENT))["models.backend"] == "redis://***@127.0.0.1/0"


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="mode must be one of online, offline, got 'never'"):
        WandB(mode="never")  # type: ignore[arg-type]
