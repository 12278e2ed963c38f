"""kill -9 of the buffer worker at every stage of its work, and one that hangs.

It holds nothing: trajectories lie in slots, what is asked and what is done in shared memory. So no match is
lost with it, nothing is dropped, and nothing is trained on that was not recomputed first.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from invariants import check_nothing_left, check_run
from tiny_runs import BATCH, LOCAL, QUICK, RAY, faults_of, kill, learned, local, once, tiny

from ludus.data.files import load_address
from ludus.data.records import MatchVoid
from ludus.experiment import Experiment
from ludus.local.training import LocalTraining
from ludus.runtime.serial import FINISHED
from ludus.runtime.supervision import Supervision, TrainingFailed
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
    if worker.name == "buffer-worker" and kills < 3 and worker.done > 20:
        owner, method = (
            (worker._pools[0], "stack"),  # copied
            (worker, "_newest"),  # weights taken, nothing written
            (worker, "_wake"),  # all written, and nobody told
        )[kills]
        if not hasattr(killing, "planted"):
            killing.planted = True
            setattr(owner, method, then_die(getattr(owner, method)))
    return step()


def then_die(function):
    def called(*arguments):
        function(*arguments)
        (HERE / f"kill-{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    return called
"""
FAILING = """
def failing(worker, step):
    if worker.name == "buffer-worker":
        raise RuntimeError("no luck today")
    return step()
"""


def recomputing(runtime: str = "local") -> Experiment:
    """Two versions of the weights differ so much that it shows."""
    return replace(
        tiny(budget=12 * BATCH),
        runtime=runtime,
        learner=LearnerConfig(
            batch_size=BATCH,
            minibatch_size=100 * BATCH,
            epochs=1,
            buffer_size=8 * BATCH,
            learning_rate=0.01,
            device="cpu",
            recompute=("advantages",),
            buffer_worker=True,
        ),
    )


def check_updates(path: Path) -> None:
    """Whoever dies: all that was trained on is of lag 0, and nothing that was played is missing but what had
    to be: the decisions of seats that wait for others at a hand-over, which older weights chose."""
    records, _ = read_metrics(path / "metrics" / "train.jsonl")
    assert len(records) >= 10
    for record in records:
        assert record["main/lag"] == record["main/recompute_lag"] == 0.0
        assert record["main/dropped"] == record["main/refused"] == 0
        assert abs(record["main/kl"]) < 1e-8
    assert records[-1]["main/stale"] < 0.1 * records[-1]["decisions"]


def voids_of(path: Path) -> list[str]:
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        voids = [event.reason for _, event in ledger.replay() if isinstance(event, MatchVoid)]
    return [reason for reason in voids if reason != "stopped"]


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_nothing_is_lost_with_a_buffer_worker(tmp_path: Path, runtime: str) -> None:
    file = tmp_path / "killing.py"
    file.write_text(MIDDLEWARE)
    described = replace(recomputing(runtime), middleware=(load_address(f"{file}:killing"),))
    path = tmp_path / "run"
    with local(path, described, num_actors=1) as training:
        assert training.run() == FINISHED
        assert training.restarts == 3
        league = training.league
        worker = training.buffer_worker_pid
        started = [training.learner_pid, *training.actor_pids, *([] if worker is None else [worker])]
    if runtime == "local":
        assert len(list(tmp_path.glob("kill-*"))) == 3
        check_nothing_left(path, started)
    check_run(path, live=league)
    check_updates(path)
    assert [(fault["class"], fault["worker"], fault["then"]) for fault in faults_of(path)] == [
        ("killed", "buffer-worker", "started again")
    ] * 3
    assert voids_of(path) == []


@pytest.mark.slow
def test_one_that_hangs_is_replaced(tmp_path: Path) -> None:
    def stop(training: LocalTraining) -> None:
        assert training.buffer_worker_pid is not None
        kill(training.buffer_worker_pid, signal.SIGSTOP)

    path = tmp_path / "run"
    with local(path, replace(recomputing(), supervision=QUICK)) as training:
        assert training.run(once(learned(4_000), stop)) == FINISHED
        assert training.restarts == 1
        league = training.league
    [fault] = faults_of(path)
    assert (fault["class"], fault["worker"]) == ("worker_hang", "buffer-worker")
    check_run(path, live=league)
    check_updates(path)
    assert voids_of(path) == []


@pytest.mark.slow
def test_an_actor_that_dies_takes_its_requests_with_it(tmp_path: Path) -> None:
    def end(training: LocalTraining) -> None:
        kill(training.actor_pids[0], signal.SIGKILL)

    path = tmp_path / "run"
    with local(path, recomputing(), num_actors=2) as training:
        assert training.run(once(learned(4_000), end)) == FINISHED
        assert training.restarts == 1
        league = training.league
    check_run(path, live=league)
    check_updates(path)


@pytest.mark.slow
def test_one_that_always_fails_ends_the_run_with_its_error(tmp_path: Path) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FAILING)
    described = replace(
        recomputing(),
        middleware=(load_address(f"{file}:failing"),),
        supervision=Supervision(back_off_s=0.05, most_failures=2),
    )
    with (
        local(tmp_path / "run", described) as training,
        pytest.raises(TrainingFailed, match=r"the buffer worker failed 2 times .* no luck today"),
    ):
        training.run()
