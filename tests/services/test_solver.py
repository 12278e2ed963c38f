"""Calls: answered, batched, balanced, refused by name, and made again only where that is right."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import wait_until
from service_hosting import Hosted, Sums, hosted

from ludus import Solver, service
from ludus.services.connection import InstanceConnection
from ludus.services.endpoints import (
    CallFailed,
    CallRefused,
    InstanceLost,
    NoInstance,
    ServiceError,
    TimeLimit,
    UnknownService,
)
from ludus.services.registry import FileRegistry, Instance, MemoryRegistry, here


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture(params=["unix", "tcp"])
def sums(request: pytest.FixtureRequest, registry: MemoryRegistry, tmp_path: Path) -> Iterator[Sums]:
    made = Sums()
    with hosted(made, registry, folder=tmp_path if request.param == "unix" else None):
        yield made


@pytest.fixture
def solver(registry: MemoryRegistry, sums: Sums) -> Iterator[Solver]:
    with Solver("sums", registry=registry, time_limit_s=10.0) as made:
        yield made


def test_a_call_is_answered(solver: Solver) -> None:
    assert solver.solve("add", 2, right=3) == 5
    array = np.random.default_rng(0).normal(size=(300, 400))
    arrived = solver.solve("echo", {"weights": [array, "text"]})
    np.testing.assert_array_equal(arrived["weights"][0], array)
    assert arrived["weights"][1] == "text"


def test_many_calls_under_way_at_once(solver: Solver) -> None:
    futures = [solver.submit("add", number, number) for number in range(500)]
    assert [future.result(10) for future in futures] == [2 * number for number in range(500)]


def test_threads_share_a_solver(solver: Solver) -> None:
    answers: list[list[float]] = []

    def ask(offset: int) -> None:
        answers.append([solver.solve("add", offset, number) for number in range(100)])

    threads = [threading.Thread(target=ask, args=(1000 * one,)) for one in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [[1000 * one + number for number in range(100)] for one in range(4)]
    assert sorted(answers) == expected


def test_async_code_waits_for_several_at_once(solver: Solver) -> None:
    async def both() -> list[float]:
        return await asyncio.gather(*(solver.asolve("sleeps", 0.05) for _ in range(5)))

    assert asyncio.run(both()) == [0.05] * 5


def test_a_method_without_reply_is_done_and_not_waited_for(solver: Solver, capfd: pytest.CaptureFixture[str]) -> None:
    assert solver.solve("tell", "raise") is None
    assert solver.submit("tell", 2).result(0) is None
    assert solver.solve("heard") == ["raise", 2]
    assert "nobody hears this" in capfd.readouterr().err


def test_calls_are_gathered(solver: Solver, sums: Sums) -> None:
    futures = [solver.submit("double", number) for number in range(10)]
    assert [future.result(10) for future in futures] == [2 * number for number in range(10)]
    assert sum(sums.batches) == 10
    assert max(sums.batches) == 4


def test_one_request_of_a_batch_can_fail_alone(solver: Solver) -> None:
    futures = [solver.submit("double", number) for number in (1, -1)]
    assert futures[0].result(10) == 2
    with pytest.raises(CallFailed, match="ValueError: -1 is negative"):
        futures[1].result(10)


def test_a_batch_with_too_few_answers_fails(solver: Solver) -> None:
    with pytest.raises(CallFailed, match="forgets_one got 1 requests and returned 0 answers"):
        solver.solve("forgets_one", 1.0)
    with pytest.raises(CallFailed, match="double is batched and takes one argument a call, got 2"):
        solver.solve("double", 1.0, 2.0)


def test_errors_of_the_method_come_with_name_and_text(solver: Solver) -> None:
    with pytest.raises(CallFailed, match=r"fails on sums-0 failed: KeyError: 'gold' \(.*line") as caught:
        solver.solve("fails", "gold")
    assert (caught.value.kind, caught.value.text) == ("KeyError", "'gold'")
    with pytest.raises(CallFailed, match=r"TypeError: .* cannot be sent to a service"):
        solver.solve("unsendable")
    with pytest.raises(CallFailed, match=r"TypeError: .*add.* missing 1 required"):
        solver.solve("add")
    with pytest.raises(TypeError, match="a object cannot be sent"):
        solver.solve("echo", object())
    assert solver.solve("add", 1) == 2  # and the service goes on


def test_unknown_names_offer_the_nearest(solver: Solver, registry: MemoryRegistry) -> None:
    with pytest.raises(UnknownService, match="'sums' has no method 'ad'; did you mean 'add'"):
        solver.solve("ad", 1)
    with pytest.raises(UnknownService, match="no service 'sumz'; did you mean 'sums'"):
        Solver("sumz", registry=registry).solve("add", 1)


def test_a_time_limit(registry: MemoryRegistry, sums: Sums) -> None:
    with Solver("sums", registry=registry, time_limit_s=0.1) as solver:
        with pytest.raises(TimeLimit, match=r"sleeps on sums-0 has not answered within 0\.1 s"):
            solver.solve("sleeps", 5.0)
        with pytest.raises(TimeLimit, match="sleeps on sums-0"):
            asyncio.run(solver.asolve("sleeps", 5.0))
        assert solver.solve("add", 1) == 2


def test_a_declared_service_is_waited_for(registry: MemoryRegistry) -> None:
    registry.declare("sums")
    with pytest.raises(NoInstance, match=r"no instance of service 'sums' within 0\.2 s: none has been"):
        Solver("sums", registry=registry, time_limit_s=0.2).solve("add", 1)
    with Solver("sums", registry=registry) as solver:
        answers: list[float] = []
        waiting = threading.Thread(target=lambda: answers.append(solver.solve("add", 1)))
        waiting.start()
        with hosted(Sums(), registry):
            waiting.join(10)
    assert answers == [2]


def test_without_a_registry_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUDUS_SERVICES", raising=False)
    with pytest.raises(ServiceError, match="`ludus train` starts those that the experiment lists"):
        Solver("sums").solve("add", 1)
    monkeypatch.setenv("LUDUS_SERVICES", "carrier pigeon")
    with pytest.raises(ServiceError, match="'carrier pigeon' is no registry"):
        Solver("sums").solve("add", 1)


def test_a_process_may_have_one_run_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Solver("sums", time_limit_s=10.0) as solver:
        for run in ("one", "two"):
            registry = FileRegistry(tmp_path / run)
            monkeypatch.setenv("LUDUS_SERVICES", f"file:{registry.folder}")
            with hosted(Sums(), registry, folder=tmp_path):
                assert solver.solve("add", 1) == 2


# --- several instances ---


class Numbered:
    """Waits for its release in a thread of the server, so that calls pile up."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun: list[str] = []
        self.release = asyncio.Event()

    @service()
    async def number_of(self) -> int:
        return self.number

    @service()
    async def once(self, what: str) -> int:
        self.begun.append(what)
        await self.release.wait()
        return self.number

    @service(idempotent=True)
    async def again(self, what: str) -> int:
        self.begun.append(what)
        await self.release.wait()
        return self.number


