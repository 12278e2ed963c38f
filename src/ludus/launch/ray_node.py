"""One node of a Ray cluster as a child of this process: started in the foreground, ended with it, and nothing
else touched (`ray stop` would end every Ray of the machine)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ludus.system.process import end_with_parent

STARTED = "Ray runtime started"
"""Ray prints it when a node is up."""
TOO_SLOW = "timed out during startup"
"""And this when it has taken more than the 30 s that Ray allows, as on a machine with much else to do."""
TRIES = 3
LAST_WORDS = 12
GRACE_S = 20.0
"""Ray ends its own processes within this time, or is killed."""


class NodeStartError(RuntimeError):
    """The node did not come up."""


def head_command(programs: str, address: str, port: int, places: Mapping[str, int]) -> list[str]:
    """The first node, which the others join."""
    return [
        *(str(Path(programs) / "ray"), "start", "--head", "--node-ip-address", address),
        *("--port", str(port), "--include-dashboard", "false", *_common(places)),
    ]


def join_command(programs: str, head: str, places: Mapping[str, int], own: str | None) -> list[str]:
    """A further node. `own` is its address, where the one that leads to the head is not meant."""
    words = [str(Path(programs) / "ray"), "start", "--address", head]
    if own is not None:
        words += ["--node-ip-address", own]
    return [*words, *_common(places)]


def _common(places: Mapping[str, int]) -> list[str]:
    return ["--resources", json.dumps(dict(places)), "--disable-usage-stats", "--block"]


def start_node(command: list[str], environment: Mapping[str, str], stopped: Callable[[], bool]) -> RayNode:
    """A node that is part of a cluster, unless somebody has `stopped` us meanwhile; raises `NodeStartError`
    if it does not come to that."""
    for last in (*(False,) * (TRIES - 1), True):
        node = RayNode(command, environment)
        try:
            node.wait_up(stopped)
            return node
        except NodeStartError as error:
            node.end()
            if last or stopped() or TOO_SLOW not in str(error):
                raise
    raise AssertionError("the last try returns or raises")


class RayNode:
    """A node that lives until it is ended, its cluster ends, or this process does."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for us
            preexec_fn=end_with_parent,
            env={**environment, "RAY_DISABLE_IMPORT_WARNING": "1", "NO_COLOR": "1"},
        )
        self._said: deque[str] = deque(maxlen=LAST_WORDS)
        self._up = threading.Event()
        self._over = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip():
                self._said.append(line.rstrip())
            if STARTED in line:
                self._up.set()
        self._process.wait()
        self._over.set()
        self._up.set()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def wait_up(self, stopped: Callable[[], bool]) -> None:
        """Until it is part of a cluster; raises `NodeStartError` with Ray's last words if that fails."""
        while not self._up.wait(0.2) and not stopped():
            pass
        if self._over.is_set():
            if any("InvalidAuthToken" in line for line in self._said):
                raise NodeStartError("the cluster does not take this token; it has another one")
            words = "\n  ".join(self._said) or "(nothing)"
            raise NodeStartError(f"Ray does not start. Its last words:\n  {words}")

    def wait_over(self, most_s: float) -> bool:
        return self._over.wait(most_s)

    def end(self) -> None:
        """Ray's processes of this node, and no others."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        if not self._over.wait(GRACE_S):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def wait_for_head(head: str, patience_s: float, stopped: Callable[[], bool]) -> None:
    """Until somebody listens at HOST:PORT; raises `NodeStartError` after the time."""
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


ACTOR_PLACES, LEARNER_PLACES = "ludus_actor", "ludus_learner"
"""What a node offers to Ray: places for actors, and one for the learner."""


@dataclass(frozen=True, kw_only=True)
class TrainingCommand:
    """What to train, and where it is kept."""

    experiment: str
    """Recipe, FILE.py:NAME or FILE.yaml."""
    run: str
    settings: tuple[str, ...] = ()

    def words(self, *, runtime: str, address: str | None = None) -> list[str]:
        words = ["ludus", "train", self.experiment, "--run", self.run, "--resume-or-start"]
        words += ["--runtime", runtime]
        if address is not None:
            words += ["--address", address]
        for setting in self.settings:
            words += ["--set", setting]
        return words

    @property
    def file(self) -> Path | None:
        """The user's own file that the experiment is in, if it is one."""
        place, _, _ = self.experiment.rpartition(":")
        for name in (place, self.experiment):
            if name.endswith((".py", ".yaml", ".yml")):
                return Path(name)
        return None


def job_name(text: str) -> str:
    """Small letters, digits and dashes, as schedulers and DNS want them."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-") or "ludus"


def places(workers: int, *, learner: bool) -> dict[str, int]:
    """The resources of a node with this many actors."""
    offered = {ACTOR_PLACES: workers} if workers else {}
    return offered | ({LEARNER_PLACES: 1} if learner else {})


def beside(run: str | os.PathLike[str], ending: str) -> Path:
    """A file of the job: next to the run folder, which is the run's alone."""
    run = Path(run)
    return run.with_name(run.name + ending)
