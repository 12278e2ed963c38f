"""Faults of workers: what happened, to whom, and what was done about it. Each is one visible row."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ludus.runtime.process import OTHER_CODE, WorkerProcess
from ludus.runtime.supervision import TrainingFailed
from ludus.store.metrics_file import MetricsFile

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends a process by somebody else's will. That is no failure of its own and is never given up on."""
LONGEST_REASON = 400
LAST_WORDS_S = 1.0
"""A worker that has closed its connection is about to end: its exit code says why."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What befell a worker."""

    kind: str
    """killed, env_crash, env_hang, game_lost, worker_crash, worker_hang, damaged_model, disk,
    node_lost, model_not_kept, ..."""
    reason: str

    @property
    def own(self) -> bool:
        """Its own failure: what keeps failing is not started for ever."""
        return self.kind not in ("killed", "damaged_model", "node_lost")

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"[:LONGEST_REASON]


def death_of(process: WorkerProcess, kind: str) -> Fault:
    """Why a process has ended; `kind` if it was its own doing."""
    code = process.wait_end(LAST_WORDS_S)
    if process.lost is not None:
        return Fault("node_lost", process.lost)
    if code is None:
        return Fault(kind, f"{process.name} closed its connection")
    if code == OTHER_CODE:
        raise TrainingFailed(
            f"{process.name} is of another version of ludus than this run: the installation has changed "
            "meanwhile. Stop the run and go on with --resume"
        )
    if code >= 0:
        return Fault(kind, f"{process.name} ended with exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-code}"
    return Fault("killed" if -code in FROM_OUTSIDE else kind, f"{process.name} was ended by {name}")


class FaultLog:
    """`metrics/faults.jsonl`: one row per fault, from all starts of the run."""

    def __init__(self, path: Path) -> None:
        self._file = MetricsFile(path)
        self.counts: Counter[str] = Counter()
        """Since this start, by kind."""

    def note(
        self, fault: Fault, worker: str, then: str, *, pid: int | None = None, matches: Sequence[int] = ()
    ) -> None:
        """`then`: what was done about it. A disk that is full must not hide the fault it causes."""
        self.counts[fault.kind] += 1
        with suppress(OSError):
            self._file.append(
                {
                    "time": time.time(),
                    "worker": worker,
                    "class": fault.kind,
                    "pid": pid,
                    "matches": list(matches),
                    "reason": fault.reason,
                    "then": then,
                }
            )

    def close(self) -> None:
        self._file.close()
