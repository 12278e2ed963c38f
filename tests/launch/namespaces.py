"""Several machines on one: namespaces of their own for network, processes, host name, shared memory and Ray's
files, with a switch between them. Nothing in them can be reached from outside, and all see the same disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

APART = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
SETTLE = """\
hostname "$0"
mkdir -p /tmp/ray
for own in /tmp/ray /dev/shm; do mount -t tmpfs none $own; done
exec "$@"
"""
"""Ray keeps the address of the latest cluster in /tmp/ray, and takes every process that it sees for its. The
names in /dev/shm have process ids in them, which begin anew in each machine."""


@dataclass(frozen=True)
class Machine:
    """One of them."""

    name: str
    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """The words, run in its network, seeing all processes."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *words]

    def apart(self, *words: str) -> list[str]:
        """The words, run there as the first of its processes; with it all others end."""
        return self.command(*APART, "bash", "-c", SETTLE, self.name, *words)


def why_not() -> str | None:
    """What is missing for namespaces; asked by trying."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return "namespaces need root and `ip`"
    namespace = f"ludus-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", namespace], capture_output=True, text=True)
    if made.returncode:
        return f"no namespaces here: {made.stderr.strip()}"
    tried = subprocess.run(Machine("try", namespace, "").apart("true"), capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", namespace], check=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


@contextmanager
def machines(names: Sequence[str], net: int) -> Iterator[list[Machine]]:
    """At 10.231.NET.1 and so on; the first has the switch."""
    mark = f"lu{os.getpid()}"
    found = [Machine(name, f"{mark}-{name}", f"10.231.{net}.{number}") for number, name in enumerate(names, 1)]
    first = found[0].namespace
    try:
        for machine in found:
            _ip("netns", "add", machine.namespace)
            _ip("-n", machine.namespace, "link", "set", "lo", "up")
        _ip("-n", first, "link", "add", "switch", "type", "bridge")
        _ip("-n", first, "addr", "add", f"{found[0].address}/24", "dev", "switch")
        _ip("-n", first, "link", "set", "switch", "up")
        for machine in found[1:]:
            _ip("link", "add", machine.name, "netns", first, "type", "veth",
                "peer", "name", "cable", "netns", machine.namespace)  # fmt: skip
            _ip("-n", first, "link", "set", machine.name, "master", "switch", "up")
            _ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", "cable")
            _ip("-n", machine.namespace, "link", "set", "cable", "up")
        yield found
    finally:
        for machine in found:
            subprocess.run(["ip", "netns", "delete", machine.namespace], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
