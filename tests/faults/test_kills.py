"""Five random kills; test_many_kills.py has many more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from killing import CONTROLLER, EVERYTHING, STOP, Killer
from tiny_runs import RAY, create, tiny


@pytest.mark.parametrize("runtime", ["local", RAY])
def test_random_kills_lose_nothing_and_leave_nothing(tmp_path: Path, runtime: str) -> None:
    create(tmp_path / "run", tiny(budget=10**9, runtime=runtime))
    killer = Killer(tmp_path / "run", seed=0)
    killer.live(["learner"], CONTROLLER)
    killer.live(["actor", "actor"], EVERYTHING)
    killer.live([], STOP)
    assert killer.kills.total() == 5
    program = [sys.executable, "-m", "ludus.cli.main", "league", str(tmp_path / "run"), "--json"]
    told = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    assert told["faults"] == {"killed": 3, "restart": 2}
    assert told["restarts"] == {"killed": 3}
    assert sum(told["voids"].values()) == told["matches"]["void"]
    assert told["latest"]["main/lag"] == 0.0
