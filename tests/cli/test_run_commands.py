"""`ludus status`, `logs`, `pause`, `continue`, `stop` and `scale` as a person types them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import LUDUS, Ludus, settings

from ludus.cli.status import Tail
from ludus.store.run_control import RunStatus, WorkerStatus, read_status, write_status
from ludus.store.run_folder import RunFolder


@contextmanager
def training(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`ludus train` in a process of its own, from its first numbers on."""
    program = [*LUDUS, "train", *arguments, "--json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise AssertionError(process.communicate()[1])
            # Nobody must wait because nobody reads.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield process
        finally:
            process.kill()


def state_of(run: Ludus, path: str = "mine") -> str:
    code, out, _ = run("status", path, "--json")
    assert code == 0
    return str(json.loads(out)["state"])


def wait_for_state(run: Ludus, state: str) -> None:
    deadline = time.monotonic() + 60
    while (status := read_status(Path("mine/status.json"))) is None or status.state != state:
        assert time.monotonic() < deadline, f"it is not {state}"
        time.sleep(0.05)
    assert state_of(run) == state


def test_a_run_is_paused_goes_on_and_is_stopped(ludus: Ludus) -> None:
    with training("kuhn", "--run", "mine", *settings(budget="1e9")) as process:
        wait_for_state(ludus, "training")
        code, out, _ = ludus("pause", "mine")
        assert (code, "nobody plays or learns" in out) == (0, True)
        wait_for_state(ludus, "paused")
        code, out, _ = ludus("status", "mine")
        assert "paused" in out
        assert "decisions/s" in out
        assert str(process.pid) in out
        code, out, _ = ludus("pause", "mine", "--json")
        assert json.loads(out)["done"] == "it was paused already"
        assert ludus("continue", "mine")[0] == 0
        wait_for_state(ludus, "training")
        code, _, err = ludus("scale", "mine", "actors=2")
        assert (code, "one process" in err) == (2, True)
        code, out, _ = ludus("stop", "mine")
        assert (code, "ludus train --run mine --resume" in out) == (0, True)
        assert process.wait(10) == 130, "as Ctrl-C"
    assert state_of(ludus) == "stopped"
    for command in ("pause", "continue", "stop"):
        code, _, err = ludus(command, "mine")
        assert (code, "mine is not training" in err) == (1, True)


@pytest.mark.slow
def test_a_run_in_processes_is_looked_at_scaled_and_killed(ludus: Ludus) -> None:
    local = settings(runtime="local", budget="1e9")
    with training("kuhn", "--run", "mine", "--actors", "1", "--trial", "b", *local) as process:
        wait_for_state(ludus, "training")
        assert ludus("scale", "mine", "actors=2")[0] == 0
        deadline = time.monotonic() + 60
        while True:
            status = json.loads(ludus("status", "mine", "--json")[1])
            workers = {worker["name"]: worker for worker in status["workers"]}
            if workers.keys() == {"controller", "learner", "actor-0", "actor-1"} and status["bottleneck"]:
                break
            assert time.monotonic() < deadline, status
            time.sleep(0.2)
        assert status["trial"] == "b"
        assert workers["learner"]["memory"] > 10**7
        assert workers["actor-0"]["cores"] >= 0.0
        assert abs(sum(workers["actor-0"]["shares"].values()) - 1.0) < 0.01
        assert status["bottleneck"]["what"] in ("game", "inference", "buffer", "learner")
        assert "actor-0" in ludus("status", "mine")[1]
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert state_of(ludus) == "dead"
        code, out, _ = ludus("scale", "mine", "actors=3")
        assert (code, "not training now" in out) == (0, True)
    assert ludus("logs", "mine")[0] == 0


def test_the_time_limit_has_an_exit_code_of_its_own(ludus: Ludus) -> None:
    code, out, _ = ludus("train", "kuhn", "--trial", "first", *settings(budget="1e9", time_limit_h="3e-4"))
    assert code == 75
    assert "time limit reached after" in out
    assert "--resume" in out
    assert [path.name for path in Path("runs").iterdir()] == ["kuhn-first-001"]


@pytest.mark.parametrize(
    ("counts", "wrong"),
    [
        (["actors"], "actors=4"),
        (["actor=2"], "did you mean 'actors'?"),
        (["actors=-1"], "from 1 on"),
        (["actors=many"], "from 1 on"),
        (["actors=0"], "from 1 on"),
    ],
)
def test_bad_numbers_are_refused(ludus: Ludus, counts: list[str], wrong: str) -> None:
    RunFolder.create("mine", {"runtime": "local"}, seed=0, command=())
    code, _, err = ludus("scale", "mine", *counts)
    assert (code, wrong in err) == (2, True), err


def test_a_run_that_was_never_started_says_so(ludus: Ludus) -> None:
    RunFolder.create("mine", {}, seed=0, command=())
    assert state_of(ludus) == "never started"
    assert "no worker" in ludus("logs", "mine")[2]
    code, _, err = ludus("logs", "mine", "learner")
    assert (code, "learner" in err) == (1, True)


def test_what_a_dead_run_last_said_is_not_taken_for_now(ludus: Ludus) -> None:
    folder = RunFolder.create("mine", {}, seed=0, command=())
    worker = WorkerStatus(name="learner", state="working", pid=1, node=socket.gethostname(), started=0.0)
    status = RunStatus(
        time=time.time(),
        state="training",
        experiment="tiny",
        trial=None,
        runtime="local",
        node=socket.gethostname(),
        pid=os.getpid(),
        started=time.time(),
        time_limit_h=72.0,
        decisions=5,
        budget=10,
        decisions_per_s=1.0,
        lag={"main": 0.5},
        episodes=2,
        matches=1,
        restarts=0,
        workers=(worker,),
    )
    write_status(folder.status, status)
    code, out, _ = ludus("status", "mine")
    assert code == 0
    assert "dead" in out
    assert "learner" not in out
    assert "ludus train --run mine --resume" in out
    with folder.lock():
        code, out, _ = ludus("status", "mine")
        assert "lag main 0.5" in out
        assert "learner" in out
    assert ludus("status", "mine", "--follow")[0] == 0, "it ends with the run"


# --- logs ---


def stamped(second: int, worker: str, text: str) -> str:
    return f"2026-01-01T00:00:{second:02d}.000Z mine {worker}: {text}\n"


@pytest.fixture
def logs(ludus: Ludus) -> Path:
    """A run with a full log file of an actor, its newest one, and one of the learner."""
    folder = RunFolder.create("mine", {}, seed=0, command=()).logs
    (folder / "actor-0.log.1").write_text(stamped(1, "actor-0", "b") + stamped(1, "actor-0", "a"))
    (folder / "actor-0.log").write_text(stamped(4, "actor-0", "d"))
    (folder / "learner.log").write_text(stamped(3, "learner", "c"))
    return folder


def test_logs_come_by_time_and_what_was_printed_together_stays(ludus: Ludus, logs: Path) -> None:
    code, out, _ = ludus("logs", "mine")
    assert code == 0
    assert [line[-1] for line in out.splitlines()] == ["b", "a", "c", "d"]
    assert [line[-1] for line in ludus("logs", "mine", "--lines", "2")[1].splitlines()] == ["c", "d"]
    assert [line[-1] for line in ludus("logs", "mine", "actor-0")[1].splitlines()] == ["b", "a", "d"]
    code, _, err = ludus("logs", "mine", "leaner")
    assert (code, "learner" in err) == (1, True)


def test_following_goes_on_in_the_next_file(logs: Path) -> None:
    newest = logs / "actor-0.log"
    tail = Tail(newest)
    assert list(tail.new_lines()) == []
    with newest.open("a") as file:
        file.write("one\n")
    assert list(tail.new_lines()) == ["one"]
    with newest.open("a") as file:
        file.write("two\n")
    newest.rename(logs / "actor-0.log.1")
    newest.write_text("three\n")
    assert list(tail.new_lines()) == ["two", "three"]


def test_following_ends_with_the_run(ludus: Ludus, logs: Path) -> None:
    code, out, _ = ludus("logs", "mine", "--follow", "--lines", "1")
    assert (code, out) == (0, stamped(4, "actor-0", "d"))
