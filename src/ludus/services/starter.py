"""Starters of service processes: the interface, and the one that starts children of this process."""

from __future__ import annotations

import os
import socket
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
from ludus.system.process import ChildProcess

RUN_VARIABLE = "LUDUS_RUN"  # the environment variable by which a service finds the folder of its run
BEAT_EVERY_S = 1.0  # how often a service process sends a heartbeat
FAILED_TO_START = 78  # exit code of a service process whose class cannot be loaded or instantiated


class ServiceLaunch(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    name: str
    address: str  # the address of the class
    options: dict[str, Option]
    registry: str  # the address of the registry
    folder: str  # the folder for its socket
    host: str  # listen on TCP at this address of the machine; empty: on a unix socket
    control_fd: int = -1
    parent: int = -1  # filled in when it starts


class ServiceNews(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A heartbeat, with news if there are any."""

    ready_at: str = ""  # it can be called at this address
    failed: str = ""  # why its class cannot be loaded or instantiated

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


STOP_WITHIN_S = 3.0  # how long a process may take to end after it was asked to


class Running(Protocol):
    """A service process, on this machine or another. `hear` returns its messages since the last call."""

    @property
    def pid(self) -> int | None: ...  # None until it is known
    @property
    def host(self) -> str: ...  # the name of its machine; empty until it is known
    @property
    def node(self) -> str: ...  # the name that people know the machine by
    @property
    def exit_code(self) -> int | None: ...  # None while it runs; minus the signal that ended it
    @property
    def lost(self) -> str | None: ...  # why it is gone, if it did not end by itself
    @property
    def waits_for(self) -> str: ...  # the resources that it waits for before it can start; empty: none
    def hear(self) -> list[ServiceNews]: ...
    def leave(self) -> None:
        """Ask it to end; does not wait."""

    def kill(self, within_s: float = 0.0) -> None:
        """Kill it and everything that it has started, unless it ends by itself within `within_s`."""


class Starter(Protocol):
    """Starts service processes somewhere."""

    def open(self, services: Mapping[str, UserService]) -> None:
        """Called before anything is started. Raises `NotEnough` if the resources do not suffice."""

    def start(self, service: str, name: str, described: UserService) -> Running: ...
    def look(self) -> None: ...  # called now and then
    def close(self) -> None: ...  # called once all processes have ended


class ServiceProcess(ChildProcess):
    """A process of a service on this machine."""

    waits_for = ""
    lost: str | None = None

    def __init__(self, launch: ServiceLaunch, output: int, environment: Mapping[str, str], guard: Guard) -> None:
        """`output`: the descriptor that it prints to. The numbers of `launch` are filled in here."""
        self.host = self.node = here()
        self._heard = b""  # the beginning of a line
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        with theirs:
            told = msgspec.structs.replace(launch, control_fd=theirs.fileno(), parent=os.getpid())
            # Not `with_parent`: this may be a thread among others. The child asks the kernel itself.
            super().__init__(
                [sys.executable, "-m", "ludus.services", msgspec.json.encode(told).decode()],
                stdout=output,
                stderr=output,
                fds=(theirs.fileno(),),
                environment=environment,
                guard=guard,
            )

    def hear(self) -> list[ServiceNews]:
        with suppress(BlockingIOError, ConnectionResetError):
            while content := self._control.recv(4096):
                self._heard += content
        *lines, self._heard = self._heard.split(b"\n")
        return [msgspec.json.decode(line, type=ServiceNews) for line in lines]

    def leave(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def kill(self, within_s: float = 0.0) -> None:
        self.wait_end(within_s)
        super().kill()
        self._control.close()


class LocalStarter:
    """Starts service processes on this machine."""

    def __init__(
        self, registry_address: str, *, folder: Path, logs: Path, run: str, host: str, environment: Mapping[str, str]
    ) -> None:
        """As of `ServiceHost`."""
        self._registry_address = registry_address
        self._folder = folder
        self._log_folder = logs
        self._run = run
        self._host = host
        self._environment = dict(environment)

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
    """Environment variables for as many threads as the service has cores; by default one, or what the user has set."""
    cpus = described.resources.cpus if described.resources is not None else 0.0
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    if cpus:
        return dict.fromkeys(variables, str(max(1, int(cpus))))
    return {name: environment.get(name, "1") for name in variables}
