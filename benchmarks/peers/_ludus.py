"""A Ludus training in a fresh process, measured in windows."""

from __future__ import annotations

import argparse
import cProfile
import os
import signal
import tempfile
from dataclasses import replace
from typing import Any

import _windows
from _windows import Windows

from ludus.config import encode
from ludus.experiment import Experiment
from ludus.runtime.coordinator import Training
from ludus.runtime.processes import local_training
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder

ASYNC: dict[str, Any] = {"schedule": "async", "max_lag": 1}
"""Settings of the learner in the local runtime: it trains on one batch while the actor plays the next."""
ENDLESS = 10**12
"""Decisions that no window reaches: nothing ends, is saved or is frozen while it is measured."""


def parser(description: str | None, tables: int) -> argparse.ArgumentParser:
    arguments = _windows.parser(description)
    arguments.add_argument("--runtime", choices=("serial", "local"), default="serial")
    arguments.add_argument("--tables", type=int, default=tables)
    arguments.add_argument("--profile", metavar="FILE", help="where the time of the main process goes")
    return arguments


def run(experiment: Experiment, arguments: argparse.Namespace) -> None:
    """Train until the windows are full."""
    if arguments.runtime == "local":
        experiment = replace(experiment, runtime="local", learner=replace(experiment.learner, **ASYNC))
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder.create(path, encode(experiment), seed=experiment.seed)
        training: Training = (
            local_training(experiment, folder, num_actors=1)
            if arguments.runtime == "local"
            else serial_training(experiment, folder)
        )
        windows = Windows(arguments)

        def watch(training: Training) -> None:
            if not windows.note(int(training.numbers()["decisions"])):
                os.kill(os.getpid(), signal.SIGTERM)  # asks for an end in good order

        profile = cProfile.Profile()
        try:
            if arguments.profile:
                profile.runcall(training.run, watch)
                profile.dump_stats(arguments.profile)
            else:
                training.run(watch)
        finally:
            training.close()
