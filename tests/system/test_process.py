"""Child processes end with everything that they have started, however their parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import is_gone, wait_until

from ludus.system.guard import NOT_FOUND, Guard
from ludus.system.process import PIPE, ChildProcess, GuardedProcess, OutputReader, WorkerProcess, control_pair

DAEMON = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1], sys.argv[1] + ".done")
time.sleep(300)
"""
"""Starts a program in a session of its own, which a signal to the group does not reach."""


def wait_until_gone(*pids: int) -> None:
    wait_until(lambda: all(map(is_gone, pids)), "the processes to end", 20)


def read_pids(path: Path) -> list[int]:
    done = Path(f"{path}.done")
    deadline = time.monotonic() + 20
    while not done.exists():
        assert time.monotonic() < deadline, "it has not started"
        time.sleep(0.02)
    return [int(pid) for pid in done.read_text().split()]


def test_a_guarded_program_ends_with_its_daemons(tmp_path: Path) -> None:
    process = GuardedProcess([sys.executable, "-c", DAEMON, str(tmp_path / "pids")])
    pids = read_pids(tmp_path / "pids")
    assert not any(map(is_gone, pids))
    assert process.end() == 256 - signal.SIGTERM
    assert all(map(is_gone, pids))


def test_a_guard_that_was_killed_is_replaced_before_anything_else_happens() -> None:
    from ludus.system.guard import Guard

    guard = Guard()
    child = ChildProcess(["sleep", "300"], guard=guard)
    killed = guard.pid
    os.kill(killed, signal.SIGKILL)
    wait_until_gone(killed)
    guard.look()
    assert guard.pid != killed
    guard.close()  # as when its owner dies
    assert child.wait_end(20) == -signal.SIGKILL


def test_exit_codes_and_signals_come_through_the_guard() -> None:
    assert GuardedProcess(["sh", "-c", "exit 7"]).wait_end(20) == 7
    assert GuardedProcess(["sh", "-c", "kill -9 $$"]).wait_end(20) == 256 - signal.SIGKILL
    assert GuardedProcess(["/no/such/program"]).wait_end(20) == NOT_FOUND


@pytest.mark.parametrize(
    "start",
    [
        "GuardedProcess([sys.executable, '-c', sys.argv[1], sys.argv[2]])",
        "subprocess.Popen(ended_with_this_process([sys.executable, '-c', sys.argv[1], sys.argv[2]]))",
        "ChildProcess([sys.executable, '-c', sys.argv[1], sys.argv[2]], with_parent=True)",
    ],
)
def test_a_program_ends_with_a_killed_parent(tmp_path: Path, start: str) -> None:
    code = (
        "import subprocess, sys, time\n"
        "from ludus.system.guard import ended_with_this_process\n"
        "from ludus.system.process import ChildProcess, GuardedProcess\n"
        f"process = {start}\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(300)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, DAEMON, str(tmp_path / "pids")], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        program, daemon = read_pids(tmp_path / "pids")
        parent.kill()
    if start.startswith("GuardedProcess"):
        wait_until_gone(pid, program, daemon)
    else:
        assert pid == program, "it became the program"
        wait_until_gone(program)
        os.kill(daemon, signal.SIGKILL)  # the kernel's promise is for the program alone


WORKER = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {DAEMON!r}, sys.argv[1]], start_new_session=True)
time.sleep(300)
"""
"""A worker whose game starts a daemon that starts another."""


@pytest.mark.parametrize("end", ["kill", "die", "guard"])
def test_daemons_end_with_the_worker_that_started_them(tmp_path: Path, end: str) -> None:
    guard, (control, child) = Guard(), control_pair()
    with child, (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-c", WORKER, str(tmp_path / "pids")]
        worker = WorkerProcess("actor-0", command, [], control, log.fileno(), guard)
    pids = read_pids(tmp_path / "pids")
    if end == "die":
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait_end(20)
        assert not any(map(is_gone, pids))
    if end == "guard":  # as after the death of the process that has started it
        guard.close()
        worker.wait_end(20)
        control.close()
    else:
        worker.kill()
        guard.close()
    wait_until_gone(worker.pid, *pids)


def test_a_program_that_does_not_heed_sigterm_is_killed_with_its_group() -> None:
    process = ChildProcess(["sh", "-c", "trap '' TERM; sleep 300 & echo $!; wait; sleep 300"], stdout=PIPE)
    sleeper = int(process.stdout.readline())
    assert process.end(within_s=0.2) == -signal.SIGKILL
    wait_until_gone(sleeper)
    process.stdout.close()


def test_a_program_that_heeds_sigterm_keeps_its_exit_code() -> None:
    process = ChildProcess(["sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done"], stdout=PIPE)
    assert process.stdout.readline() == b"ready\n"
    assert process.end(within_s=20) == 3
    process.stdout.close()


def test_output_is_read_to_its_end_and_the_last_words_are_kept() -> None:
    lines: list[bytes] = []
    process = ChildProcess(["sh", "-c", "echo one; echo; printf '\\377two\\n'; printf three"], stdout=PIPE)
    reader = OutputReader(process.stdout, lines.append, keep=2)
    reader.join(20)
    assert lines == [b"one\n", b"\n", b"\xfftwo\n", b"three"]
    assert list(reader.last_words) == ["\ufffdtwo", "three"]
    assert process.wait_end(20) == 0


def test_descriptors_are_closed_when_a_program_cannot_be_started(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        GuardedProcess(["true"], folder=str(tmp_path / "missing"))
    assert len(os.listdir("/proc/self/fd")) == before
