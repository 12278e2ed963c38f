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
from killed_workers import check_versions, killing, kills_in, pids_of, telling_learner, voids_of
from tiny_runs import BATCH, QUICK, faults_of, kill, learned, local, once, tiny

from ludus.experiment import Experiment
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.processes import ProcessWorkers
from ludus.runtime.rounds import FINISHED

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
    described = tiny(budget=8 * BATCH)
    return replace(
        described,
        actor=replace(described.actor, inference="worker", inference_delay_ms=5.0, inference_device="cpu"),
        learner=telling_learner(),
    )


@pytest.mark.parametrize("victim", INSTANTS)
def test_row_08_nothing_is_lost_mixed_or_answered_twice(tmp_path: Path, victim: str) -> None:
    instants = INSTANTS[victim]
    middleware = killing(tmp_path, victim, instants, ready="killing.steps == 15")
    described = replace(asking(), middleware=(middleware,))
    path = tmp_path / "run"
    with local(path, described, num_actors=2) as training:
        assert training.run() == FINISHED
        assert training.restarts == len(instants)
        league, started = training.league, pids_of(training)
    assert kills_in(tmp_path) == len(instants)
    check_nothing_left(path, started)
    check_run(path, live=league)
    check_versions(path, updates=6)
    for fault in faults_of(path):
        assert (fault["class"], fault["worker"], fault["then"]) == ("killed", victim, "started again")
    assert bool(voids_of(path)) == (victim == "actor-1"), "a policy worker holds no match, so none is lost with it"


def test_row_08_a_policy_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    def stop(training: Coordinator[ProcessWorkers]) -> None:
        assert training.workers.policy_worker_pid is not None
        kill(training.workers.policy_worker_pid, signal.SIGSTOP)

    path = tmp_path / "run"
    with local(path, replace(asking(), supervision=QUICK)) as training:
        assert training.run(once(learned(4_000), stop)) == FINISHED
        assert training.restarts == 1
        league = training.league
    [fault] = faults_of(path)
    assert (fault["class"], fault["worker"]) == ("worker_hang", "policy-worker")
    check_run(path, live=league)
    check_versions(path, updates=6)
