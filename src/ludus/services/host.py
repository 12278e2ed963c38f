"""Starts the processes of services, and keeps them running from a thread of its own.

Of a thread, so that it works alike in every runtime: whatever the controller is busy with, a service that
dies is replaced. No process outlives the host, however that ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ludus.services.endpoints import ServiceError
from ludus.services.registry import FileRegistry, Registry
from ludus.services.resources import UserService, instance_name
from ludus.services.starter import FAILED_TO_START, STOP_WITHIN_S, LocalStarter, Running, Starter

START_UP_S = 120.0
"""How long a service may take from its start until it can be called."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceStatus:
    """How one process of a service is."""

    name: str
    state: str
    """working, starting, waiting (for a node that has what it needs), ended"""
    pid: int | None
    node: str
    """Empty until it is known."""
    started: float
    """Unix time."""
    restarts: int
    address: str
    """Where it can be called; empty: it cannot yet."""


@dataclass(eq=False)
class ProcessSlot:
    service: str
    name: str
    described: UserService
    starter: Starter
    running: Running | None = None
    started: float = 0.0
    started_time: float = 0.0
    """The same as Unix time."""
    starts: int = 0
    beat: float = 0.0
    """When it last showed life."""
    address: str = ""
    """Where it can be called; empty: it cannot yet."""
    last_words: str = ""
    """Why it could not start."""
    failures: int = 0
    start_at: float = 0.0
    given_up: bool = False

    def start(self) -> None:
        self.address = self.last_words = ""
        self.starts += 1
        self.started = self.beat = time.monotonic()
        self.started_time = time.time()
        self.running = self.starter.start(self.service, self.name, self.described)

    def hear(self) -> None:
        """Signs of life that have come in."""
        assert self.running is not None
        for said in self.running.hear():
            self.beat = time.monotonic()
            self.address = said.ready_at or self.address
            self.last_words += said.failed

    def problem(self) -> str | None:
        """What is wrong with its process, if anything is."""
        assert self.running is not None
        if self.running.lost is not None:
            return self.running.lost
        code = self.running.exit_code
        if code == FAILED_TO_START:
            return f"does not start: {self.last_words}"
        if code is not None:
            return f"ended with exit code {code}" if code >= 0 else f"was ended by {_signal_name(-code)}"
        limit = self.described.hung_after_s if self.address else START_UP_S
        if time.monotonic() - self.beat <= limit:
            return None
        if self.running.waits_for:
            return f"has waited {limit:g} s for {self.running.waits_for}"
        return f"has shown no sign of life for {limit:g} s"

    @property
    def status(self) -> InstanceStatus:
        """May be asked for in any thread: whoever has the place is looked at once."""
        running, address = self.running, self.address
        if running is None:
            state = "ended" if self.given_up else "starting"
        elif running.waits_for:
            state = "waiting"
        else:
            state = "working" if address else "starting"
        return InstanceStatus(
            name=self.name,
            state=state,
            pid=None if running is None else running.pid,
            node="" if running is None else running.node,
            started=self.started_time,
            restarts=max(0, self.starts - 1),
            address=address,
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


BACK_OFF_S = 0.5
LONGEST_BACK_OFF_S = 30.0
STEADY_S = 60.0
"""Who has run for so long is forgiven its failures."""
LOOK_EVERY_S = 0.1
_NAP_S = 0.01
"""Between looks at those that start."""

Note = Callable[[str, str, str, int], None]
"""(instance, what happened, what was done about it, pid)"""


class ServiceHost:
    """Runs the services while it is open; `with ServiceHost(...)` starts them and waits until all can be
    called."""

    def __init__(
        self,
        services: Mapping[str, UserService],
        registry: Registry,
        registry_address: str,
        *,
        folder: Path,
        logs: Path,
        run: str,
        host: str = "",
        environment: Mapping[str, str] | None = None,
        note: Note = lambda instance, what, then, pid: None,
        elsewhere: Starter | None = None,
    ) -> None:
        """`registry_address` is what processes find the registry by, `folder` is for sockets, `run` marks the
        lines of the logs, `host` is the address of this machine to listen at where unix sockets do not do.
        `elsewhere`: where services run that say what they need; None: here, as the others."""
        self._services = services
        here = LocalStarter(
            registry_address,
            folder=folder,
            logs=logs,
            run=run,
            host=host,
            environment=os.environ if environment is None else environment,
        )
        starters = {
            name: elsewhere if elsewhere is not None and one.resources is not None else here
            for name, one in services.items()
        }
        self._places = [
            ProcessSlot(name, instance_name(name, number), described, starters[name])
            for name, described in services.items()
            for number in range(described.count)
        ]
        self._starters = list(dict.fromkeys(starters.values()))
        self._registry = registry
        self._log_folder = logs
        self._note = note
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._keep, name="services", daemon=True)

    def __enter__(self) -> ServiceHost:
        opened: list[Starter] = []
        try:
            for starter in self._starters:
                named = {place.service for place in self._places if place.starter is starter}
                starter.open({name: self._services[name] for name in self._services if name in named})
                opened.append(starter)
            for place in self._places:
                self._registry.declare(place.service)
                place.start()
            self._wait_until_ready()
        except BaseException:
            self._starters = opened
            self._end()
            raise
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._watch.join()

    @property
    def pids(self) -> dict[str, int]:
        """Of the processes that run now, by name of the instance."""
        return {one.name: one.pid for one in self.status if one.pid is not None}

    @property
    def status(self) -> list[InstanceStatus]:
        """Of all, those included that have ended."""
        return [place.status for place in self._places]

    def _kill(self, place: ProcessSlot, within_s: float = 0.0) -> None:
        running, place.running, place.address = place.running, None, ""
        assert running is not None
        pid, host = running.pid, running.host
        running.kill(within_s)
        for instance in self._registry.find(place.service) if pid is not None else ():
            if instance.name == place.name and instance.pid == pid and instance.host == host:
                self._registry.withdraw(instance)

    def _wait_until_ready(self) -> None:
        while waiting := [place for place in self._places if not place.address]:
            for place in waiting:
                problem = place.problem()
                place.hear()  # after that: its last words are there once it has ended
                if problem is not None:
                    problem = place.problem() or problem
                    log = self._log_folder / f"service-{place.name}.log"
                    has_run = place.running is not None and place.running.pid is not None
                    raise ServiceError(
                        f"service {place.service!r} ({place.described.address}) {problem}"
                        + (f" (see {log})" if has_run else "")
                    )
            time.sleep(_NAP_S)

    def _keep(self) -> None:
        try:
            self._look_after()
        finally:
            # In this thread: with it the kernel would end the processes that it has started, without a word.
            self._end()

    def _look_after(self) -> None:
        looked = time.monotonic()
        while not self._stop.wait(LOOK_EVERY_S):
            now = time.monotonic()
            for starter in self._starters:
                starter.look()
            for place in self._places:
                if now - looked > 10 * LOOK_EVERY_S + 1.0:
                    place.beat = now  # we were asleep ourselves: nobody else is to blame
                try:
                    self._look_at(place, now)
                except Exception as error:  # a registry that is away must not end the watch
                    print(f"services: {place.name}: {error}", file=sys.stderr)
            looked = now

    def _look_at(self, place: ProcessSlot, now: float) -> None:
        if place.running is None:
            if not place.given_up and now >= place.start_at:
                place.start()
            return
        if place.running.waits_for:
            place.beat = now  # once the run goes on without it, it may wait as long as it takes
        place.hear()
        problem = place.problem()
        if problem is None:
            return
        place.hear()  # its last words are there once it has ended
        problem = place.problem() or problem
        pid = place.running.pid or 0
        if now - place.started > STEADY_S:
            place.failures = 0
        place.failures += 1
        pause = min(BACK_OFF_S * 2 ** (place.failures - 1), LONGEST_BACK_OFF_S)
        place.start_at = now + pause
        place.given_up = not place.described.restart
        self._kill(place)
        then = "not started again (restart is off)" if place.given_up else f"started again in {pause:g} s"
        self._note(place.name, problem, then, pid)

    def _end(self) -> None:
        """Ask all to end, then make sure of it."""
        running = [place for place in self._places if place.running is not None]
        for place in running:
            assert place.running is not None
            place.running.leave()
        until = time.monotonic() + STOP_WITHIN_S
        for place in running:
            with suppress(ServiceError):
                self._kill(place, max(0.0, until - time.monotonic()))
        for starter in self._starters:
            starter.close()


@contextmanager
def serving(services: Mapping[str, UserService], folder: str | Path, host: str = "") -> Iterator[FileRegistry]:
    """Services outside of a run, for a look or a measurement: gives the registry to be handed to `Solver`.
    Sockets and logs go into the folder; with a `host`, they listen there on TCP."""
    place = Path(folder).resolve()
    registry = FileRegistry(place / "services")
    logs = place / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    address = f"file:{registry.folder}"
    with ServiceHost(services, registry, address, folder=registry.folder, logs=logs, run=place.name, host=host):
        yield registry
