"""Row 8: kill -9 of the policy worker in the middle of a batch, and of an actor in the middle of a request.

Who asked is answered by the next policy worker, nobody twice, and the rows of a batch are of one version: in
the synchronous schedule every decision must have been made by exactly the weights that it trains, so the
divergence between the two, measured before anything is learned from them, must read 0.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from invariants import check_nothing_left, check_run
from tiny_runs import BATCH, QUICK, faults_of, kill, learned, local, once, tiny

from ludus.data.files import load_address
from ludus.data.records import MatchVoid
from ludus.experiment import Experiment
from ludus.local.training import LocalTraining
from ludus.runtime.serial import FINISHED
from ludus.store.metrics_file import read_metrics
from ludus.store.run_folder import RunFolder
from ludus.workers.trained_player import LearnerConfig

MIDDLEWARE = """
import os
import signal
from pathlib import Path

HERE = Path(__file__).parent


def killing(worker, step):
    kills = len(list(HERE.glob("kill-*")))
    if worker.name == {name!r} and kills < {kills}:
        killing.steps = getattr(killing, "steps", 0) + 1
        if killing.steps == 15:
            owner, method = {targets}[kills]
            setattr(owner, method, then_die(getattr(owner, method)))
    return step()


def then_die(function):
    def called(*arguments):
        function(*arguments)
        (HERE / f"kill-{{os.getpid()}}").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    return called
"""
INSTANTS = {
    "policy-worker": (
        "(worker._inference, 'act_all')",  # decided, and nothing written
        "(worker._areas[0], 'done')",  # one of two actors answered
    ),
    "actor-1": (
        "(worker._inference._area, 'ask')",  # a request that nobody waits for any more
        "(worker._inference._area.kinds[0], 'write')",  # rows written, and not asked
    ),
}
"""Who is killed, and after which call of which object: the first time, the second time."""


def asking() -> Experiment:
    """Two versions of the weights differ so much that it shows."""
    described = tiny(budget=8 * BATCH)
    return replace(
        described,
        actor=replace(described.actor, inference="worker", inference_delay_ms=5.0, inference_device="cpu"),
        learner=LearnerConfig(
            batch_size=BATCH,
            minibatch_size=100 * BATCH,
            epochs=1,
            buffer_size=8 * BATCH,
            learning_rate=0.01,
            device="cpu",
        ),
    )


def check_versions(path: Path) -> None:
    """I6: every decision was made with the weights that are written beside it."""
    records, _ = read_metrics(path / "metrics" / "train.jsonl")
    assert len(records) >= 6
    assert max(record["main/lag"] for record in records) == 0.0
    assert max(abs(record["main/kl"]) for record in records) < 1e-8


def pids(training: LocalTraining) -> list[int]:
    worker = training.policy_worker_pid
    return [training.learner_pid, *training.actor_pids, *([] if worker is None else [worker])]


@pytest.mark.parametrize("victim", INSTANTS)
def test_row_08_nothing_is_lost_mixed_or_answered_twice(tmp_path: Path, victim: str) -> None:
    targets = INSTANTS[victim]
    kills = len(targets)
    file = tmp_path / "killing.py"
    file.write_text(MIDDLEWARE.format(name=victim, kills=kills, targets=f"({', '.join(targets)})"))
    described = replace(asking(), middleware=(load_address(f"{file}:killing"),))
    path = tmp_path / "run"
    with local(path, described, num_actors=2) as training:
        assert training.run() == FINISHED
        assert training.restarts == kills
        league, started = training.league, pids(training)
    assert len(list(tmp_path.glob("kill-*"))) == kills
    check_nothing_left(path, started)
    check_run(path, live=league)
    check_versions(path)
    for fault in faults_of(path):
        assert (fault["class"], fault["worker"], fault["then"]) == ("killed", victim, "started again")
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        voids = [event.reason for _, event in ledger.replay() if isinstance(event, MatchVoid)]
    caused = [reason for reason in voids if reason != "stopped"]
    assert bool(caused) == (victim == "actor-1"), "a policy worker holds no match, so none is lost with it"


def test_row_08_a_policy_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    def stop(training: LocalTraining) -> None:
        assert training.policy_worker_pid is not None
        kill(training.policy_worker_pid, signal.SIGSTOP)

    path = tmp_path / "run"
    with local(path, replace(asking(), supervision=QUICK)) as training:
        assert training.run(once(learned(4_000), stop)) == FINISHED
        assert training.restarts == 1
        league = training.league
    [fault] = faults_of(path)
    assert (fault["class"], fault["worker"]) == ("worker_hang", "policy-worker")
    check_run(path, live=league)
    check_versions(path)
