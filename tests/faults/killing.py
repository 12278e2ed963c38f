"""Kills processes of runs at random times, again and again, and checks each time that nothing is lost."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from invariants import check_nothing_left, check_run
from processes import command_of, descendants, wait_until, workers
from tiny_runs import kill, kill_all, started, stop

CONTROLLER, EVERYTHING, STOP = "controller", "everything", "stop"
"""What ends a life of the run: killed alone, with all its processes, or in good order."""


RAYS_OWN = re.compile("^ray::(DashboardAgent|RuntimeEnvAgent)")
"""Helpers that try for a minute to tell somebody of it when all others are dead; then they end too, as
tests/cluster/test_private_cluster.py knows."""


class Killer:
    """One run and its chances."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.kills: Counter[str] = Counter()
        self._rng = random.Random(seed)

    def live(self, victims: Sequence[str], end: str) -> None:
        """Start the run, kill workers of it in this order, then end it; then everything must hold."""
        with started(self.path) as training:
            for role in victims:
                self._let_it_run(training)
                self._kill_worker(training, role)
            self._let_it_run(training)
            assert training.poll() is None, f"the run goes on whatever is killed: {training.communicate()[1]}"
            left = descendants(training.pid)
            slow = [pid for pid in left if RAYS_OWN.search(command_of(pid))]
            if end == STOP:
                stop(training)
            else:
                self.kills[end] += 1
                kill_all((training.pid, *(left if end == EVERYTHING else ())))
                left = [pid for pid in left if pid not in slow]
        check_nothing_left(self.path, left, clean=end == STOP)
        check_run(self.path, open_matches=end != STOP)

    def _let_it_run(self, training: subprocess.Popen[str]) -> None:
        """Mostly until it has learned again since the kill before, else not even until it has started."""
        metrics = self.path / "metrics" / "train.jsonl"
        size = metrics.stat().st_size
        if self._rng.random() < 0.7:
            learned = lambda: metrics.stat().st_size > size or training.poll() is not None  # noqa: E731
            wait_until(learned, "the run to learn again")
        time.sleep(self._rng.uniform(0.0, 1.5))

    def _kill_worker(self, training: subprocess.Popen[str], role: str) -> None:
        found: list[int] = []

        def look() -> bool:
            found[:] = workers(training.pid, role)
            return bool(found)

        while True:  # one that is found may be gone a moment later, replaced for another reason
            wait_until(look, f"the {role} to be replaced")
            with suppress(ProcessLookupError):
                kill(self._rng.choice(found))
                self.kills[role] += 1
                return
