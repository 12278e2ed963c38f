"""What a call to a service costs: one at a time, many under way, and gathered; over a unix socket and TCP on
loopback, beside a bare socket and a Ray actor (where Ray is installed).

python benchmarks/services.py                 about a minute
python benchmarks/services.py --seconds 0.2   to see that it runs; writes no report
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import importlib.util
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from _report import parser, write

from ludus import Publisher, Solver, Subscriber, UserService, service
from ludus.services.host import serving
from ludus.services.registry import FileRegistry

QUOTED_SECONDS = 3.0
UNDER_WAY = 64
"""Calls that wait for an answer at a time, where many do."""
SIZES = (("nothing", 0), ("4 kB", 4_096), ("1 MB", 2**20), ("16 MB", 2**24))
WANTED_SYNC_US = 1_000
"""About what a call of a Ray actor takes."""


class Echo:
    @service()
    def echo(self, value: Any) -> Any:
        return value

    @service(batch=UNDER_WAY, max_delay_ms=2.0)
    def gathered(self, requests: Sequence[Any]) -> Sequence[Any]:
        return requests

    @service(reply=False)
    def forget(self, value: Any) -> None:
        pass


Row = list[str]


def one_at_a_time(call: Callable[[], Any], seconds: float) -> list[float]:
    for _ in range(20):
        call()
    taken = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(taken) < 5:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return sorted(taken)


def shown(taken: Sequence[float]) -> str:
    """The median, and in brackets the quickest tenth: what it takes when nothing else runs."""
    return f"{taken[len(taken) // 2] * 1e6:,.0f} ({taken[len(taken) // 10] * 1e6:,.0f})"


def many_at_a_time(solver: Solver, method: str, value: Any, seconds: float) -> float:
    """Calls a second with `UNDER_WAY` of them waiting."""
    waiting = [solver.submit(method, value) for _ in range(UNDER_WAY)]
    done, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        waiting.pop(0).result(30)
        waiting.append(solver.submit(method, value))
        done += 1
    taken = time.perf_counter() - start
    for future in waiting:
        future.result(30)
    return done / taken


def forgotten(solver: Solver, value: Any, seconds: float) -> float:
    """Calls without a reply a second, the last of them done."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        solver.solve("forget", value)
        done += 1
    solver.solve("echo", None)  # after all of them
    return done / (time.perf_counter() - start)


def of_services(solver: Solver, wire: str, seconds: float) -> tuple[list[Row], float]:
    rows, empty = [], 0.0
    for name, size in SIZES:
        value = np.zeros(size, np.uint8) if size else None
        taken = one_at_a_time(lambda value=value: solver.solve("echo", value), seconds)
        empty = empty or taken[len(taken) // 2]
        small = size <= 4_096
        rows.append(
            [
                f"service, {wire}",
                name,
                shown(taken),
                f"{many_at_a_time(solver, 'echo', value, seconds):,.0f}" if size <= 2**20 else "",
                f"{many_at_a_time(solver, 'gathered', value, seconds):,.0f}" if small else "",
                f"{forgotten(solver, value, seconds):,.0f}" if small else "",
            ]
        )
    return rows, empty


def bare_socket(seconds: float) -> Row:
    """As many bytes as an empty call has, there and back, by blocking sockets."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        ours.close()
        while data := theirs.recv(4_096):
            theirs.sendall(data)

    other = multiprocessing.get_context("fork").Process(target=answer, daemon=True)
    other.start()
    theirs.close()

    def call() -> None:
        ours.sendall(bytes(40))
        ours.recv(4_096)

    taken = one_at_a_time(call, seconds)
    ours.close()
    other.join(5)
    return ["bare unix socket", "nothing", shown(taken), "", "", ""]


def topics(registry: FileRegistry, seconds: float) -> list[Row]:
    rows = []
    for name, size in SIZES[1:]:
        value = np.zeros(size, np.uint8)
        with Publisher(name, registry=registry) as publisher, Subscriber(name, registry=registry) as subscriber:

            def there(value: Any = value, publisher: Any = publisher, subscriber: Any = subscriber) -> None:
                version = publisher.publish(value)
                while subscriber.wait(30).version < version:
                    pass

            rows.append([name, shown(one_at_a_time(there, seconds))])
    return rows


RAY = """
import os, sys, time
os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0")
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=os.urandom(32).hex())
import ray
quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
ray.init(num_cpus=1, _node_ip_address="127.0.0.1", **quiet)

@ray.remote
class Echo:
    def echo(self, value):
        return value

actor = Echo.remote()
taken, until = [], None
while until is None or time.perf_counter() < until:
    start = time.perf_counter()
    ray.get(actor.echo.remote(None))
    if until is None:
        until = time.perf_counter() + float(sys.argv[1])
    else:
        taken.append(time.perf_counter() - start)
start, done = time.perf_counter(), 0
while time.perf_counter() < start + float(sys.argv[1]):
    ray.get([actor.echo.remote(None) for _ in range(64)])
    done += 64
rate = done / (time.perf_counter() - start)
taken.sort()
print("figures", taken[len(taken) // 2], taken[len(taken) // 10], rate)
"""


def ray_actor(seconds: float) -> list[Row]:
    if importlib.util.find_spec("ray") is None:
        return [["Ray actor", "nothing", "not installed", "", "", ""]]
    done = subprocess.run([sys.executable, "-c", RAY, str(seconds)], capture_output=True, text=True, timeout=300)
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("figures")]
    if not found:
        return [["Ray actor", "nothing", f"failed: {done.stderr.strip().splitlines()[-1:]}", "", "", ""]]
    median, tenth, rate = (float(word) for word in found[0])
    return [["Ray actor", "nothing", f"{median * 1e6:,.0f} ({tenth * 1e6:,.0f})", f"{rate:,.0f}", "", ""]]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=QUOTED_SECONDS, help="for each figure")
    arguments.add_argument("--no-ray", action="store_true")
    options = arguments.parse_args()
    seconds = options.seconds
    rows = [bare_socket(seconds)]
    published: list[Row] = []
    medians = []
    services = {
        "echo": UserService(address=f"{__file__}:Echo"),
        "topics": UserService(address="ludus.services.topics:Topics"),
    }
    for wire, host in (("unix socket", ""), ("TCP", "127.0.0.1")):
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(services, folder, host) as registry,
            Solver("echo", registry=registry) as solver,
        ):
            found, empty = of_services(solver, wire, seconds)
            rows += found
            medians.append(f"{wire} {empty * 1e6:,.0f} us")
            published += [[wire, *row] for row in topics(registry, seconds)]
    if not options.no_ray:
        rows += ray_actor(seconds)
    write(
        "services",
        "What a call to a service costs",
        [
            (
                "Calls",
                [
                    "way",
                    "value, there and back",
                    "one at a time, us: median (quickest tenth)",
                    f"a second, {UNDER_WAY} under way",
                    f"a second, {UNDER_WAY} under way, gathered",
                    "a second, no reply",
                ],
                rows,
            ),
            (
                "Topics: published, until a subscriber has it",
                ["wire", "value", "us: median (quickest tenth)"],
                published,
            ),
        ],
        facts={"one empty call": ", ".join(medians), "wanted": f"below {WANTED_SYNC_US:,} us, a call of a Ray actor"},
        keep=seconds >= QUOTED_SECONDS,
    )


if __name__ == "__main__":
    main()
