"""A serial run that is killed at an exact place: `dying_runs.py RUN PLACE`. Acknowledged results are noted
beside the run."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from ludus.data.records import MatchFinished, PlayerReset, Result
from ludus.runtime.assemble import load_experiment
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.run_folder import RunFolder

AFTER = 5
"""So many times the place is passed first."""


def die_at(training: Coordinator[SerialWorkers], place: str, passed: Path) -> None:
    """Makes the controller of this run die at a place."""
    controller: Any = training.controller
    ledger: Any = controller._ledger
    left = [0 if "reset" in place else AFTER]

    def die() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    append, report = ledger.append, controller.report
    learner: Any = training.learner
    reset = learner.reset

    def dying_append(events: Any) -> list[int]:
        result_in = any(isinstance(event, MatchFinished) for event in events)
        if place == "before the write" and result_in:
            die()
        if place == "between snapshot and reset" and isinstance(events[0], PlayerReset):
            die()
        if place == "between write and sync" and result_in:
            ledger._connection.set_trace_callback(lambda text: die() if text == "COMMIT" else None)
        rows: list[int] = append(events)
        if place == "after the sync" and result_in:
            die()
        return rows

    def dying_report(result: Result) -> None:
        report(result)
        with passed.open("a") as file:
            file.write(f"{result.match_id}\n")
        if place == "after the answer":
            die()

    def dying_reset(*given: Any) -> None:
        if place == "between reset and learner":
            die()
        reset(*given)

    ledger.append, controller.report, learner.reset = dying_append, dying_report, dying_reset


if __name__ == "__main__":
    folder = RunFolder.open(sys.argv[1])
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        die_at(training, sys.argv[2], folder.path.with_suffix(".acknowledged"))
        training.run()
