"""A training with its services, as commands start it."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import TINY, Ludus

from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.league.rules import EvaluationConfig
from ludus.runtime.rounds import FINISHED
from ludus.runtime.start import training_of
from ludus.store.run_control import WorkerStatus, read_status
from ludus.store.run_folder import RunFolder


def test_a_training_that_is_refused_leaves_no_run(
    ludus: Ludus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands without a run take the newest: one that never started would hide the one that did."""
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "ray", None)
        code, _, err = ludus("train", "kuhn", "--runtime", "ray", *TINY[2:])
        assert code == 2
        assert "Ray is not installed: take --runtime local" in " ".join(err.split())
    assert not Path("runs").exists()
    if find_spec("ray") is not None:
        monkeypatch.setenv("HOME", str(tmp_path))  # no token there
        for variable in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            monkeypatch.delenv(variable, raising=False)
        code, _, err = ludus("train", "kuhn", "--runtime", "ray", "--address", "127.0.0.1:1")
        assert code == 2
        assert "no token for the Ray cluster" in " ".join(err.split())
        assert list(Path("runs").iterdir()) == []


EXAMPLE = Path(__file__).parents[2] / "examples" / "my_service.py"


def test_services_are_in_the_status_of_a_run(tmp_path: Path) -> None:
    experiment = replace(
        load_address(f"{EXAMPLE}:experiment")(),
        budget=1_000,
        runtime="serial",
        evaluation=EvaluationConfig(opponents=("random",), episodes=16),
    )
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=0, command=())
    seen: list[WorkerStatus] = []

    def look(_: object) -> None:
        status = read_status(folder.status)
        if status is not None and not seen:
            seen.extend(status.workers)

    with folder.lock(), training_of(experiment, folder, num_actors=None, address=None) as training:
        assert training.run(look) == FINISHED
        for one in seen:
            assert one.pid is not None
            os.kill(one.pid, 0)  # it lives
    assert [one.name for one in seen] == ["service-adviser-0", "service-adviser-1"]
    for number, one in enumerate(seen):
        assert (one.state, one.restarts, one.node) == ("working", 0, socket.gethostname())
        assert one.address == f"unix:{tmp_path}/run/services/adviser-{number}.sock"
    ended = read_status(folder.status)
    assert ended is not None
    assert ended.workers == ()
