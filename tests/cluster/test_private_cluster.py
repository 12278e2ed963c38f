"""`ludus train --runtime ray` without a cluster: a private one, that nobody else can reach and that ends with
the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import descendants, is_gone, wait_until, workers
from ray_runs import check_run, faults_of, listeners, needs_ray, ray_run
from small_runs import small

pytestmark = [pytest.mark.slow, needs_ray]
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def homes() -> set[Path]:
    return set(Path("/tmp").glob("ludus-ray-*"))


@pytest.mark.ci
def test_it_is_private_and_leaves_nothing(tmp_path: Path) -> None:
    path, before = tmp_path / "run", homes()
    with ray_run(path, small(budget=10**9)) as run:
        run.learned()
        left = descendants(run.process.pid)
        found = listeners([run.process.pid, *left])
        assert len(found) >= 5, "Ray's own processes listen"
        assert [one for one in found if not one.startswith(LOOPBACK)] == []
        [home] = homes() - before
        assert (home.stat().st_mode & 0o777, (home / "token").stat().st_mode & 0o777) == (0o700, 0o600)
        run.interrupt()
        assert run.end() == 130
        assert run.last["end"] == "interrupted"
    for pid in left:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} to end")  # type: ignore[misc]
    assert not homes() - before  # what an earlier run was killed in may be gone as well
    assert not list(Path("/tmp").glob("ludus-site-run-*"))
    check_run(path)


IMPORTED_BEFORE = """
import ray, sys
from ludus.runtime.ray.connection import join
leave = join(None, 1)
print("joined", flush=True)
sys.stdin.readline()
leave()
"""


@pytest.mark.ci
def test_it_is_private_also_where_ray_was_imported_before() -> None:
    """Ray has read then that it needs no token, and that it may listen everywhere."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTED_BEFORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        found = listeners([process.pid, *descendants(process.pid)])
        process.communicate("end\n", timeout=60)
    assert process.returncode == 0
    assert len(found) >= 5, "Ray's own processes listen"
    assert [one for one in found if not one.startswith(LOOPBACK)] == []


def test_what_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """The controller, with kill -9: whatever it started ends too. Two helpers of Ray's try for a minute to
    tell somebody what has happened."""
    path = tmp_path / "run"
    with ray_run(path, small(budget=10**9)) as run:
        run.learned()
        left = descendants(run.process.pid)
        run.process.kill()
    for pid in left:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} to end", 90)  # type: ignore[misc]
    check_run(path, open_matches=True)


@pytest.mark.ci
def test_an_actor_and_the_learner_that_are_killed_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with ray_run(path, small(budget=10**9)) as run:
        run.learned()
        for role, restarts in (("actor", 1), ("learner", 2)):
            [victim] = workers(run.process.pid, role)
            os.kill(victim, signal.SIGKILL)
            run.until(lambda numbers, restarts=restarts: numbers.get("restarts", 0) >= restarts)  # type: ignore[misc]
            run.learned()
        run.interrupt()
        assert run.end() == 130
    assert [(fault["class"], fault["worker"]) for fault in faults_of(path)] == [
        ("killed", "actor-0"),
        ("killed", "learner"),
    ]
    check_run(path)


def test_kuhn_reaches_its_bar(tmp_path: Path) -> None:
    """As on the other runtimes."""
    program = [sys.executable, "-m", "ludus.cli.main", "train", "kuhn", "--runtime", "ray", "--quiet"]
    shown = subprocess.run(
        [*program, "--run", str(tmp_path / "run")], capture_output=True, text=True, check=True, timeout=900
    )
    averaged = [line for line in shown.stdout.splitlines() if "averaged weights of main" in line]
    assert float(averaged[0].split()[0]) < 0.03
    check_run(tmp_path / "run")
