"""What it costs that actors count where their time goes: looks at the clock and notes in shared memory
of one step, against the step itself. CPU time, one thread, best of several windows.

python benchmarks/time_keeping.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tempfile
import time
from pathlib import Path

import numpy as np
from _best import WINDOWS
from _report import parser, write

from ludus.config import encode
from ludus.experiment import Experiment
from ludus.recipes import connect_four, kuhn, skirmish
from ludus.runtime.actor_process import Stopwatch
from ludus.runtime.serial import serial_training
from ludus.runtime.shared_parts import ACTOR_TIMES
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import StepTimes

LOOKS = 10_000
STEPS = 100


def note_seconds() -> float:
    """One step's worth: refresh, decisions, game and a reset are timed, then noted."""
    times = StepTimes()
    watch = Stopwatch(np.zeros(len(ACTOR_TIMES)), times)
    best = float("inf")
    for _ in range(WINDOWS):
        began = time.process_time()
        for _ in range(LOOKS):
            for _ in range(2):
                before = time.monotonic()
                times.inference += time.monotonic() - before
                before = time.monotonic()
                times.game += time.monotonic() - before
            watch.stepped()
        best = min(best, (time.process_time() - began) / LOOKS)
    return best


def step_seconds(experiment: Experiment) -> float:
    """One step of an actor with the recipe's own tables and network."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", encode(experiment), seed=0, command=())
        training = serial_training(experiment, run)
        actor = training.workers.actor
        actor.hand_over_after = None
        best = float("inf")
        for _ in range(WINDOWS):
            began, made = time.process_time(), 0
            while made < STEPS and actor.recorder.has_room:
                actor.step()
                made += 1
            training.learner.discard()
            if made:
                best = min(best, (time.process_time() - began) / made)
        training.close()
    return best


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--no-report", action="store_true", help="Only print it.")
    keep = not options.parse_args().no_report
    note = note_seconds()
    rows = []
    for recipe in (kuhn, connect_four, skirmish):
        experiment = recipe.experiment()
        step = step_seconds(experiment)
        tables = experiment.actor.num_tables
        rows.append(
            [experiment.name, str(tables), f"{step * 1e6:,.0f} us", f"{note * 1e6:.1f} us", f"{note / step:.2%}"]
        )
    columns = ["recipe", "tables", "a step of the actor", "keeping time", "share"]
    write("time-keeping", "Where actors spend their time", [("Cost", columns, rows)], keep=keep)


if __name__ == "__main__":
    main()