@pytest.fixture
def two(registry: MemoryRegistry) -> Iterator[list[tuple[Hosted, Numbered]]]:
    made = [Numbered(number) for number in range(2)]
    with hosted(made[0], registry, name="n-0") as first, hosted(made[1], registry, name="n-1") as second:
        yield [(first, made[0]), (second, made[1])]


def test_calls_are_shared_out(registry: MemoryRegistry, two: list[tuple[Hosted, Numbered]]) -> None:
    with Solver("n", registry=registry) as solver:
        counted = Counter(solver.solve("number_of") for _ in range(20))
        assert counted == {0: 10, 1: 10}
        assert solver.instances == ["n-0", "n-1"]


def test_who_is_busy_gets_less(registry: MemoryRegistry, two: list[tuple[Hosted, Numbered]]) -> None:
    with Solver("n", registry=registry) as solver:
        held = [solver.submit("once", "held") for _ in range(1)]
        wait_until(lambda: any(made.begun for _, made in two))
        busy = next(made.number for _, made in two if made.begun)
        # The other one answers at once, so it never has more to do.
        assert Counter(solver.solve("number_of") for _ in range(10)) == {1 - busy: 10}
        hosts = {made.number: host for host, made in two}
        hosts[busy].loop.call_soon_threadsafe(two[busy][1].release.set)
        assert [future.result(10) for future in held] == [busy]


