"""Work for the other cores while something is measured, for benchmarks of two sides that take turns.

On an idle virtual machine a side that waits lets its core fall asleep, and waking that takes longer than all
that is measured. In a training the other cores have work, so that they do not sleep.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

IDLE, BUSY = "On an idle machine", "With work on the other cores, as in a training"


@contextmanager
def busy() -> Iterator[None]:
    cores = len(os.sched_getaffinity(0))
    working = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores - 1)]
    try:
        yield
    finally:
        for process in working:
            process.kill()
            process.wait()
