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
from killed_workers import check_versions, killing, kills_in, pids_of, telling_learner, voids_of
from tiny_runs import BATCH, LOCAL, QUICK, RAY, faults_of, kill, learned, local, once, tiny

from ludus.data.addresses import load_address
from ludus.experiment import Experiment
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.processes import ProcessWorkers
from ludus.runtime.rounds import FINISHED
from ludus.workers.config import Supervision
from ludus.workers.worker import TrainingFailed

INSTANTS = (
    "(worker._pools[0], 'stack')",  # copied
    "(worker, '_newest')",  # weights taken, nothing written
    "(worker, '_wake')",  # all written, and nobody told
)
FAILING = """
def failing(worker, step):
    if worker.name == "buffer-worker":
        raise RuntimeError("no luck today")
    return step()
"""


def recomputing(runtime: str = "local") -> Experiment:
    learner = telling_learner(recompute=("advantages",), buffer_worker=True)
    return replace(tiny(budget=12 * BATCH), runtime=runtime, learner=learner)


def check_updates(path: Path) -> None:
    """Whoever dies: all that was trained on is of lag 0, and nothing that was played is missing but what had
    to be: the decisions of seats that wait for others at a hand-over, which older weights chose."""
    records = check_versions(path, updates=10)
    for record in records:
        assert record["main/recompute_lag"] == 0.0
        assert record["main/dropped"] == record["main/refused"] == 0
    assert records[-1]["main/stale"] < 0.1 * records[-1]["decisions"]


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_nothing_is_lost_with_a_buffer_worker(tmp_path: Path, runtime: str) -> None:
    middleware = killing(tmp_path, "buffer-worker", INSTANTS, ready="worker.done > 20")
    described = replace(recomputing(runtime), middleware=(middleware,))
    path = tmp_path / "run"
    with local(path, described, num_actors=1) as training:
        assert training.run() == FINISHED
        assert training.restarts == 3
        league, started = training.league, pids_of(training)
    if runtime == "local":
        assert kills_in(tmp_path) == 3
        check_nothing_left(path, started)
    check_run(path, live=league)
    check_updates(path)
    assert [(fault["class"], fault["worker"], fault["then"]) for fault in faults_of(path)] == [
        ("killed", "buffer-worker", "started again")
    ] * 3
    assert voids_of(path) == []


@pytest.mark.slow
def test_one_that_hangs_is_replaced(tmp_path: Path) -> None:
    def stop(training: Coordinator[ProcessWorkers]) -> None:
        assert training.workers.buffer_worker_pid is not None
        kill(training.workers.buffer_worker_pid, signal.SIGSTOP)

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
    def end(training: Coordinator[ProcessWorkers]) -> None:
        kill(training.workers.actor_pids[0], signal.SIGKILL)

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
