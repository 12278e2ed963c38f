"""Commands of `ludus` on the nodes of a cluster, as the runs of a study. Ray chooses a node that has room for each."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError, RayTaskError

from ludus.config import ConfigError
from ludus.runtime.ray.connection import NAMESPACE, node_name
from ludus.runtime.ray.user_code import ludus_digest
from ludus.system.process import ChildProcess

LOOK_S = 0.5
"""How long a node waits for the end of a command before it answers."""
SEEN_WITHIN_S = 10.0
"""Seconds until storage that nodes share may show them a file."""
KILL_S = 20.0
LOST = -int(signal.SIGKILL)
"""Exit code of a command that was lost with its node."""


class CommandOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order to run `ludus` on a node."""

    words: list[str]
    folder: str
    """Where it works, the same on all nodes."""
    log: str
    output: str | None
    """The file of its standard output; None: the log."""
    shared: str
    """A file that a node sees if it has the storage of the study,"""
    content: bytes
    """and what is in it."""
    digest: str
    """Of Ludus where the order comes from."""


class CommandActor:
    """A Ray actor that runs one command after the other. Ray makes all calls in its main thread, so the kernel ends the
    command with this process."""

    def __init__(self) -> None:
        self._process: ChildProcess | None = None

    def start(self, order: CommandOrder) -> None:
        node = node_name(socket.gethostname(), ray.get_runtime_context().get_node_id())
        if order.digest != ludus_digest():
            raise ConfigError(f"node {node} has another version of ludus: install the same one on it")
        if not _sees(Path(order.shared), order.content):
            raise ConfigError(f"node {node} does not see {order.shared}: a study on a cluster needs shared storage")
        self.kill()  # all that the command before has started
        with open(order.log, "ab", buffering=0) as log, open(order.output or os.devnull, "wb") as output:
            log.write(f"on node {node}\n".encode())
            self._process = ChildProcess(
                [sys.executable, "-m", "ludus.cli.main", *order.words],
                stdout=log if order.output is None else output,
                stderr=log,
                environment={"OMP_NUM_THREADS": "1", **os.environ},
                folder=order.folder,
                with_parent=True,
            )

    def look(self) -> int | None:
        """The exit code, once there is one."""
        assert self._process is not None
        return self._process.wait_end(LOOK_S)

    def send_signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def _sees(file: Path, content: bytes) -> bool:
    for _ in range(int(SEEN_WITHIN_S / LOOK_S)):
        with suppress(OSError):
            if file.read_bytes() == content:
                return True
        time.sleep(LOOK_S)
    return False


COMMAND_ACTOR: Any = ray.remote(max_restarts=0)(CommandActor)


class NodeCommand:
    """A command on a node, to be watched as a `ChildProcess` is. It waits until a node has room."""

    def __init__(self, order: CommandOrder, room: Room, *, after: NodeCommand | None = None) -> None:
        """`after`: a command that has ended, whose place it takes."""
        self._log = Path(order.log)
        self._has_started = False
        self._ended: int | None = None
        self._actor: Any = room.new_actor() if after is None else after._actor
        self._answer = self._actor.start.remote(order)

    @property
    def exit_code(self) -> int | None:
        """None while it waits for a node, or runs."""
        if self._ended is None and ray.wait([self._answer], timeout=0)[0]:
            try:
                self._ended = ray.get(self._answer)
            except RayTaskError as error:
                self._lose(1, str(error.cause))
            except RayError as error:
                self._lose(LOST, f"lost with its node: {str(error).strip().partition(chr(10))[0]}")
            else:
                self._has_started = True
                if self._ended is None:
                    self._answer = self._actor.look.remote()
        return self._ended

    def send_signal(self, number: int) -> None:
        """Send a signal to the command. One that still waits for a node does not run any more."""
        if self.exit_code is None and self._has_started:
            self._actor.send_signal.remote(number)
        elif self._ended is None:
            self._ended = -number

    def wait_end(self, most_s: float) -> int | None:
        """The exit code once it has ended; None if that takes longer."""
        until = time.monotonic() + most_s
        while self.exit_code is None and time.monotonic() < until:
            time.sleep(LOOK_S / 5)
        return self._ended

    def kill(self) -> None:
        """Kill it and all that it has started, and give its place back."""
        with suppress(RayError):
            if self._has_started and self._ended != LOST:
                ray.wait([self._actor.kill.remote()], timeout=KILL_S)
        with suppress(RayError, ValueError):
            ray.kill(self._actor)

    def _lose(self, code: int, why: str) -> None:
        self._ended = code
        with suppress(OSError), self._log.open("ab") as log:
            log.write(f"error: {why}\n".encode())


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What each command takes of a node."""

    cpus: int
    gpus: int = 0

    def require_node(self) -> None:
        """Refuse commands that would wait for ever."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes):
            cores = max(int(node.get("CPU", 0)) for node in nodes)
            wanted = f"{self.cpus} core{'s' * (self.cpus > 1)}{' and a GPU' * self.gpus}"
            raise ConfigError(f"a run needs {wanted}, and no node of the cluster has that; at most {cores} cores")

    def new_actor(self) -> Any:
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "scheduling_strategy": "SPREAD"}
        return COMMAND_ACTOR.options(namespace=NAMESPACE, **options).remote()
