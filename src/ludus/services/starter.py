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

from ludus.runtime.guard import Guard
from ludus.runtime.log_keeper import LogKeeper
from ludus.runtime.machine import GPUS_VARIABLE
from ludus.services.allotment import allot
from ludus.services.launch import HeardLines, Said, ServiceLaunch
from ludus.services.registry import here
from ludus.services.user_services import UserService

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

    def hear(self) -> list[Said]:
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

    def __init__(
        self, launch: ServiceLaunch, output: int, environment: Mapping[str, str], guard: Guard
    ) -> None:
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

    def hear(self) -> list[Said]:
        heard: list[Said] = []
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
