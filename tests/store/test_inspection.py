"""Whether the parts of a run fit together, and repairs that lose nothing more."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ludus.data.records import LearnerProgress, RunStarted
from ludus.store.inspection import (
    LedgerReading,
    fallen_back,
    inspect_run,
    latest_state,
    note_checkpoint,
    read_ledger,
    repair_ledger,
)
from ludus.store.ledger import Ledger, MissingLedger
from ludus.store.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "run", {}, seed=0, command=())
    with folder.ledger() as ledger:
        ledger.append([RunStarted(0)])
    return folder


def save(run: RunFolder, ledger: Ledger, decisions: int) -> Path:
    row, chain = ledger.position
    checkpoints = run.checkpoints("run")
    path = checkpoints.save(decisions, {"weights": np.zeros(3)}, {"events": row, "chain": chain.hex()})
    note_checkpoint(ledger, checkpoints, row, chain, decisions)
    return path


def test_a_lost_checkpoint_is_told_although_the_one_before_it_was_made_at_the_same_row(run: RunFolder) -> None:
    """A long match ends long after several checkpoints: no row lies between them."""
    with run.ledger() as ledger:
        first, second = save(run, ledger, 100), save(run, ledger, 200)
        checkpoint, reason = latest_state(ledger, run.checkpoints("run"))
        assert checkpoint is not None
        assert (checkpoint.name, reason, fallen_back(ledger, checkpoint)) == (second.name, None, None)
        second.unlink()
        checkpoint, reason = latest_state(ledger, run.checkpoints("run"))
        assert checkpoint is not None
        assert (checkpoint.name, reason) == (first.name, None)
        told = f"checkpoint {second.name} (at 200 decisions) is gone; {first.name} is used, at 100 decisions"
        assert fallen_back(ledger, checkpoint) == told


def test_a_damaged_note_of_the_checkpoint_is_named_and_repaired(run: RunFolder) -> None:
    with run.ledger() as ledger:
        save(run, ledger, 100)
    with closing(sqlite3.connect(run.ledger_path)) as opened:
        opened.execute("UPDATE latest_checkpoint SET digest = x'00'")
        opened.commit()
    reading = read_ledger(run, lambda event: None)
    assert reading.damage == "its note of the latest checkpoint does not match its checksum"
    assert [part.what for part in inspect_run(run, reading) if not part.whole] == ["ledger"]
    repair_ledger(run, reading)
    reading = read_ledger(run, lambda event: None)
    assert (reading.rows, reading.damage) == (1, None)
    assert all(part.whole for part in inspect_run(run, reading))
    with run.ledger() as ledger:
        noted, newest = ledger.latest_checkpoint(), run.checkpoints("run").newest
        assert (noted and noted.name, noted and noted.decisions) == (newest, 100)
        assert latest_state(ledger, run.checkpoints("run"))[1] is None


def test_a_repair_that_dies_leaves_no_older_ledger_behind(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with run.ledger() as killed:  # its latest row is in the log only
        killed.append([LearnerProgress("main", 0, 1, 100)])
        replace, calls = os.replace, []

        def dies(old: str, new: str) -> None:
            if calls:
                raise KeyboardInterrupt
            calls.append(old)
            replace(old, new)

        monkeypatch.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            repair_ledger(run, LedgerReading(rows=1, written=2, damage="row 2 is damaged"))
        monkeypatch.undo()
        with pytest.raises(MissingLedger):
            run.ledger(read_only=True)
        assert (run.path / "ledger.damaged-1.db").exists()
        assert (run.path / "ledger.db-wal").exists()
