"""Training on plain machines that are reached by ssh: the head of a Ray cluster runs here, `ludus join` on each host of
a file, and all of them end with the training."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ludus.config import ConfigError
from ludus.config.conversion import build_from, read_yaml
from ludus.launch.ray_node import TrainingCommand, head_command, job_file, node_resources, start_node
from ludus.system.guard import end_with_parent
from ludus.system.network import make_token_file, read_token_file, with_token
from ludus.system.process import PIPE, ChildProcess, OutputReader

JOINED = b"part of the cluster"
"""`ludus join` prints it once the host has joined."""
JOIN_S = 180.0
LEAVE_S = 30.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*")
"""Names of hosts and users: nothing that a program would take for an option."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine with Ludus on it."""

    address: str
    user: str | None = None
    port: int = 22
    """The port of its ssh server."""
    role: Literal["actor", "learner"] = "actor"
    processes: int | None = None
    """Actors; None: one for each core."""
    ludus: str = "ludus"
    """The program there."""

    def __post_init__(self) -> None:
        for what, name in (("address", self.address), ("user", self.user)):
            if name is not None and not _NAME.fullmatch(name):
                raise ValueError(f"{what} {name!r} is not the name of a host or user")
        if not 0 < self.port < 2**16:
            raise ValueError(f"port must be from 1 to 65535, got {self.port}")

    def join_command(self, head: str) -> list[str]:
        words = [self.ludus, "join", head, "--role", self.role, "--token-file", "-"]
        return words if self.processes is None else [*words, "--workers", str(self.processes)]


@dataclass(frozen=True, kw_only=True)
class HostFile:
    """The file of `ludus launch hosts`."""

    head: str
    """Address of this machine, as the hosts reach it."""
    hosts: tuple[Host, ...]
    port: int = 6379
    """The port of the head."""
    processes: int = 0
    """Actors of this machine."""
    ssh: tuple[str, ...] = field(default=("ssh", "-o", "BatchMode=yes"))

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("no hosts; on one machine `ludus train` is enough")
        if sum(host.role == "learner" for host in self.hosts) > 1:
            raise ValueError("one host at most has the role learner; without one the learner is here")
        if len({host.address for host in self.hosts}) < len(self.hosts):
            raise ValueError("a host is named twice; give it more processes instead")

    @property
    def address(self) -> str:
        return f"{self.head}:{self.port}"

    def ssh_command(self, host: Host) -> list[str]:
        user = [] if host.user is None else ["-l", host.user]
        join = shlex.join(host.join_command(self.address))
        return [*self.ssh, "-p", str(host.port), *user, "--", host.address, join]


def read_host_file(path: str | Path) -> HostFile:
    content = read_yaml(Path(path).read_text(encoding="utf-8"), str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: write `head: ADDRESS` and `hosts:`, a list of hosts")
    listed = content.get("hosts", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ConfigError(f"{path}: hosts is a list, each with `address: NAME`")
    hosts = tuple(build_from(Host, one, f"{path}: hosts[{index}]") for index, one in enumerate(listed))
    found: HostFile = build_from(HostFile, {**content, "hosts": hosts}, str(path))
    return found


class SshTraining:
    """A training on the hosts of a file."""

    def __init__(self, plan: HostFile, training: TrainingCommand, programs: str) -> None:
        self._plan = plan
        self._programs = programs
        has_learner = any(host.role == "learner" for host in plan.hosts)
        self._head = head_command(
            programs, plan.head, plan.port, node_resources(plan.processes, learner=not has_learner)
        )
        words = training.words(runtime="ray", address=plan.address)
        self._train = [str(Path(programs) / words[0]), *words[1:]]
        self._token = job_file(training.run, ".token")

    def commands(self) -> Iterator[str]:
        """The commands that `run` runs, in order."""
        yield shlex.join(self._head)
        for host in self._plan.hosts:
            yield shlex.join(self._plan.ssh_command(host))
        yield shlex.join(self._train)

    def run(self, tell: Callable[[str], None]) -> int:
        """The exit code of the training."""
        self._token.parent.mkdir(parents=True, exist_ok=True)
        token = read_token_file(make_token_file(self._token))
        environment = with_token(os.environ, token)
        head = start_node(self._head, environment, lambda: False)
        hosts: list[_JoinedHost] = []
        try:
            hosts.extend(_JoinedHost(one.address, self._plan.ssh_command(one), token, tell) for one in self._plan.hosts)
            for joined in hosts:
                joined.wait_joined(JOIN_S)
            if not any(joined.has_joined for joined in hosts):
                raise ConfigError("none of the hosts has joined")
            return self._run_training(environment)
        finally:
            for joined in hosts:
                joined.close_input()
            for joined in hosts:
                joined.end()
            head.end()

    def _run_training(self, environment: dict[str, str]) -> int:
        process = subprocess.Popen(self._train, env=environment, preexec_fn=end_with_parent)
        with _passing_on(process):
            return process.wait()


class _JoinedHost:
    """`ludus join` on one host, over ssh. It leaves the cluster when its input ends."""

    def __init__(self, name: str, command: list[str], token: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._settled = threading.Event()
        self.has_joined = False
        self._process = ChildProcess(command, stdin=PIPE, stdout=PIPE, with_parent=True)
        with suppress(BrokenPipeError):
            self._process.stdin.write(token.encode() + b"\n")
            self._process.stdin.flush()
        OutputReader(self._process.stdout, self._take, keep=1, at_end=self._settled.set)

    def _take(self, line: bytes) -> None:
        self._tell(f"{self._name}: {line.decode(errors='replace').rstrip()}")
        if JOINED in line:
            self.has_joined = True
            self._settled.set()

    def wait_joined(self, most_s: float) -> None:
        if not self._settled.wait(most_s):
            self._tell(f"{self._name}: has not joined within {most_s:g} s; the training begins without it")

    def close_input(self) -> None:
        """The node there leaves the cluster."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        self._process.wait_end(LEAVE_S)
        self._process.kill()


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ctrl-C reaches the training from the terminal itself; other signals are passed on to it."""
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
