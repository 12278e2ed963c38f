"""Runs on Ray clusters of this machine, as a person starts them, and a look at what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ludus.config import encode
from ludus.data.records import MatchFinished, MatchIssued, MatchVoid, ModelId
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.runtime.assemble import load_experiment, new_league
from ludus.store.run_folder import RunFolder, read_metrics

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="pip install -e '.[ray]'")


class RayRun:
    """`ludus train --resume`, whose numbers can be waited for."""

    def __init__(
        self, path: Path, *options: str, environment: Mapping[str, str] | None = None, inside: Sequence[str] = ()
    ) -> None:
        """`inside`: what the command begins with."""
        program = [*inside, sys.executable, "-m", "ludus.cli.main", "train", "--run", str(path), "--resume", "--json"]
        self.path = path
        with (path / "stderr.txt").open("w") as errors:
            self.process = subprocess.Popen(
                [*program, *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=None if environment is None else dict(environment),
            )
        self.last: dict[str, Any] = {}

    def until(self, reached: Callable[[dict[str, Any]], bool], most_s: float = 150.0) -> dict[str, Any]:
        """Reads its lines until one is as wanted."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(most_s, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                self.last = json.loads(line)
                if reached(self.last):
                    return self.last
        finally:
            watchdog.cancel()
            watchdog.join()
        raise AssertionError(
            f"the run has ended, or was given up after {most_s:.0f} s; at last {self.last}; "
            f"{(self.path / 'stderr.txt').read_text()[-3000:]}"
        )

    def interrupt(self) -> None:
        """As a terminal does it: everybody in the foreground gets the signal."""
        os.killpg(self.process.pid, signal.SIGINT)

    def learned(self, more: int = 1) -> dict[str, Any]:
        wanted = self.last.get("decisions", 0) + more
        return self.until(lambda numbers: numbers.get("decisions", 0) >= wanted)

    def end(self, most_s: float = 150.0) -> int:
        """Until it ends by itself."""
        out, _ = self.process.communicate(timeout=most_s)
        if out.strip():
            self.last = json.loads(out.splitlines()[-1])
        return self.process.returncode


@contextmanager
def ray_run(
    path: Path,
    described: Experiment,
    *options: str,
    environment: Mapping[str, str] | None = None,
    inside: Sequence[str] = (),
) -> Iterator[RayRun]:
    RunFolder.create(path, encode(described), seed=0, command=())
    run = RayRun(path, *options, environment=environment, inside=inside)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()
        assert run.process.stdout is not None
        run.process.stdout.close()


def check_run(path: Path, *, open_matches: bool = False) -> League:
    """Every issued match has exactly one end, or is open; the fold works; every frozen model opens."""
    folder = RunFolder.open(path)
    league = new_league(load_experiment(folder))
    issued: Counter[int] = Counter()
    ends: Counter[int] = Counter()
    with folder.ledger(read_only=True) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
            if isinstance(event, MatchIssued):
                issued[event.match.id] += 1
            elif isinstance(event, MatchFinished):
                ends[event.result.match_id] += 1
            elif isinstance(event, MatchVoid):
                assert event.reason
                ends[event.match_id] += 1
    assert set(issued.values()) == {1}
    assert set(ends.values()) <= {1}
    assert ends.keys() <= issued.keys()
    assert issued.keys() - ends.keys() == set(league.matches.open_matches)
    assert open_matches or not league.matches.open_matches
    for player in league.candidates.frozen():
        found = league.players[player]
        folder.models.fetch(ModelId.parse(found.model or ""), found.weights)
    return league


def faults_of(path: Path) -> list[dict[str, Any]]:
    return read_metrics(path / "metrics" / "faults.jsonl")[0]


def nodes_of(path: Path) -> list[dict[str, Any]]:
    return read_metrics(path / "metrics" / "nodes.jsonl")[0]


def listeners(pids: list[int]) -> list[str]:
    """Addresses on which these processes listen for TCP, as hexadecimal IP:PORT."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.append(words[1])
    return found
