"""A person plays against a run that is training: its process records the game, and trains on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from played_runs import folded

from ludus.data.records import MatchFinished, MatchIssued
from ludus.store.run_folder import RunFolder

SETTINGS = (
    "budget=1000000000", "actor.num_tables=32", "actor.matches=2", "actor.episodes_per_table=4",
    "learner.batch_size=1000", "checkpoint_every=2000", "evaluation.episodes=32", "model.hidden=16",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_the_process_that_trains_records_the_game(tmp_path: Path, runtime: str) -> None:
    program = [sys.executable, "-m", "ludus.cli.main"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    chosen = [part for setting in (f"runtime={runtime}", *SETTINGS) for part in ("--set", setting)]
    start = [*program, "train", "kuhn", "--run", "mine", "--json", *chosen]
    with subprocess.Popen(start, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as training:
        try:
            assert training.stdout is not None
            while json.loads(training.stdout.readline()).get("decisions", 0) < 4000:
                pass
            play = [*program, "play", "mine", "main.1", "--terminal", "--seat", "0", "--as", "ann"]
            done = subprocess.run(
                play, cwd=tmp_path, env=environment, input="bet\nbet\n", capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            assert "recorded as match " in done.stdout
            before = json.loads(training.stdout.readline())["decisions"]
            while json.loads(training.stdout.readline())["decisions"] <= before:
                pass  # it goes on
        finally:
            training.send_signal(signal.SIGTERM)
            training.communicate(timeout=120)
    assert training.returncode == 130

    folder = RunFolder.open(tmp_path / "mine")
    with folder.ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
    [human] = [event.match for event in events if isinstance(event, MatchIssued) and event.match.purpose == "human"]
    assert [side.players for side in human.sides] == [("ann",), ("main.1",)]
    ends = [event for event in events if isinstance(event, MatchFinished) and event.result.match_id == human.id]
    assert len(ends) == 1
    issued = [event.match.id for event in events if isinstance(event, MatchIssued)]
    assert issued == [*range(1, len(issued) + 1)], "no number is used twice or left out"
    assert folded(folder).payoffs.human.counts(["ann", "main.1"])[0].sum() == 2
    resumed = subprocess.run(
        [*program, "train", "--run", "mine", "--resume", "--quiet", "--set", "budget=1"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
