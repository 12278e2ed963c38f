"""Starts processes of services: here, as children of this process. Others start them elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from ludus.services.registry import here
from ludus.services.resources import Option, UserService, allot
from ludus.system.guard import Guard
from ludus.system.log_keeper import LogKeeper
from ludus.system.machine import GPUS_VARIABLE

RUN_VARIABLE = "LUDUS_RUN"
"""The environment variable by which a service finds the folder of its run."""
BEAT_EVERY_S = 1.0
"""How often a service process shows that its loop turns."""
FAILED_TO_START = 78
"""Its exit code if its class cannot be loaded or made."""


class ServiceLaunch(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    name: str
    address: str
    """Of the class."""
    options: dict[str, Option]
    registry: str
    """Its address."""
    folder: str
    """For the socket."""
    host: str
    """Listen on TCP at this address of the machine; empty: on a unix socket."""
    control_fd: int = -1
    parent: int = -1
    """These two are known once it starts."""


class ServiceNews(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sign of life, with what is new."""

    ready_at: str = ""
    """It can be called at this address."""
    failed: str = ""
    """Why its class cannot be loaded or made."""

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


class HeardLines:
    """What comes in pieces, put together."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, content: bytes) -> list[ServiceNews]:
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [msgspec.json.decode(line, type=ServiceNews) for line in lines]


STOP_WITHIN_S = 3.0
"""How long a process that was asked to end may take for it."""


class Running(Protocol):
    """A process of a service that was started, wherever it is."""

    @property
    def pid(self) -> int | None:
        """None until it is known."""

    @property
    def host(self) -> str:
        """The name of its machine; empty until it is known."""

    @property
    def node(self) -> str:
        """The same for people."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that ended it."""

    @property
    def lost(self) -> str | None:
        """Why it is gone, if that was not by itself."""

    @property
    def waits_for(self) -> str:
        """What it needs before it can start; empty: nothing any more."""

    def hear(self) -> list[ServiceNews]:
        """What it has said since it was last asked."""

    def leave(self) -> None:
        """Ask it to end; does not wait."""

    def kill(self, within_s: float = 0.0) -> None:
        """End it and everything it has started, after giving it so long to end by itself."""


class Starter(Protocol):
    """Where processes of services can be started."""

    def open(self, services: Mapping[str, UserService]) -> None:
        """Before anything is started. Raises `NotEnough` if there is no room for all of them."""

    def start(self, service: str, name: str, described: UserService) -> Running: ...

    def look(self) -> None:
        """Call it now and then."""

    def close(self) -> None:
        """Once all have ended."""


class ServiceProcess:
    """A child in a session of its own."""

    waits_for = ""
    lost: str | None = None

    def __init__(self, launch: ServiceLaunch, output: int, environment: Mapping[str, str], guard: Guard) -> None:
        """`output`: the descriptor that it prints to. Of `launch`, the numbers are filled in here."""
        self.host = self.node = here()
        self._guard = guard
        self._lines = HeardLines()
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        with theirs:
            told = msgspec.structs.replace(launch, control_fd=theirs.fileno(), parent=os.getpid())
            # No preexec_fn: this may be a thread among others. The child asks to end with its parent itself.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ludus.services", msgspec.json.encode(told).decode()],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=dict(environment),
            )
        guard.watch(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def hear(self) -> list[ServiceNews]:
        heard: list[ServiceNews] = []
        with suppress(BlockingIOError, ConnectionResetError):
            while content := self._control.recv(4096):
                heard += self._lines.take(content)
        return heard

    def leave(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def kill(self, within_s: float = 0.0) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        with suppress(ProcessLookupError):  # the group too: programs that it has started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.forget(self._process.pid)
        self._control.close()


class LocalStarter:
    """Starts them on this machine."""

    def __init__(
        self,
        registry_address: str,
        *,
        folder: Path,
        logs: Path,
        run: str,
        host: str,
        environment: Mapping[str, str],
    ) -> None:
        """As of `ServiceHost`."""
        self._registry_address = registry_address
        self._folder = folder
        self._log_folder = logs
        self._run = run
        self._host = host
        self._environment = dict(environment)
        self._gpus: Mapping[str, tuple[str, ...]] = {}

    def open(self, services: Mapping[str, UserService]) -> None:
        self._gpus = allot(services)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._guard = Guard()
        self._logs = LogKeeper(self._log_folder, self._run)

    def start(self, service: str, name: str, described: UserService) -> ServiceProcess:
        launch = ServiceLaunch(
            service=service,
            name=name,
            address=described.address,
            options=dict(described.options),
            registry=self._registry_address,
            folder=str(self._folder),
            host=self._host,
        )
        environment = {**self._environment, **threads_of(described, self._environment)}
        if name in self._gpus:
            environment[GPUS_VARIABLE] = ",".join(self._gpus[name])
        with self._logs.output(f"service-{name}") as output:
            return ServiceProcess(launch, output, environment, self._guard)

    def look(self) -> None:
        self._logs.look()

    def close(self) -> None:
        self._guard.close()
        self._logs.close()


def threads_of(described: UserService, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for as many threads as it has cores: one, unless the service or the user says
    otherwise."""
    cpus = described.resources.cpus if described.resources is not None else 0.0
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    if cpus:
        return dict.fromkeys(variables, str(max(1, int(cpus))))
    return {name: environment.get(name, "1") for name in variables}
