"""Signs of life, places of actors, and a run that learns nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from ludus.runtime import faults as supervisor
from ludus.runtime.faults import START_UP_S, Fault, FaultLog, Heartbeats, WorkerSlot, queued_s
from ludus.store.run_folder import read_metrics
from ludus.system.guard import Guard
from ludus.workers.config import Supervision
from ludus.workers.worker import LearningWatch, TrainingFailed


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(supervisor, "time", made)
    return made


def pass_time(clock: Clock, life: Heartbeats, seconds: float) -> None:
    """Time in which the controller looks every second."""
    for _ in range(int(seconds)):
        clock.now += 1.0
        life.look()


def test_a_silent_worker_is_hung_after_the_limit(clock: Clock) -> None:
    hearts = np.full(2, clock.now)
    life = Heartbeats(hearts, hung_after_s=10)
    pass_time(clock, life, 10)
    assert not life.is_hung(0)
    hearts[1] = clock.now
    pass_time(clock, life, 1)
    assert life.is_hung(0)
    assert not life.is_hung(1)


def test_nobody_is_hung_because_the_controller_slept(clock: Clock) -> None:
    life = Heartbeats(np.full(1, clock.now), hung_after_s=10)
    clock.now += 3_600
    life.look()
    assert not life.is_hung(0)
    pass_time(clock, life, 11)
    assert life.is_hung(0), "but they get no second chance"


def test_a_new_process_has_time_to_start(clock: Clock) -> None:
    life = Heartbeats(np.zeros(1), hung_after_s=10)
    life.started(0)
    pass_time(clock, life, START_UP_S)
    assert not life.is_hung(0)
    pass_time(clock, life, 1)
    assert life.is_hung(0)


def test_a_worker_that_waits_for_a_processor_is_not_hung(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = {7: 5.0, 8: 5.0}
    monkeypatch.setattr(supervisor, "queued_s", waited.__getitem__)
    life = Heartbeats(np.full(2, clock.now), hung_after_s=10)
    life.runs_as(0, 7)
    life.runs_as(1, 8)
    for _ in range(20):
        waited[7] += 0.9
        pass_time(clock, life, 1)
    assert not life.is_hung(0), "it had 2 of 20 seconds"
    assert life.is_hung(1)
    pass_time(clock, life, 9)
    assert life.is_hung(0), "it has had a processor for the last 9, and does not show life"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count it")
def test_the_kernel_says_how_long_a_process_has_waited_for_a_processor() -> None:
    here = min(os.sched_getaffinity(0))
    busy = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"], preexec_fn=lambda: os.sched_setaffinity(0, {here}))
        for _ in range(2)
    ]
    try:
        deadline = time.monotonic() + 60
        while min(queued_s(one.pid) for one in busy) < 0.2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert min(queued_s(one.pid) for one in busy) >= 0.2, "two share one processor"
    finally:
        for one in busy:
            one.kill()
            one.wait()
    assert queued_s(busy[0].pid) == 0.0, "it has ended"


def test_every_failure_doubles_the_wait(clock: Clock) -> None:
    place = WorkerSlot("actor-0", 0)
    waits = []
    for _ in range(3):
        place.failed(Supervision(back_off_s=0.5), decisions=7)
        waits.append(place.start_at - clock.now)
    assert waits == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "value"), [("hung_after_s", -1), ("hung_after_s", float("nan")), ("quarantine_after", 0)]
)
def test_impossible_limits_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Supervision(**{name: value})  # type: ignore[arg-type]


def test_only_refusals_in_a_row_end_a_run() -> None:
    watch = LearningWatch(3)

    def see(player: str, steps: int, skipped: int) -> None:
        watch.see({f"{player}/gradient_steps": steps, f"{player}/skipped": skipped, f"{player}/refused": 0})

    for steps in (0, 0, 4, 0, 0, 1):  # a step that was refused among others that were taken is no reason
        see("main", steps, skipped=5)
    for _ in range(9):  # an update without anything to train on is none either
        see("idle", 0, skipped=0)
    see("main", 0, skipped=6)
    see("main", 0, skipped=7)
    see("other", 4, skipped=0)  # what another player learns does not help
    with pytest.raises(TrainingFailed, match="3 updates in a row of main were refused"):
        see("main", 0, skipped=8)


def test_faults_are_rows_of_a_file(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "faults.jsonl")
    log.note(Fault("env_hang", "no sign of life"), "actor-3", "started again", pid=7, matches=[1, 2])
    log.close()
    [row], _ = read_metrics(tmp_path / "faults.jsonl")
    assert row.pop("time") == pytest.approx(time.time(), abs=60)
    assert row == {
        "worker": "actor-3",
        "class": "env_hang",
        "pid": 7,
        "matches": [1, 2],
        "reason": "no sign of life",
        "then": "started again",
    }
    assert log.counts == {"env_hang": 1}


def test_the_guard_ends_what_it_watches_and_nothing_else() -> None:
    sleepers = [subprocess.Popen(["sleep", "100"], start_new_session=True) for _ in range(3)]
    guard = Guard()
    for sleeper in sleepers:
        guard.watch(sleeper.pid)
    os.kill(guard.pid, signal.SIGKILL)  # another takes over
    time.sleep(0.1)
    guard.forget(sleepers[2].pid)
    guard.close()
    assert [sleeper.wait(10) for sleeper in sleepers[:2]] == [-signal.SIGKILL] * 2
    assert sleepers[2].poll() is None
    sleepers[2].kill()
    sleepers[2].wait()