def test_when_one_dies_only_what_may_be_done_twice_is_done_again(
    registry: MemoryRegistry, two: list[tuple[Hosted, Numbered]]
) -> None:
    with Solver("n", registry=registry) as solver:
        assert {solver.solve("number_of") for _ in range(4)} == {0, 1}
        once = [solver.submit("once", f"once {number}") for number in range(4)]
        again = [solver.submit("again", f"again {number}") for number in range(4)]
        wait_until(lambda: sum(len(made.begun) for _, made in two) == 8)
        (first, dead), (second, alive) = two
        registry.withdraw(first.instance)
        first.die()
        wait_until(lambda: sum(what.startswith("again") for what in alive.begun) == 4)
        second.loop.call_soon_threadsafe(alive.release.set)
        assert [future.result(10) for future in again] == [1] * 4
        problems = [future.exception(10) for future in once]
        assert sum(isinstance(problem, InstanceLost) for problem in problems) == sum(
            what.startswith("once") for what in dead.begun
        )
        assert "n-0 was lost during once" in str(next(one for one in problems if one))
        assert sum(what.startswith("once") for what in dead.begun + alive.begun) == 4  # none of them twice
        assert solver.solve("number_of") == 1


def test_one_that_cannot_be_reached_is_passed_over(registry: MemoryRegistry, tmp_path: Path) -> None:
    gone = Instance(service="sums", name="sums-9", address=f"unix:{tmp_path}/gone", host=here(), pid=1)
    registry.announce(gone)
    elsewhere = Instance(service="sums", name="sums-8", address="unix:/there", host="elsewhere", pid=1)
    registry.announce(elsewhere)
    with Solver("sums", registry=registry, time_limit_s=0.3) as solver:
        with pytest.raises(NoInstance, match="elsewhere, which is another machine"):
            solver.solve("add", 1)
        with hosted(Sums(), registry):
            assert solver.solve("add", 1) == 2


