"""A node of a Ray cluster as a child of this process. It runs in the foreground and ends with this process; `ray stop`,
which would end every Ray of the machine, is never called."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ludus.system.process import PIPE, ChildProcess, OutputReader

STARTED = b"Ray runtime started"
"""Ray prints it when a node is up."""
TOO_SLOW = "timed out during startup"
"""Ray prints it when a start takes more than 30 s, as on a busy machine."""
TRIES = 3
LAST_WORDS = 12
GRACE_S = 20.0
"""Ray ends its own processes within this time, or is killed."""


class NodeStartError(RuntimeError):
    """The node did not come up."""


def head_command(programs: str, address: str, port: int, resources: Mapping[str, int]) -> list[str]:
    """The command of the first node, which the others join."""
    return [
        *(str(Path(programs) / "ray"), "start", "--head", "--node-ip-address", address),
        *("--port", str(port), "--include-dashboard", "false", *_common(resources)),
    ]


def join_command(programs: str, head: str, resources: Mapping[str, int], own: str | None) -> list[str]:
    """The command of a further node. `own`: its address; None: the one that leads to the head."""
    words = [str(Path(programs) / "ray"), "start", "--address", head]
    if own is not None:
        words += ["--node-ip-address", own]
    return [*words, *_common(resources)]


def _common(resources: Mapping[str, int]) -> list[str]:
    return ["--resources", json.dumps(dict(resources)), "--disable-usage-stats", "--block"]


def start_node(command: list[str], environment: Mapping[str, str], stopped: Callable[[], bool]) -> RayNode:
    """Start a node and wait until it is part of a cluster, or `stopped` returns True. Raises `NodeStartError`."""
    tries = 0
    while True:
        tries += 1
        node = RayNode(command, environment)
        try:
            node.wait_up(stopped)
            return node
        except NodeStartError as error:
            node.end()
            if tries == TRIES or stopped() or TOO_SLOW not in str(error):
                raise


class RayNode:
    """A node that lives until it is ended, its cluster ends, or this process does."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._up = threading.Event()
        self._process = ChildProcess(
            command,
            stdout=PIPE,
            environment={**environment, "RAY_DISABLE_IMPORT_WARNING": "1", "NO_COLOR": "1"},
            with_parent=True,
        )
        self._output = OutputReader(self._process.stdout, self._take, LAST_WORDS)

    def _take(self, line: bytes) -> None:
        if STARTED in line:
            self._up.set()

    @property
    def is_over(self) -> bool:
        return self._process.exit_code is not None

    def wait_up(self, stopped: Callable[[], bool]) -> None:
        """Wait until it is part of a cluster. Raises `NodeStartError` with Ray's last words if it ends before."""
        while not self._up.wait(0.2) and not self.is_over and not stopped():
            pass
        if self.is_over:
            self._output.join()
            words = self._output.last_words
            if any("InvalidAuthToken" in line for line in words):
                raise NodeStartError("the cluster does not take this token; it has another one")
            raise NodeStartError("Ray does not start. Its last words:\n  " + ("\n  ".join(words) or "(nothing)"))

    def end(self) -> None:
        """End Ray's processes of this node, and no others."""
        self._process.end(GRACE_S)


def wait_for_head(head: str, patience_s: float, stopped: Callable[[], bool]) -> None:
    """Wait until a server listens at HOST:PORT. Raises `NodeStartError` after `patience_s`."""
    host, _, port = head.rpartition(":")
    until = time.monotonic() + patience_s
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
                return
        except OSError as error:
            if stopped() or time.monotonic() > until:
                raise NodeStartError(f"nobody answers at {head} ({error.strerror or error})") from error
        time.sleep(0.5)


ACTOR_RESOURCE, LEARNER_RESOURCE = "ludus_actor", "ludus_learner"
"""Resources that a node offers to Ray: one per actor that it takes, and one for the learner."""


@dataclass(frozen=True, kw_only=True)
class TrainingCommand:
    """The `ludus train` of a job."""

    experiment: str
    """Recipe, FILE.py:NAME or FILE.yaml."""
    run: str
    settings: tuple[str, ...] = ()
    trial: str | None = None

    def words(self, *, runtime: str, address: str | None = None) -> list[str]:
        words = ["ludus", "train", self.experiment, "--run", self.run, "--resume-or-start"]
        words += ["--runtime", runtime]
        if address is not None:
            words += ["--address", address]
        if self.trial is not None:
            words += ["--trial", self.trial]
        for setting in self.settings:
            words += ["--set", setting]
        return words

    @property
    def file(self) -> Path | None:
        """The file of the experiment, if it is in one of the user's."""
        path, _, _ = self.experiment.rpartition(":")
        for name in (path, self.experiment):
            if name.endswith((".py", ".yaml", ".yml")):
                return Path(name)
        return None


def job_name(text: str) -> str:
    """Small letters, digits and dashes, as schedulers and DNS want them."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-") or "ludus"


def node_resources(workers: int, *, learner: bool) -> dict[str, int]:
    """The resources of a node with this many actors."""
    offered = {ACTOR_RESOURCE: workers} if workers else {}
    return offered | ({LEARNER_RESOURCE: 1} if learner else {})


def job_file(run: str | os.PathLike[str], ending: str) -> Path:
    """The path of a file of the job: next to the run folder, which belongs to the run alone."""
    run = Path(run)
    return run.with_name(run.name + ending)
