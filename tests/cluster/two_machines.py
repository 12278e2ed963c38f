"""Two machines in one: network namespaces with a cable between them. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import pytest

from ludus.runtime.ray.connection import SHORT, START_SECONDS, START_WAIT, TemporaryHome
from ludus.system.network import RAY_MODE_VARIABLE, RAY_PATH_VARIABLE, make_token_file

PORT = 6379


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Namespaces:
    """A context manager. Each machine has one interface, `cable`, and runs one node of a Ray cluster."""

    def __init__(self) -> None:
        if shutil.which("ip") is None or os.geteuid() != 0:
            pytest.skip("network namespaces need root and iproute2: apt-get install iproute2")
        self.names = [f"ludus-{os.getpid()}-{number}" for number in range(2)]
        self.addresses = [f"10.213.7.{number + 1}" for number in range(2)]
        self.address = f"{self.addresses[0]}:{PORT}"
        self._home = TemporaryHome("ludus-net-", SHORT)
        token = make_token_file(self._home.path / "token")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.environment: Mapping[str, str] = {
            **kept,
            RAY_MODE_VARIABLE: "token",
            RAY_PATH_VARIABLE: str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            START_WAIT: START_SECONDS,
        }
        self._nodes: list[subprocess.Popen[bytes]] = []
        try:
            self._connect()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            pytest.skip(f"this machine allows no network namespaces: {getattr(error, 'stderr', error)}")

    def _connect(self) -> None:
        for name in self.names:
            _ip("netns", "add", name)
        _ip("-n", self.names[0], "link", "add", "cable", "type", "veth", "peer", "cable", "netns", self.names[1])
        for name, address in zip(self.names, self.addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for interface in ("lo", "cable"):
                _ip("-n", name, "link", "set", interface, "up")

    def inside(self, number: int) -> list[str]:
        """What a command begins with that runs on this machine."""
        return ["ip", "netns", "exec", self.names[number]]

    def start_node(self, number: int, cpus: int) -> None:
        """Start a node of the cluster; the first is its head."""
        ray = [*self.inside(number), sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        where = ["--node-ip-address", self.addresses[number], "--num-cpus", str(cpus)]
        where += ["--object-store-memory", str(128 * 2**20)]
        head = ["--head", "--port", str(PORT), "--include-dashboard=false", "--temp-dir", f"{self._home.path}/ray"]
        log = self._home.path / f"{number}.log"
        with log.open("w") as file:
            command = [*ray, *where, *(["--address", self.address] if number else head)]
            self._nodes.append(subprocess.Popen(command, env=self.environment, stdout=file, stderr=file))
        until = time.monotonic() + 90
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < until, log.read_text()
            assert self._nodes[-1].poll() is None, log.read_text()
            time.sleep(0.2)

    def cut(self) -> None:
        """Pull the cable."""
        _ip("-n", self.names[1], "link", "set", "cable", "down")

    def close(self) -> None:
        """End all processes of the namespaces, and the namespaces."""
        there = _ip("netns", "list").split()
        for name in (name for name in self.names if name in there):
            for pid in map(int, _ip("netns", "pids", name).split()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            _ip("netns", "delete", name)
        for node in self._nodes:
            node.wait()
        self._home.close()

    def __enter__(self) -> Namespaces:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