def test_one_that_joins_later_is_used(registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.services.solver.LOOK_EVERY_S", 0.0)
    with Solver("n", registry=registry) as solver, hosted(Numbered(0), registry, name="n-0"):
        assert solver.solve("number_of") == 0
        with hosted(Numbered(1), registry, name="n-1"):
            wait_until(lambda: {solver.solve("number_of") for _ in range(4)} == {0, 1})


@contextmanager
def hung(registry: MemoryRegistry, name: str) -> Iterator[Instance]:
    """One that takes connections, as the kernel does for a process that has stopped, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"tcp:127.0.0.1:{listening.getsockname()[1]}"
        instance = Instance(service=name.rpartition("-")[0], name=name, address=address, host=here(), pid=1)
        registry.announce(instance)
        yield instance
        registry.withdraw(instance)


def test_one_that_hangs_holds_up_nobody(registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.services.connection.CONNECT_S", 60.0)  # longer than any call may take
    monkeypatch.setattr("ludus.services.solver.LOOK_EVERY_S", 0.0)
    with (
        Solver("n", registry=registry, time_limit_s=20.0) as solver,
        hung(registry, "n-0"),
        hosted(Numbered(1), registry, name="n-1"),
    ):
        assert [solver.solve("number_of") for _ in range(50)] == [1] * 50
        assert solver.instances == ["n-1"]
        with hosted(Numbered(2), registry, name="n-2"):  # nor does it hold up who joins meanwhile
            wait_until(lambda: {solver.solve("number_of") for _ in range(4)} == {1, 2})


def test_one_that_has_hung_is_left_alone_from_then_on(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.services.connection.CONNECT_S", 0.4)
    monkeypatch.setattr("ludus.services.solver.AVOID_S", 0.2)
    began = time.monotonic()
    with hung(registry, "n-0") as instance, Solver("n", registry=registry, time_limit_s=0.1) as solver:
        assert solver.try_submit("number_of") is None
        wait_until(lambda: instance.address in solver._avoid)
        assert solver._avoid[instance.address] >= began + 0.4 + 0.2, "not from when it was tried"
        with pytest.raises(NoInstance, match=r"n-0 has not answered hello within 0\.4 s"):
            solver.solve("number_of")


def test_one_that_dies_right_after_its_welcome_is_connected_to_again(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[InstanceConnection] = []

    class Brief(InstanceConnection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)
            if len(made) == 1:  # its thread has told the solver of the end before that knows the link
                self.close()

    monkeypatch.setattr("ludus.services.solver.InstanceConnection", Brief)
    with hosted(Sums(), registry), Solver("sums", registry=registry, time_limit_s=10.0) as solver:
        assert solver.solve("add", 1) == 2
        assert len(made) == 2


def test_a_connection_that_fails_in_any_way_is_tried_again(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([RuntimeError("can't start new thread")])

    class Failing(InstanceConnection):
        def __init__(self, *arguments: Any) -> None:
            for failure in failures:
                raise failure
            super().__init__(*arguments)

    monkeypatch.setattr("ludus.services.solver.InstanceConnection", Failing)
    with hosted(Sums(), registry), Solver("sums", registry=registry, time_limit_s=10.0) as solver:
        assert solver.solve("add", 1) == 2
        assert solver._problem == "can't start new thread"


@pytest.mark.parametrize("name", ["look for sums", "connect to sums-0"])
def test_a_thread_that_cannot_be_started_is_tried_again(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    failures = iter([RuntimeError("can't start new thread")])

    class Scarce(threading.Thread):
        def start(self) -> None:
            for failure in failures if self.name == name else ():
                raise failure
            super().start()

    with hosted(Sums(), registry), Solver("sums", registry=registry, time_limit_s=10.0) as solver:
        monkeypatch.setattr(threading, "Thread", Scarce)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            solver.solve("add", 1)
        assert solver.solve("add", 1) == 2


def test_what_cannot_be_sent_at_once_is_not_waited_for(registry: MemoryRegistry) -> None:
    registry.declare("sums")
    with Solver("sums", registry=registry, time_limit_s=0.2) as solver:
        assert solver.try_submit("add", 1) is None
        with hosted(Sums(), registry) as host:
            wait_until(lambda: solver.try_submit("add", 1) is not None)
            answer = solver.try_submit("add", 2)
            assert answer is not None
            assert answer.result(10) == 3
            registry.withdraw(host.instance)
            host.die()
            wait_until(lambda: solver.try_submit("add", 1) is None)
    with Solver("sumz", registry=registry) as solver, pytest.raises(UnknownService, match="did you mean"):
        wait_until(lambda: solver.try_submit("add", 1) is not None)


# --- who is let in ---


def test_a_token_is_asked_for_on_tcp(registry: MemoryRegistry) -> None:
    with hosted(Sums(), registry, token="secret"):
        for token, said in (("", "no token"), ("guess", "a wrong token")):
            registry.token = token
            with pytest.raises(CallRefused, match=f"wants a token, and the caller has {said}"):
                Solver("sums", registry=registry).solve("add", 1)
        registry.token = "secret"
        with Solver("sums", registry=registry) as known:
            assert known.solve("add", 1) == 2


def test_a_closed_solver_says_so(registry: MemoryRegistry, tmp_path: Path) -> None:
    with hosted(Sums(), registry, folder=tmp_path):
        solver = Solver("sums", registry=registry)
        assert solver.solve("add", 1) == 2
        solver.close()
        with pytest.raises(NoInstance, match="is closed"):
            solver.solve("add", 1)
