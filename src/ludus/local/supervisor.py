"""Who is alive: the places of the actors, and signs of life that do not blame others for our own pauses."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ludus.data.trees import Array
from ludus.runtime.process import WorkerProcess
from ludus.runtime.supervision import Supervision

START_UP_S = 120.0
"""How long a worker may take from its start to its first sign of life: imports, networks, a checkpoint."""
NAP_S = 2.0
"""The controller looks several times a second. A longer gap was its own pause: it wrote a checkpoint, was
stopped, or the machine slept; meanwhile nobody who waited for it could show life."""


@dataclass
class WorkerPlace:
    """A place for an actor or the policy worker; processes come and go."""

    name: str
    index: int
    """Its number in shared memory."""
    taken: bool = False
    """Somebody works here, or is started again; no match, no memory and no start for others."""
    leave_by: float | None = None
    """Its actor gets no more matches; those that it has not ended by then (monotonic) are void."""
    given_up: bool = False
    """Its actor has failed too often."""
    process: WorkerProcess | None = None
    attempts: int = 0
    failures: int = 0
    """Of its own, since it last finished a match and something was learned."""
    learned_at_failure: int = 0
    start_at: float = 0.0
    """Not before this time (monotonic) is it started again."""
    started: float = 0.0
    """When its process was (Unix time)."""

    def failed(self, rules: Supervision, decisions: int) -> None:
        """Count a failure; the next start waits twice as long as the one before. `decisions`: learned from
        so far."""
        self.failures += 1
        self.learned_at_failure = decisions
        self.start_at = time.monotonic() + rules.back_off_s * 2 ** (self.failures - 1)

    def empty(self) -> None:
        """Nobody works here any more."""
        self.taken, self.leave_by, self.start_at, self.failures = False, None, 0.0, 0

    def forgive(self, decisions: int) -> None:
        """A match was finished. A worker that fails again and again before anything is learned from its
        matches is not working, however many it finishes."""
        if decisions > self.learned_at_failure:
            self.failures = 0


class SignsOfLife:
    """How long workers have been silent, by the hearts that they keep in shared memory."""

    def __init__(self, hearts: Array, hung_after_s: float) -> None:
        self._hearts = hearts
        self._hung_after_s = hung_after_s
        self._looked = self._awake_since = time.monotonic()

    def started(self, worker: int) -> None:
        """A process that has just been started is given time to show its first sign."""
        grace = max(0.0, START_UP_S - self._hung_after_s)
        self._hearts[worker] = time.monotonic() + grace

    def look(self) -> None:
        """Call it in every round."""
        now = time.monotonic()
        if now - self._looked > NAP_S:
            self._awake_since = now
        self._looked = now

    def last_sign(self, worker: int) -> float:
        return float(self._hearts[worker])

    def is_hung(self, worker: int) -> bool:
        since = max(float(self._hearts[worker]), self._awake_since)
        return self._looked - since > self._hung_after_s
