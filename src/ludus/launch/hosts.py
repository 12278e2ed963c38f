"""Plain machines, reached by ssh: the head of a cluster here, `ludus join` on each host of a file, and all of
it ended with the training."""

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
from ludus.launch.ray_node import TrainingCommand, beside, head_command, places, start_node
from ludus.system.network import make_token_file, read_token_file, with_token
from ludus.system.process import end_with_parent

JOINED = "part of the cluster"
"""What `ludus join` prints when it is."""
JOIN_S = 180.0
LEAVE_S = 30.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*")
"""Of hosts and users: nothing that a program would take for an option."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine with Ludus on it."""

    address: str
    user: str | None = None
    port: int = 22
    """Of its ssh."""
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
    """What `ludus launch hosts` is told."""

    head: str
    """Address of this machine, as the hosts reach it."""
    hosts: tuple[Host, ...]
    port: int = 6379
    """Where the head listens."""
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


class HostLaunch:
    """One training on the hosts of a file."""

    def __init__(self, plan: HostFile, training: TrainingCommand, programs: str) -> None:
        self._plan = plan
        self._programs = programs
        has_learner = any(host.role == "learner" for host in plan.hosts)
        self._head = head_command(programs, plan.head, plan.port, places(plan.processes, learner=not has_learner))
        words = training.words(runtime="ray", address=plan.address)
        self._train = [str(Path(programs) / words[0]), *words[1:]]
        self._token = beside(training.run, ".token")

    def commands(self) -> Iterator[str]:
        """What would be run, in order."""
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
        links: list[_Link] = []
        try:
            links.extend(_Link(host.address, self._plan.ssh_command(host), token, tell) for host in self._plan.hosts)
            for link in links:
                link.wait_joined(JOIN_S)
            if not any(link.has_joined for link in links):
                raise ConfigError("none of the hosts has joined")
            return self._run_training(environment)
        finally:
            for link in links:
                link.close_input()
            for link in links:
                link.end()
            head.end()

    def _run_training(self, environment: dict[str, str]) -> int:
        process = subprocess.Popen(self._train, env=environment, preexec_fn=end_with_parent)
        with _passing_on(process):
            return process.wait()


class _Link:
    """One host: what `ludus join` says there, until its input ends."""

    def __init__(self, name: str, command: list[str], token: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._settled = threading.Event()
        self.has_joined = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the training
            preexec_fn=end_with_parent,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(token + "\n")
            self._process.stdin.flush()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._tell(f"{self._name}: {line.rstrip()}")
            if JOINED in line:
                self.has_joined = True
                self._settled.set()
        self._settled.set()

    def wait_joined(self, most_s: float) -> None:
        if not self._settled.wait(most_s):
            self._tell(f"{self._name}: has not joined within {most_s:g} s; the training begins without it")

    def close_input(self) -> None:
        """The node there leaves the cluster."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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
