"""Whole runs with more learning players than places: all of them train, and nothing waits for ever."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from ludus.config import encode
from ludus.data.records import LearnerProgress
from ludus.experiment import Experiment
from ludus.games.builtin.rock_paper_scissors import RockPaperScissors
from ludus.league.league import League
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.processes import local_training
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig

PLAYERS, TURN, BATCH = 4, 600, 128


def experiment(
    capacity: int, *, reset_probability: float = 0.0, schedule: Literal["sync", "async"] = "sync"
) -> Experiment:
    role = Role(
        count=PLAYERS, matchmaking=SelfPlay(), promotion=BySteps(every=500), reset_probability=reset_probability
    )
    return Experiment(
        name="turns",
        game=RockPaperScissors(),
        budget=9_600,
        model=ActorCritic(hidden=(8,)),
        actor=ActorConfig(num_tables=16, matches=2, episodes_per_table=4, unroll_length=4),
        learner=LearnerConfig(
            batch_size=BATCH, minibatch_size=BATCH, epochs=1, buffer_size=8 * BATCH, schedule=schedule
        ),
        league=LeagueRules(roles={"main": role}, bots=("rock",), capacity=capacity, turn=TURN),
        evaluation=EvaluationConfig(opponents=("rock",), past=0, episodes=8),
        checkpoint_every=4_000,
    )


def new_folder(path: Path, described: Experiment) -> RunFolder:
    return RunFolder.create(path, encode(described), seed=0, command=())


def assert_fair(league: League, slack: int) -> None:
    trained = [standing.decisions for standing in league.standings.values()]
    assert len(trained) == PLAYERS
    assert max(trained) - min(trained) <= TURN + slack
    snapshots = {league.players[name].parent for name in league.candidates.frozen()}
    assert snapshots == set(league.standings), "everyone has its first snapshot"


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("reset_probability", [0.0, 0.5])
def test_in_one_process(tmp_path: Path, capacity: int, reset_probability: float) -> None:
    described = experiment(capacity, reset_probability=reset_probability)
    with closing(serial_training(described, new_folder(tmp_path / "run", described))) as training:
        assert training.run() == FINISHED
        assert_fair(training.league, slack=4 * BATCH)
        digest, active = training.league.state_digest(), training.league.active
    with closing(serial_training(described, RunFolder.open(tmp_path / "run"))) as resumed:
        assert resumed.league.active == active
        assert resumed.league.state_digest() == digest


def test_after_a_crash_turns_go_on(tmp_path: Path) -> None:
    """The learners go on from a checkpoint, where they had trained less."""
    described = experiment(1)
    folder = new_folder(tmp_path / "run", described)

    class CrashError(Exception):
        pass

    def crash(training: object) -> None:
        if isinstance(training.workers, SerialWorkers) and training.learner.decisions > 7_000:
            raise CrashError

    with closing(serial_training(described, folder)) as training, pytest.raises(CrashError):
        training.run(crash)
    before = training.league.active
    with closing(serial_training(described, RunFolder.open(tmp_path / "run"))) as resumed:
        assert resumed.league.active == before
        assert resumed.run() == FINISHED
        assert_fair(resumed.league, slack=2 * TURN)  # what was lost is trained again


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "actors"), [("sync", 2), ("async", 3)])
def test_in_several_processes(tmp_path: Path, schedule: Literal["sync", "async"], actors: int) -> None:
    described = experiment(1, schedule=schedule)
    folder = new_folder(tmp_path / "run", described)
    with folder.lock(), closing(local_training(described, folder, actors)) as training:
        assert training.run() == FINISHED
        assert_fair(training.league, slack=12 * BATCH)
    with folder.ledger(read_only=True) as ledger:
        reports = [event for _, event in ledger.replay() if isinstance(event, LearnerProgress)]
    assert {report.player for report in reports if report.decisions} == {f"main_{i}" for i in range(PLAYERS)}
