"""What the slow tests of launchers share: a clean environment, patience, and what the ledger must say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from namespaces import Machine

from ludus.data.records import MatchFinished, MatchIssued, MatchVoid, RunStarted
from ludus.store.run_folder import RunFolder

PROGRAMS = str(Path(sys.executable).parent)


def without_tokens() -> dict[str, str]:
    """An environment and a home in which nobody knows a token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "LUDUS_TOKEN"))}
    return kept | {"HOME": "/nonexistent", "PYTHONUNBUFFERED": "1"}


def wait_until(true: Callable[[], bool], what: str, most_s: float = 240.0) -> None:
    until = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < until, f"not within {most_s} s: {what}"
        time.sleep(0.3)


def wait_empty(machine: Machine) -> None:
    """Until nothing runs in a namespace."""

    def is_empty() -> bool:
        words = ["ip", "netns", "pids", machine.namespace]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() == []

    wait_until(is_empty, f"nothing is left at {machine.name}")


def check_ledger(run: Path, starts: int) -> None:
    """Every match has one end, across all starts."""
    with RunFolder.open(run).ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
    issued = [event.match.id for event in events if isinstance(event, MatchIssued)]
    ends = [event.result.match_id for event in events if isinstance(event, MatchFinished)]
    ends += [event.match_id for event in events if isinstance(event, MatchVoid)]
    assert sorted(issued) == sorted(ends) == sorted(set(issued))
    assert sum(isinstance(event, RunStarted) for event in events) == starts
