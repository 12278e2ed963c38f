"""Games in processes of their own that crash or hang under a league: a match ends, the actor goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from invariants import check_nothing_left, check_run
from processes import descendants
from test_actor_faults import voids
from tiny_runs import bad_game, faults_of, local, tiny

from ludus.config import encode
from ludus.games.isolation.isolated import Isolation
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder


def test_a_serial_run_outlives_a_game_that_crashes(tmp_path: Path) -> None:
    game = bad_game(tmp_path / "marks", act="segfault", times=3, per_process=1)
    described = tiny(game, isolation=Isolation(processes=2), runtime="serial", budget=6_000)
    path = tmp_path / "run"
    training = serial_training(described, RunFolder.create(path, encode(described), seed=0, command=()))
    assert training.run() == FINISHED
    training.close()
    check_run(path, live=training.league, open_matches=True)
    lost = [void.reason for void in voids(path)]
    assert len(lost) >= 3
    assert all(reason.startswith("game: crashed: SIGSEGV (File") for reason in lost)


@pytest.mark.parametrize(
    ("act", "reason"), [("hang", "game: hung: no answer to step within 1 s"), ("exit", "game: crashed: exit code 0")]
)
def test_an_actor_outlives_its_game(act: str, reason: str, tmp_path: Path) -> None:
    game = bad_game(tmp_path / "marks", act=act, times=2, per_process=1)
    path = tmp_path / "run"
    with local(path, tiny(game, isolation=Isolation(step_seconds=1.0))) as training:
        assert training.run() == FINISHED
        pids = descendants(os.getpid())
        assert training.restarts == 0
        check_run(path, live=training.league)
    lost = [void for void in voids(path) if void.reason.startswith(reason)]
    assert len(lost) >= 4, "both matches of the actor, twice"
    faults = faults_of(path)
    assert [fault["class"] for fault in faults] == ["game_lost"] * len(lost)
    assert sorted(number for fault in faults for number in fault["matches"]) == sorted(void.match_id for void in lost)
    check_nothing_left(path, pids)
