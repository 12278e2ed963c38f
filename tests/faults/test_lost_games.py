"""Games in processes of their own that crash or hang under a league: a match ends, the actor goes on."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from invariants import check_nothing_left, check_run
from processes import descendants
from test_actor_faults import voids
from tiny_runs import bad_game, faults_of, local, pennies, tiny

from ludus.config import encode
from ludus.games.isolation.isolated import Isolation
from ludus.games.seat_rows import GameError
from ludus.league.rules import EvaluationConfig
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_control import read_status
from ludus.store.run_folder import RunFolder
from ludus.workers.config import Supervision
from ludus.workers.worker import TrainingFailed


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


@pytest.mark.parametrize(
    ("game", "reason"),
    [
        ("EndlessPennies", "game: an episode has not ended after 4 steps, the max_length of the game"),
        ("EmptyPennies", "every episode ended at reset, before any seat could decide"),
        ("UnscoredPennies", "a score is not finite"),
    ],
)
def test_a_game_that_finishes_no_match_ends_the_run_by_name(game: str, reason: str, tmp_path: Path) -> None:
    """It would train on nothing or for ever, and fill the ledger."""
    path = tmp_path / "run"
    described = tiny(pennies(game), runtime="serial", budget=10**9, supervision=Supervision(most_void=10))
    with closing(serial_training(described, RunFolder.create(path, encode(described), seed=0, command=()))) as training:
        with pytest.raises(TrainingFailed, match=rf"10 matches in a row are void .*{reason}.*ludus check"):
            training.run()
        assert training.league.matches.finished == 0
    assert {void.reason for void in voids(path)} == {reason}
    assert len(voids(path)) == 10


@pytest.mark.slow
def test_actors_whose_game_never_ends_end_the_run_by_name(tmp_path: Path) -> None:
    described = tiny(pennies("EndlessPennies"), budget=10**9, supervision=Supervision(most_void=10))
    with local(tmp_path / "run", described) as training:
        with pytest.raises(TrainingFailed, match=r"10 matches in a row are void .*max_length"):
            training.run()
        check_run(tmp_path / "run", live=training.league)


def test_a_run_whose_matches_are_all_void_is_not_finished(tmp_path: Path) -> None:
    """It has learned all that its budget allows, and knows of nobody how strong he is."""
    path = tmp_path / "run"
    described = tiny(pennies("UnscoredPennies"), runtime="serial", budget=1_000)
    with closing(serial_training(described, RunFolder.create(path, encode(described), seed=0, command=()))) as training:
        with pytest.raises(
            TrainingFailed, match=r"(?s)no match was finished:.*matches are void.*a score is not finite"
        ):
            training.run()
        assert training.learner.decisions >= 1_000
    status = read_status(path / "status.json")
    assert status is not None
    assert status.state == "failed"


def test_a_bot_that_raises_is_named(tmp_path: Path) -> None:
    described = tiny(pennies(), runtime="serial", evaluation=EvaluationConfig(opponents=("clumsy",), episodes=32))
    folder = RunFolder.create(tmp_path / "run", encode(described), seed=0, command=())
    with (
        closing(serial_training(described, folder)) as training,
        pytest.raises(GameError, match="bot 'clumsy' raised KeyError: 'opening'"),
    ):
        training.run()
