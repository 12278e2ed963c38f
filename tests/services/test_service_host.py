"""Services in processes of their own: called, killed, hung, wrongly written, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus import Publisher, Solver, Subscriber, UserService
from ludus.services.endpoints import InstanceLost, NoInstance, ServiceError
from ludus.services.host import ServiceHost
from ludus.services.registry import FileRegistry

CODE = """
import os, subprocess, time
from ludus import service

class Clerk:
    def __init__(self, greeting="hello"):
        self.greeting = greeting
        print("a clerk begins")

    @service(idempotent=True)
    def pid(self):
        return os.getpid()

    @service(idempotent=True)
    def greet(self, name):
        return f"{self.greeting} {name}"

    @service()
    def sleep(self, seconds):
        time.sleep(seconds)
        return os.getpid()

    @service()
    def start_program(self):
        return subprocess.Popen(["sleep", "300"]).pid

    def _write(self, name):
        with open(self.greeting, "a") as book:
            book.write(name + "\\n")
        time.sleep(0.002)
        return name

    @service()
    def write(self, name):
        return self._write(name)

    @service(idempotent=True)
    def write_again(self, name):
        return self._write(name)

    @service(reply=False)
    def leave(self):
        raise SystemExit(3)

    def close(self):
        print("a clerk ends", flush=True)

class Broken:
    @service()
    def never(self):
        pass

    def __init__(self):
        raise RuntimeError("the model file is missing")

class Unmarked:
    pass
