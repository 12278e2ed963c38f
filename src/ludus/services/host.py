"""Starts the processes of services, and keeps them running from a thread of its own.

Of a thread, so that it works alike in every runtime: whatever the controller is busy with, a service that
dies is replaced. No process outlives the host, however that ends.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from ludus.runtime.guard import Guard
from ludus.runtime.log_keeper import LogKeeper
from ludus.services.errors import ServiceError
from ludus.services.launch import FAILED, FAILED_TO_START, READY, ServiceLaunch
from ludus.services.registry import FileRegistry, Registry, here
from ludus.services.user_services import UserService

START_UP_S = 120.0
"""How long a service may take from its start until it can be called."""
BACK_OFF_S = 0.5
LONGEST_BACK_OFF_S = 30.0
STEADY_S = 60.0
"""Who has run for so long is forgiven its failures."""
STOP_WITHIN_S = 3.0
LOOK_EVERY_S = 0.1

Note = Callable[[str, str, str, int], None]
"""(instance, what happened, what was done about it, pid)"""


@dataclass(eq=False)
class _Place:
    """A place for one process of a service."""

    service: str
    name: str
    described: UserService
    process: subprocess.Popen[bytes] | None = None
    control: socket.socket | None = None
    started: float = 0.0
    beat: float = 0.0
    """When it last showed life."""
    ready: bool = False
    last_words: str = ""
    """Why it could not start."""
    failures: int = 0
    start_at: float = 0.0
    given_up: bool = False


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
    ) -> None:
        """`registry_address` is what processes find the registry by, `folder` is for sockets, `run` marks the
        lines of the logs, `host` is the address of this machine to listen at where unix sockets do not do."""
        self._places = [
            _Place(name, f"{name}-{number}", described)
            for name, described in services.items()
            for number in range(described.count)
        ]
        self._registry = registry
        self._registry_address = registry_address
        self._folder = folder
        self._log_folder = logs
        self._run = run
        self._host = host
        self._environment = dict(os.environ if environment is None else environment)
        self._note = note
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._keep, name="services", daemon=True)

    def __enter__(self) -> ServiceHost:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._guard = Guard()
        self._logs = LogKeeper(self._log_folder, self._run)
        try:
            for place in self._places:
                self._registry.declare(place.service)
                self._start(place)
            self._wait_until_ready()
        except BaseException:
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
        return {place.name: place.process.pid for place in self._places if place.process is not None}

    # --- one process ---

    def _start(self, place: _Place) -> None:
        place.control, theirs = socket.socketpair()
        place.control.setblocking(False)
        launch = ServiceLaunch(
            service=place.service,
            name=place.name,
            address=place.described.address,
            options=dict(place.described.options),
            registry=self._registry_address,
            folder=str(self._folder),
            host=self._host,
            control_fd=theirs.fileno(),
            parent=os.getpid(),
        )
        with theirs, self._logs.output(f"service-{place.name}") as output:
            # No preexec_fn: this may be a thread among others. The child asks to end with its parent itself.
            place.process = subprocess.Popen(
                [sys.executable, "-m", "ludus.services", msgspec.json.encode(launch).decode()],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **self._environment},
            )
        self._guard.watch(place.process.pid)
        place.started = place.beat = time.monotonic()
        place.ready, place.last_words = False, ""

    def _kill(self, place: _Place) -> None:
        assert place.process is not None
        assert place.control is not None
        with suppress(ProcessLookupError):
            os.killpg(place.process.pid, signal.SIGKILL)
        place.process.wait()
        self._guard.forget(place.process.pid)
        place.control.close()
        pid = place.process.pid
        place.process = place.control = None  # first: whatever the registry says, another one can start
        for instance in self._registry.find(place.service):
            if instance.name == place.name and instance.pid == pid and instance.host == here():
                self._registry.withdraw(instance)

    def _hear(self, place: _Place) -> None:
        """Signs of life that have come in."""
        assert place.control is not None
        with suppress(BlockingIOError, ConnectionResetError):
            while heard := place.control.recv(4096):
                place.beat = time.monotonic()
                place.ready |= READY in heard
                place.last_words += heard.partition(FAILED)[2].decode(errors="replace")

    def _problem(self, place: _Place) -> str | None:
        """What is wrong with its process, if anything is."""
        assert place.process is not None
        code = place.process.poll()
        if code == FAILED_TO_START:
            return f"does not start: {place.last_words}"
        if code is not None:
            return f"ended with exit code {code}" if code >= 0 else f"was ended by {_signal_name(-code)}"
        silent = time.monotonic() - place.beat
        limit = place.described.hung_after_s if place.ready else START_UP_S
        return f"has shown no sign of life for {limit:g} s" if silent > limit else None

    # --- all of them ---

    def _wait_until_ready(self) -> None:
        while waiting := [place for place in self._places if not place.ready]:
            controls = [place.control for place in waiting if place.control is not None]
            select.select(controls, [], [], LOOK_EVERY_S)
            for place in waiting:
                problem = self._problem(place)
                self._hear(place)  # after that: its last words are there once it has ended
                if problem is not None:
                    problem = self._problem(place)
                    log = self._log_folder / f"service-{place.name}.log"
                    raise ServiceError(
                        f"service {place.service!r} ({place.described.address}) {problem} (see {log})"
                    )

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
            self._logs.look()
            for place in self._places:
                if now - looked > 10 * LOOK_EVERY_S + 1.0:
                    place.beat = now  # we were asleep ourselves: nobody else is to blame
                try:
                    self._look_at(place, now)
                except Exception as error:  # a registry that is away must not end the watch
                    print(f"services: {place.name}: {error}", file=sys.stderr)
            looked = now

    def _look_at(self, place: _Place, now: float) -> None:
        if place.process is None:
            if not place.given_up and now >= place.start_at:
                self._start(place)
            return
        self._hear(place)
        if self._problem(place) is None:
            return
        self._hear(place)  # its last words are there once it has ended
        problem = str(self._problem(place))
        pid = place.process.pid
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
        running = [place for place in self._places if place.process is not None]
        for place in running:
            assert place.control is not None
            with suppress(OSError):
                place.control.shutdown(socket.SHUT_WR)
        until = time.monotonic() + STOP_WITHIN_S
        for place in running:
            assert place.process is not None
            with suppress(subprocess.TimeoutExpired):
                place.process.wait(max(0.0, until - time.monotonic()))
            with suppress(ServiceError):
                self._kill(place)
        self._guard.close()
        self._logs.close()


@contextmanager
def serving(
    services: Mapping[str, UserService], folder: str | Path, host: str = ""
) -> Iterator[FileRegistry]:
    """Services outside of a run, for a look or a measurement: gives the registry to be handed to `Solver`.
    Sockets and logs go into the folder; with a `host`, they listen there on TCP."""
    place = Path(folder).resolve()
    registry = FileRegistry(place / "services")
    logs = place / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    address = f"file:{registry.folder}"
    with ServiceHost(
        services, registry, address, folder=registry.folder, logs=logs, run=place.name, host=host
    ):
        yield registry


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
