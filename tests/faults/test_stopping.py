"""How a person ends a run: once for an end in good order, twice for an end at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from invariants import check_nothing_left, check_run
from processes import descendants, wait_until, workers
from tiny_runs import create, kill, started, tiny

from ludus.runtime.assemble import CHECKPOINT
from ludus.store.run_folder import RunFolder
from ludus.workers.config import Supervision


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_ends_a_run_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "run"
    create(path, tiny(budget=10**9))
    with started(path) as training:
        left = descendants(training.pid)
        for pid in (*left, training.pid):  # as a terminal or a service manager sends it: to all of them
            kill(pid, number)
        out, err = training.communicate(timeout=60)
    assert training.returncode == 130, err
    assert json.loads(out.splitlines()[-1])["end"] == "interrupted"
    check_nothing_left(path, left)
    league = check_run(path)
    checkpoint = RunFolder.open(path).checkpoints(CHECKPOINT).load_latest()
    assert checkpoint is not None
    assert league.standings["main"].decisions == checkpoint.step


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Here the learner stands still, so that the end in good order takes its time."""
    path = tmp_path / "run"
    create(path, tiny(budget=10**9, supervision=Supervision(stop_within_s=300, hung_after_s=300)))
    with started(path) as training:
        left = descendants(training.pid)
        [learner] = workers(training.pid, "learner")
        kill(learner, signal.SIGSTOP)
        training.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            training.wait(2)
        training.send_signal(signal.SIGINT)
        _, err = training.communicate(timeout=60)
    assert training.returncode == 130
    assert "stopped at once, without saving" in err
    check_nothing_left(path, left)
    check_run(path, open_matches=True)


@pytest.mark.slow
def test_a_learner_that_hangs_does_not_keep_a_run_from_ending(tmp_path: Path) -> None:
    path = tmp_path / "run"
    create(path, tiny(budget=10**9, supervision=Supervision(stop_within_s=1, hung_after_s=300)))
    with started(path) as training:
        left = descendants(training.pid)
        [learner] = workers(training.pid, "learner")
        kill(learner, signal.SIGSTOP)
        training.send_signal(signal.SIGINT)
        _, err = training.communicate(timeout=30)
    assert training.returncode == 130, err
    check_nothing_left(path, left)
    check_run(path, open_matches=True)


def test_output_that_nobody_reads_ends_a_run_in_good_order(tmp_path: Path) -> None:
    """`ludus train --json | head`"""
    path = tmp_path / "run"
    create(path, tiny(runtime="serial", budget=10**9))
    program = [sys.executable, "-m", "ludus.cli.main", "train", "--run", str(path), "--resume", "--json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        assert training.stderr is not None
        training.stdout.readline()
        training.stdout.close()
        err = training.stderr.read()
        assert training.wait(60) == 130
    assert f"nobody reads the output any more: saved; ludus train --run {path} --resume goes on" in err
    wait_until(lambda: RunFolder.open(path).holder() is None, "the lock")
    assert RunFolder.open(path).checkpoints(CHECKPOINT).load_latest() is not None
