"""Faults of workers: what happened, to which worker, and what was done about it. Each is one row of a file."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ludus.data.records import PlayerAbsent, PlayerReturned
from ludus.data.trees import Array
from ludus.store.run_folder import MetricsFile
from ludus.system.process import WorkerProcess
from ludus.system.text import shortened
from ludus.workers.config import Supervision
from ludus.workers.messages import OTHER_CODE
from ludus.workers.worker import TrainingFailed

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that somebody else sends. A worker ended by one has not failed and is always started again."""
LONGEST_REASON = 400
LAST_WORDS_S = 1.0
"""A worker that has closed its connection is about to end: its exit code says why."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of a worker."""

    kind: str
    """killed, env_crash, env_hang, game_lost, worker_crash, worker_hang, diverged, damaged_model, disk,
    models_unreachable, node_lost, ..."""
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shortened(self.reason))

    @property
    def own(self) -> bool:
        """The worker's own failure: one that fails again and again is given up."""
        return self.kind not in ("killed", "damaged_model", "models_unreachable", "node_lost")

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
        self._unrestored: set[Path] = set()

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

    def note_frozen(self, events: Iterable[PlayerAbsent | PlayerReturned]) -> None:
        """Frozen players whose weights cannot be read, or can be read again."""
        for event in events:
            if isinstance(event, PlayerAbsent):
                self.note(Fault("damaged_model", event.reason), event.player, "absent until its weights can be read")
            else:
                self.note(Fault("model_returned", "its weights can be read again"), event.player, "plays again")

    def restore(self, *others: MetricsFile) -> list[str]:
        """Write this file and others again if they were removed; notes and returns what was lost and done. What cannot
        be written again is told once."""
        told = []
        for file in (self._file, *others):
            then = "it was written again, with its rows"
            try:
                if not file.restore():
                    continue
            except OSError as error:
                if file.path in self._unrestored:
                    continue
                self._unrestored.add(file.path)
                then = f"it cannot be written again: {error}"
            fault = Fault("disk", f"{file.path} was removed while the run was using it")
            self.note(fault, "controller", then)
            told.append(f"{fault.reason}; {then}")
        return told

    def close(self) -> None:
        self._file.close()


START_UP_S = 120.0
"""How long a worker may take from its start to its first sign of life: imports, networks, a checkpoint."""
NAP_S = 2.0
"""The controller looks several times a second. A longer gap was its own pause: it wrote a checkpoint, was
stopped, or the machine slept; workers that waited for it could not show life meanwhile."""
SILENT_S = 1.0
"""Workers that have been silent for longer are watched: they may hang, or wait for a processor."""


@dataclass
class WorkerSlot:
    """A slot for an actor or a helper; processes come and go."""

    name: str
    index: int
    """Its number in shared memory."""
    taken: bool = False
    """A worker runs here or is to be started; other slots get no match, no memory and no start."""
    leave_by: float | None = None
    """Its actor gets no more matches; those that it has not ended by then (monotonic) are void."""
    given_up: bool = False
    """Its actor has failed too often."""
    process: WorkerProcess | None = None
    attempts: int = 0
    failures: int = 0
    """Own failures since it last finished a match and something was learned."""
    learned_at_failure: int = 0
    start_at: float = 0.0
    """Not before this time (monotonic) is it started again."""
    started: float = 0.0
    """When its process was started (Unix time)."""

    def failed(self, rules: Supervision, decisions: int) -> None:
        """Count a failure; the next start waits twice as long as the one before. `decisions`: learned from
        so far."""
        self.failures += 1
        self.learned_at_failure = decisions
        self.start_at = time.monotonic() + rules.back_off_s * 2 ** (self.failures - 1)

    def clear(self) -> None:
        """Its worker has left for good."""
        self.taken, self.leave_by, self.start_at, self.failures = False, None, 0.0, 0

    def forgive(self, decisions: int) -> None:
        """A match was finished. A worker that fails again and again before anything is learned from its
        matches is not working, however many it finishes."""
        if decisions > self.learned_at_failure:
            self.failures = 0


class Heartbeats:
    """How long workers have been silent, by the times that they write into shared memory. The time that a worker of
    this machine waits for a processor does not count: on a crowded machine, one update may take minutes."""

    def __init__(self, times: Array, hung_after_s: float) -> None:
        self._times = times
        self._hung_after_s = hung_after_s
        self._looked = self._awake_since = time.monotonic()
        self._pids: dict[int, int] = {}
        self._queued: dict[int, tuple[float, float]] = {}
        """By silent worker: since when, and the seconds that it had waited for a processor by then."""

    def started(self, worker: int) -> None:
        """A process that is about to start is given time to show its first sign."""
        grace = max(0.0, START_UP_S - self._hung_after_s)
        self._times[worker] = time.monotonic() + grace
        self._pids.pop(worker, None)

    def runs_as(self, worker: int, pid: int) -> None:
        """The worker is this process of this machine."""
        self._pids[worker] = pid
        self._queued[worker] = (self._since(worker), queued_s(pid))

    def look(self) -> None:
        """Call it in every round."""
        now = time.monotonic()
        if now - self._looked > NAP_S:
            self._awake_since = now
        self._looked = now
        for worker, pid in self._pids.items():
            since = self._since(worker)
            if now - since > SILENT_S and self._queued[worker][0] != since:
                self._queued[worker] = (since, queued_s(pid))

    def last(self, worker: int) -> float:
        return float(self._times[worker])

    def is_hung(self, worker: int) -> bool:
        return self._looked - self._since(worker) > self._hung_after_s and self.silence(worker) > self._hung_after_s

    def silence(self, worker: int) -> float:
        """Seconds that the worker has been silent for, without those that it waited for a processor."""
        since = self._since(worker)
        starved = 0.0
        if worker in self._pids and self._queued[worker][0] == since:
            starved = queued_s(self._pids[worker]) - self._queued[worker][1]
        return self._looked - since - max(0.0, starved)

    def _since(self, worker: int) -> float:
        return max(float(self._times[worker]), self._awake_since)


def queued_s(pid: int) -> float:
    """Seconds that the main thread of a process has waited for a processor; 0 if the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0
