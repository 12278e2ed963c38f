"""A run in processes rests, goes on, and ends at its time limit; nobody is taken for dead."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from test_scaling import check_ledger, endless, events_of, local

from ludus.data.records import Continue, MatchFinished, Order, Pause, Stop
from ludus.runtime.coordinator import Training
from ludus.runtime.processes import ProcessWorkers
from ludus.runtime.rounds import INTERRUPTED, TIME_LIMIT
from ludus.store.run_control import Asked, RunStatus, read_status
from ludus.store.run_folder import read_metrics
from ludus.workers.config import Supervision

HUNG_AFTER_S = 2.0


@pytest.mark.slow
def test_a_pause_is_no_hang_and_loses_nothing(tmp_path: Path) -> None:
    """Paused for longer than a worker may be silent; then on; then stopped."""
    path = tmp_path / "run"
    asked: list[Asked] = []
    paused: list[RunStatus] = []
    finished: list[int] = []

    def ask(training: Training, order: Order) -> None:
        asked.append(Asked(training.folder.requests, order))

    def num_finished() -> int:
        return sum(isinstance(event, MatchFinished) for event in events_of(path))

    def watch(training: Training) -> None:
        assert isinstance(training.workers, ProcessWorkers)
        status = read_status(path / "status.json")
        if not asked and training.numbers()["matches"] >= 4:
            ask(training, Pause())
        elif len(asked) == 1 and status is not None and status.state == "paused":
            if not paused or paused[-1].time != status.time:
                paused.append(status)
                finished.append(num_finished())
            if status.time - paused[0].time > 2 * HUNG_AFTER_S:
                ask(training, Continue())
        elif len(asked) == 2 and training.numbers()["matches"] >= finished[-1] + 4:
            ask(training, Stop())

    rules = Supervision(hung_after_s=HUNG_AFTER_S)
    with local(path, endless(supervision=rules), 1) as training:
        pids = [*training.workers.actor_pids, training.workers.learner_pid]
        assert training.run(watch) == INTERRUPTED
        assert [*training.workers.actor_pids, training.workers.learner_pid] == pids
    assert not read_metrics(path / "metrics" / "faults.jsonl")[0]
    # A step that had begun may end, and the one hand-over that was on its way may be learned from.
    assert paused[1].decisions == paused[-1].decisions
    assert finished[1] == finished[-1]
    assert set(check_ledger(path)) == {"stopped"}
    assert {worker.name for worker in paused[0].workers} == {"learner", "actor-0"}


@pytest.mark.slow
def test_the_time_limit_ends_it_and_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with local(path, replace(endless(), time_limit_h=20 / 3600), 1) as training:
        assert training.run() == TIME_LIMIT
        learned = training.numbers()["decisions"]
    void = check_ledger(path)
    assert set(void) == {TIME_LIMIT}
    with local(path, None, 1) as training:
        assert training.numbers()["decisions"] == learned > 0, "all that was learned is saved"
        assert training.run() == TIME_LIMIT
        assert training.numbers()["decisions"] > learned
    assert Counter(check_ledger(path).keys()) == Counter([TIME_LIMIT])
