"""The script of `ludus launch slurm` in a real Slurm of two nodes: preempted, warned of its time limit,
cancelled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched_runs import PROGRAMS, check_ledger
from slurm_cluster import NODES, Slurm, slurm, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

LUDUS = f"{PROGRAMS}/ludus"
SETTINGS = ("--set", "checkpoint_every=10000", "--set", "evaluation.opponents=")
"""Small checkpoints, so that there is one soon."""


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Slurm]:
    with slurm() as found:
        yield found


def submit(scheduler: Slurm, run: Path, *options: str) -> str:
    return scheduler.call(LUDUS, "launch", "slurm", "kuhn", "--run", str(run), *SETTINGS, *options, "--submit")


def wait_checkpoint(scheduler: Slurm, run: Path, job: str) -> None:
    scheduler.wait_until(lambda: any(run.glob("checkpoints/*/*")), "a checkpoint", job, log_of(run, job))


def log_of(run: Path, job: str) -> Path:
    return run.with_name(f"{run.name}.slurm-{job}.log")


def check_preempted(scheduler: Slurm, run: Path, job: str) -> None:
    """The job gives way to another in the middle, is started again by Slurm, goes on and finishes."""
    log = log_of(run, job)
    wait_checkpoint(scheduler, run, job)
    urgent = scheduler.preempt()
    assert scheduler.wait_state(urgent, "COMPLETED")["ExitCode"] == "0:0"
    facts = scheduler.wait_state(job, "COMPLETED", log=log)
    assert (facts["Restarts"], facts["ExitCode"]) == ("1", "0:0")
    check_ledger(run, starts=2)
    said = log.read_text()
    assert said.index("interrupted after") < said.index("finished after")  # it was told in time to save


def test_a_job_that_is_preempted_goes_on_and_finishes(scheduler: Slurm, tmp_path: Path) -> None:
    run = tmp_path / "kuhn"
    check_preempted(scheduler, run, submit(scheduler, run, "--set", "budget=200000"))


def test_a_cluster_over_two_nodes_that_is_preempted_goes_on_and_finishes(scheduler: Slurm, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    run = tmp_path / "kuhn"
    job = submit(scheduler, run, "--nodes", "2", "--actors-per-node", "1", "--set", "budget=200000")
    check_preempted(scheduler, run, job)
    lines = (run / "metrics" / "nodes.jsonl").read_text().splitlines()
    joined = [note["node"].partition("/")[0] for note in map(json.loads, lines) if note["what"] == "joined"]
    assert min(joined.count(name) for name in NODES) >= 2  # both, at each start


def test_near_its_time_limit_a_job_saves_and_queues_up_again(scheduler: Slurm, tmp_path: Path) -> None:
    run = tmp_path / "kuhn"
    job = submit(scheduler, run, "--set", "budget=200000")
    wait_checkpoint(scheduler, run, job)
    scheduler.call("scancel", "--batch", "--signal=USR1", job)  # what Slurm sends two minutes before the limit
    facts = scheduler.wait_state(job, "COMPLETED", log=log_of(run, job))
    assert (facts["Restarts"], facts["ExitCode"]) == ("1", "0:0")
    check_ledger(run, starts=2)
    assert "interrupted after" in log_of(run, job).read_text()


def test_a_job_that_is_cancelled_stays_so(scheduler: Slurm, tmp_path: Path) -> None:
    run = tmp_path / "kuhn"
    job = submit(scheduler, run, "--set", "budget=100000000")
    wait_checkpoint(scheduler, run, job)
    scheduler.call("scancel", job)
    assert scheduler.wait_state(job, "CANCELLED")["Restarts"] == "0"
