"""`ludus join` and the node that it starts, with a real Ray between two network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from launched_runs import PROGRAMS, wait_empty, wait_until, without_tokens
from namespaces import Machine, machines, why_not

from ludus.launch.ray_node import head_command, node_resources
from ludus.system.network import with_token

pytest.importorskip("ray", reason="pip install -e '.[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

TOKEN = "0123456789abcdef" * 4
NODES = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
for node in ray.nodes():
    if node["Alive"]:
        print(node["NodeManagerAddress"], *sorted(k for k in node["Resources"] if k.startswith("ludus")))
"""


@contextmanager
def started(
    machine: Machine, *words: str, environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            machine.command(*words),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)


def nodes(machine: Machine, head: str) -> list[str]:
    asked = machine.command(sys.executable, "-c", NODES, head)
    done = subprocess.run(asked, env=with_token(without_tokens(), TOKEN), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@contextmanager
def cluster(tmp_path: Path) -> Iterator[tuple[Machine, Machine, str, subprocess.Popen[bytes]]]:
    """Two machines, the head at the first."""
    with machines(("head", "node"), net=77) as (first, second):
        log = tmp_path / "head.log"
        words = head_command(PROGRAMS, first.address, 6379, node_resources(0, learner=True))
        again = ("bash", "-c", 'for try in 1 2 3; do "$@" && break; done', "head")  # Ray is impatient
        environment = with_token(without_tokens(), TOKEN)
        with started(first, *again, *words, environment=environment, log=log) as head:
            wait_until(lambda: "Ray runtime started" in log.read_text(), "the head starts")
            yield first, second, f"{first.address}:6379", head


def test_a_node_joins_and_leaves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ludus = f"{PROGRAMS}/ludus"
    with cluster(tmp_path) as (first, second, head, head_process):
        # Who knows no token, or another one, is not let in, and is told so.
        refused = subprocess.run(
            second.command(ludus, "join", head), env=without_tokens(), capture_output=True, text=True
        )
        assert refused.returncode == 2
        assert "no token" in refused.stderr
        stranger = without_tokens() | {"LUDUS_TOKEN": "another"}
        refused = subprocess.run(second.command(ludus, "join", head), env=stranger, capture_output=True, text=True)
        assert refused.returncode == 1
        assert "does not take this token" in refused.stderr
        wait_empty(second)

        # Ctrl-C: only this node goes.
        log = tmp_path / "first.log"
        known = without_tokens() | {"LUDUS_TOKEN": TOKEN}
        with started(second, ludus, "join", head, "--workers", "3", environment=known, log=log) as joined:
            wait_until(lambda: "part of the cluster" in log.read_text(), "the node joins")
            assert nodes(first, head) == [f"{first.address} ludus_learner", f"{second.address} ludus_actor"]
            joined.send_signal(signal.SIGINT)
            assert joined.wait(120) == 130
        wait_empty(second)
        assert head_process.poll() is None

        # The end of the input, as when ssh is gone; the token came by it.
        log = tmp_path / "second.log"
        words = (ludus, "join", head, "--role", "learner", "--workers", "0", "--token-file", "-")
        with started(second, *words, environment=without_tokens(), log=log) as joined:
            assert joined.stdin is not None
            joined.stdin.write(TOKEN.encode() + b"\n")
            joined.stdin.flush()
            wait_until(lambda: "part of the cluster" in log.read_text(), "the node joins")
            joined.stdin.close()
            assert joined.wait(120) == 0
        wait_empty(second)

        # Killed without a word.
        log = tmp_path / "third.log"
        with started(second, ludus, "join", head, "--workers", "1", environment=known, log=log) as joined:
            wait_until(lambda: "part of the cluster" in log.read_text(), "the node joins")
            joined.kill()
            wait_empty(second)

        # The end of the cluster.
        log = tmp_path / "fourth.log"
        with started(second, ludus, "join", head, "--workers", "1", environment=known, log=log) as joined:
            wait_until(lambda: "part of the cluster" in log.read_text(), "the node joins")
            os.killpg(head_process.pid, signal.SIGTERM)
            assert joined.wait(300) == 0
            assert "has ended" in log.read_text()
        wait_empty(second)
        wait_empty(first)