"""

Notes = list[tuple[str, str, str]]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "clerk.py").write_text(CODE)
    return tmp_path / "clerk.py"


@contextmanager
def hosting(
    tmp_path: Path, notes: Notes | None = None, **services: UserService
) -> Iterator[tuple[ServiceHost, FileRegistry]]:
    registry = FileRegistry(tmp_path / "services")
    (tmp_path / "logs").mkdir(exist_ok=True)
    with ServiceHost(
        services,
        registry,
        f"file:{tmp_path / 'services'}",
        folder=tmp_path / "services",
        logs=tmp_path / "logs",
        run="a run",
        note=lambda instance, what, then, pid: (notes if notes is not None else []).append((instance, what, then)),
    ) as host:
        yield host, registry


def wait_until(reached: Callable[[], Any], most_s: float = 30.0) -> None:
    until = time.monotonic() + most_s
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(") ")[2][0] != "Z"


def test_processes_are_called_replaced_and_ended(tmp_path: Path, code: Path) -> None:
    notes: Notes = []
    clerk = UserService(address=f"{code}:Clerk", count=2, options={"greeting": "good day"})
    with hosting(tmp_path, notes, clerk=clerk) as (host, registry):
        with Solver("clerk", registry=registry) as solver:
            assert solver.solve("greet", "you") == "good day you"
            before = {solver.solve("pid") for _ in range(6)}
            assert before == set(host.pids.values())
            program = solver.solve("start_program")
            os.kill(host.pids["clerk-0"], signal.SIGKILL)
            answers = {solver.solve("pid") for _ in range(20)}  # no call is lost meanwhile
            assert len(answers - before) <= 1
            wait_until(lambda: notes and host.pids.get("clerk-0") not in (None, *before))
            assert notes == [("clerk-0", "was ended by SIGKILL", "started again in 0.5 s")]

            def both_answer() -> bool:
                return len({solver.solve("pid") for _ in range(4)} & set(host.pids.values())) == 2

            wait_until(both_answer)
            solver.solve("leave")
            wait_until(lambda: len(notes) == 2)
            assert notes[1][1] == "ended with exit code 3"
            wait_until(both_answer)
        pids = list(host.pids.values())
    assert not any(is_alive(pid) for pid in (*pids, program))
    assert registry.find("clerk") == []
    assert list((tmp_path / "services" / "clerk").iterdir()) == []
    log = (tmp_path / "logs" / "service-clerk-1.log").read_text()
    assert "a run service-clerk-1: a clerk begins" in log
    assert "a clerk ends" in log


def test_a_service_that_hangs_is_replaced_and_its_call_lost(tmp_path: Path, code: Path) -> None:
    notes: Notes = []
    clerk = UserService(address=f"{code}:Clerk", hung_after_s=2.0, restart=False)
    with hosting(tmp_path, notes, clerk=clerk) as (host, registry):
        with Solver("clerk", registry=registry) as solver:
            assert solver.solve("sleep", 0.1) == host.pids["clerk-0"]
            with pytest.raises(InstanceLost, match=r"clerk-0 was lost during sleep .* done or not"):
                solver.solve("sleep", 300)
        wait_until(lambda: notes)
        assert notes == [("clerk-0", "has shown no sign of life for 2 s", "not started again (restart is off)")]
        assert host.pids == {}
        with pytest.raises(NoInstance):
            Solver("clerk", registry=registry, time_limit_s=0.1).solve("pid")


def test_a_process_that_has_stopped_holds_up_no_newcomer(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.services.connection.CONNECT_S", 60.0)  # longer than any call may take
    clerk = UserService(address=f"{code}:Clerk", count=2)
    topics = UserService(address="ludus.services.topics:Topics")
    with hosting(tmp_path, clerk=clerk, topics=topics) as (host, registry):
        stopped = [host.pids["clerk-0"], host.pids["topics-0"]]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        with Solver("clerk", registry=registry, time_limit_s=20.0) as solver:
            assert [solver.solve("pid") for _ in range(5)] == [host.pids["clerk-1"]] * 5
        with Subscriber("main", registry=registry) as actor:
            assert actor.newest() is None
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            with Publisher("main", registry=registry) as main:
                main.publish("one")
            assert actor.wait(30) == (1, "one")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Broken", {}, "does not start: RuntimeError: the model file is missing"),
        ("Unmarked", {}, "does not start: TypeError: Unmarked has no methods marked with @service"),
        ("Clark", {}, "does not start: AttributeError: .*did you mean 'Clerk'"),
        ("Clerk", {"greting": "x"}, "does not start: TypeError: .*greting"),
    ],
)
def test_what_does_not_start_says_why(
    tmp_path: Path, code: Path, name: str, options: dict[str, str], message: str
) -> None:
    broken = UserService(address=f"{code}:{name}", options=options)
    with pytest.raises(ServiceError, match=message) as caught, hosting(tmp_path, broken=broken):
        pass
    assert f"service 'broken' ({code}:{name})" in str(caught.value)
    assert (tmp_path / "logs" / "service-broken-0.log").exists()


@pytest.mark.slow
def test_whoever_is_killed_nothing_is_done_twice_that_may_not_be(tmp_path: Path, code: Path) -> None:
    book, rng = tmp_path / "book.txt", np.random.default_rng(0)
    clerk = UserService(address=f"{code}:Clerk", count=3, options={"greeting": str(book)})
    with hosting(tmp_path, clerk=clerk) as (host, registry), Solver("clerk", registry=registry) as solver:
        calls: dict[str, Future[Any]] = {}
        kills = 0
        while kills < 12:
            for number in range(40):
                method = ("write", "write_again")[number % 2]
                name = f"{method} {len(calls)}"
                calls[name] = solver.submit(method, name)
            time.sleep(float(rng.uniform(0.0, 0.1)))
            alive = list(host.pids.values())
            if len(alive) > 1:
                os.kill(alive[int(rng.integers(len(alive)))], signal.SIGKILL)
                kills += 1
        problems = {name: future.exception(60) for name, future in calls.items()}
    done = Counter(book.read_text().split("\n"))
    lost = [name for name, problem in problems.items() if problem is not None]
    assert lost, "no kill hit a call: the test shows nothing"
    assert all(isinstance(problems[name], InstanceLost) for name in lost)
    assert all(name.startswith("write ") for name in lost)
    for name in calls:
        if name.startswith("write_again"):
            assert done[name] >= 1
        else:
            assert done[name] <= 1
            assert done[name] == 1 or name in lost


HOST = """
import sys, time
from pathlib import Path
from test_service_host import hosting
from ludus import Solver, UserService

folder = Path(sys.argv[1])
with hosting(folder, clerk=UserService(address=str(folder / "clerk.py") + ":Clerk")) as (host, registry):
    with Solver("clerk", registry=registry) as solver:
        print(host.pids["clerk-0"], solver.solve("start_program"), flush=True)
        time.sleep(60)
"""


def test_nothing_is_left_when_the_host_is_killed(tmp_path: Path, code: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert host.stdout is not None
    pids = [int(word) for word in host.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    host.kill()
    host.wait()
    host.stdout.close()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_topics_outlive_the_process_that_keeps_them(tmp_path: Path) -> None:
    topics = UserService(address="ludus.services.topics:Topics")
    with (
        hosting(tmp_path, topics=topics) as (host, registry),
        Publisher("main", registry=registry) as main,
        Subscriber("main", registry=registry) as actor,
    ):
        assert main.publish("one") == 1
        assert actor.wait(30) == (1, "one")
        os.kill(host.pids["topics-0"], signal.SIGKILL)
        assert main.publish("two") == 2
        assert actor.wait(30) == (2, "two")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "no_colon.py"}, r"FILE\.py:CLASS .* got 'no_colon\.py'"),
        ({"address": "a.py:B", "count": 0}, "count must be at least 1, got 0"),
        ({"address": "a.py:B", "hung_after_s": 0.0}, "hung_after_s must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UserService(**settings)
