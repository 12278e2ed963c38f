"""The service host: starts the processes of services and keeps them running from a thread of its own. Because of the
thread, a service that dies is replaced whatever the controller is busy with, in every runtime. No process outlives the
host, however the host ends."""

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

from ludus.services.endpoints import ServiceError
from ludus.services.registry import FileRegistry, Registry
from ludus.services.resources import UserService, instance_name
from ludus.services.starter import FAILED_TO_START, STOP_WITHIN_S, LocalStarter, Running, Starter

START_UP_S = 120.0  # how long a service may take from its start until it can be called


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceStatus:
    """The state of one service process."""

    name: str
    state: str  # working, starting, waiting (for a node that has what it needs), ended
    pid: int | None
    node: str  # empty until it is known
    started: float  # Unix time
    restarts: int
    address: str  # its address for callers; empty: it is not ready


@dataclass(eq=False)
class ProcessSlot:
    service: str
    name: str
    described: UserService
    starter: Starter
    running: Running | None = None
    started: float = 0.0
    started_time: float = 0.0  # the same as Unix time
    starts: int = 0
    beat: float = 0.0  # time of its last heartbeat
    address: str = ""  # its address for callers; empty: it is not ready
    last_words: str = ""  # why it could not start
    failures: int = 0
    start_at: float = 0.0
    given_up: bool = False

    def start(self) -> None:
        self.address = self.last_words = ""
        self.starts += 1
        self.started = self.beat = time.monotonic()
        self.started_time = time.time()
        self.running = self.starter.start(self.service, self.name, self.described)

    def look(self) -> str | None:
        """Take in its heartbeats. Returns why its process has to be replaced; None: it works."""
        self._hear()
        problem = self._problem()
        if problem is None:
            return None
        self._hear()  # its last words are there once it has ended
        return self._problem() or problem

    def _hear(self) -> None:
        assert self.running is not None
        for said in self.running.hear():
            self.beat = time.monotonic()
            self.address = said.ready_at or self.address
            self.last_words += said.failed

    def _problem(self) -> str | None:
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
        """Safe in any thread: `running` is read once."""
        running, address = self.running, self.address
        state = "working" if address else "starting"
        if running is None:
            state = "ended" if self.given_up else "starting"
        elif running.waits_for:
            state = "waiting"
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
STEADY_S = 60.0  # failures are forgotten once a process has run for this long
LOOK_EVERY_S = 0.1
_NAP_S = 0.01  # between checks of starting processes

Note = Callable[[str, str, str, int], None]  # (instance, what happened, what was done about it, pid)


class ServiceHost:
    """Runs services as a context manager, which starts them and waits until all of them can be called."""

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
        """Processes find the registry at `registry_address`. `folder` is for sockets, `run` marks the lines of the
        logs, and `host` is the address to listen at if unix sockets do not suffice. `elsewhere` starts the services
        that name resources; None: they run here, like the others."""
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
        self._slots = [
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
                named = {slot.service for slot in self._slots if slot.starter is starter}
                starter.open({name: self._services[name] for name in self._services if name in named})
                opened.append(starter)
            for slot in self._slots:
                self._registry.declare(slot.service)
                slot.start()
            self._wait_until_ready()
        except BaseException:
            self._starters = opened
            self._end()
            raise
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watch.join()

    @property
    def pids(self) -> dict[str, int]:
        """Process numbers of the running instances, by name."""
        return {one.name: one.pid for one in self.status if one.pid is not None}

    @property
    def status(self) -> list[InstanceStatus]:
        """The state of all instances, including those that have ended."""
        return [slot.status for slot in self._slots]

    def _kill(self, slot: ProcessSlot, within_s: float = 0.0) -> None:
        running, slot.running, slot.address = slot.running, None, ""
        assert running is not None
        pid, host = running.pid, running.host
        running.kill(within_s)
        for instance in self._registry.find(slot.service) if pid is not None else ():
            if (instance.name, instance.pid, instance.host) == (slot.name, pid, host):
                self._registry.withdraw(instance)

    def _wait_until_ready(self) -> None:
        while waiting := [slot for slot in self._slots if not slot.address]:
            for slot in waiting:
                if (problem := slot.look()) is not None:
                    log = self._log_folder / f"service-{slot.name}.log"
                    has_run = slot.running is not None and slot.running.pid is not None
                    raise ServiceError(
                        f"service {slot.service!r} ({slot.described.address}) {problem}"
                        + (f" (see {log})" if has_run else "")
                    )
            time.sleep(_NAP_S)

    def _keep(self) -> None:
        try:
            self._look_after()
        finally:
            # In this thread: the kernel kills the processes that a thread has started when the thread ends.
            self._end()

    def _look_after(self) -> None:
        looked = time.monotonic()
        while not self._stop.wait(LOOK_EVERY_S):
            now = time.monotonic()
            for starter in self._starters:
                starter.look()
            for slot in self._slots:
                if now - looked > 10 * LOOK_EVERY_S + 1.0:
                    slot.beat = now  # this process was suspended itself
                try:
                    self._look_at(slot, now)
                except Exception as error:  # a registry that is away must not end the watch
                    print(f"services: {slot.name}: {error}", file=sys.stderr)
            looked = now

    def _look_at(self, slot: ProcessSlot, now: float) -> None:
        if slot.running is None:
            if not slot.given_up and now >= slot.start_at:
                slot.start()
            return
        if slot.running.waits_for:
            slot.beat = now  # once the run has begun, it may wait without a limit
        if (problem := slot.look()) is None:
            return
        pid = slot.running.pid or 0
        if now - slot.started > STEADY_S:
            slot.failures = 0
        slot.failures += 1
        pause = min(BACK_OFF_S * 2 ** (slot.failures - 1), LONGEST_BACK_OFF_S)
        slot.start_at = now + pause
        slot.given_up = not slot.described.restart
        self._kill(slot)
        then = "not started again (restart is off)" if slot.given_up else f"started again in {pause:g} s"
        self._note(slot.name, problem, then, pid)

    def _end(self) -> None:
        """Ask all to end, then kill those that do not."""
        running = [slot for slot in self._slots if slot.running is not None]
        for slot in running:
            assert slot.running is not None
            slot.running.leave()
        until = time.monotonic() + STOP_WITHIN_S
        for slot in running:
            with suppress(ServiceError):
                self._kill(slot, max(0.0, until - time.monotonic()))
        for starter in self._starters:
            starter.close()


@contextmanager
def serving(services: Mapping[str, UserService], folder: str | Path) -> Iterator[FileRegistry]:
    """Run services outside of a run, for a trial or a measurement; yields the registry for `Solver`. Sockets and logs
    go into the folder."""
    path = Path(folder).resolve()
    registry = FileRegistry(path / "services")
    logs = path / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    address = f"file:{registry.folder}"
    with ServiceHost(services, registry, address, folder=registry.folder, logs=logs, run=path.name):
        yield registry
