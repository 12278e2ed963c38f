"""The ledger after kill -9, torn logs, a full disk and on read-only media: no acknowledged row is lost."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.data.records import RunStarted
from ludus.store.ledger import Ledger, LedgerError

WRITER = Path(__file__).with_name("ledger_writer.py")


def last_acknowledged(path: Path, life_s: float) -> int:
    """The last row that a writer said was in, before it was killed."""
    command = [sys.executable, str(WRITER), "killed", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(life_s)
        writer.kill()
        lines = [first, *writer.stdout.read().splitlines(keepends=True)]
    return int([line for line in lines if line.endswith("\n")][-1])


def test_kill_9_loses_no_acknowledged_row(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    rng = random.Random(0)
    for _ in range(5):
        acknowledged = last_acknowledged(path, life_s=rng.uniform(0.0, 0.2))
        with Ledger(path, read_only=True) as ledger:
            sequence = [seq for seq, _ in ledger.replay()]
            counts = ledger.counts()
            ended = counts["match_finished"] + counts["match_void"]
            assert sequence[-1] >= acknowledged
            assert sequence == list(range(1, len(sequence) + 1))
            assert counts["match_issued"] == ended + len(ledger.open_matches())
            assert counts["match_issued"] % 4 == 0  # a group of four is in whole or not at all


def test_a_torn_log_falls_back_to_whole_groups(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        ends = [0]
        for number in range(6):
            ledger.append(RunStarted(number) for _ in range(20))
            ends.append(ends[-1] + 20)
        main, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()  # as a power cut would find them
    rng = random.Random(0)
    seen = set()
    for cut in [0, 1, 31, 32, len(log) - 1, len(log), *rng.sample(range(len(log)), 60)]:
        torn = tmp_path / f"torn-{cut}.db"
        torn.write_bytes(main)
        Path(f"{torn}-wal").write_bytes(log[:cut])
        with Ledger(torn) as ledger:
            rows = list(ledger.replay())
            assert len(rows) in ends
            assert [event for _, event in rows] == [RunStarted(i // 20) for i in range(len(rows))]
            ledger.append([RunStarted(99)])
            seen.add(len(rows))
    assert {0, 120} <= seen
    assert len(seen) > 3


def test_a_full_disk_is_named_and_the_ledger_goes_on_after_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    command = [sys.executable, str(WRITER), "full", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    error, state, resumed = shown
    acknowledged, rows = (int(word) for word in state.split())
    assert str(path) in error
    assert "nothing was half written" in error
    assert rows == acknowledged > 11
    assert int(resumed) == rows + 1
    with Ledger(path) as ledger:
        assert ledger.counts().total() == rows + 2


@pytest.fixture
def read_only_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that not even root can write; its content is put in before."""
    folder = tmp_path / "media"
    folder.mkdir()
    with Ledger(folder / "ledger.db") as ledger:
        ledger.append([RunStarted(0)])
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", "--bind", "-o", "ro", str(folder), str(folder)], capture_output=True).returncode
    ):
        pytest.skip("may not mount here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_run_on_read_only_media_can_be_read_and_not_written(read_only_folder: Path) -> None:
    path = read_only_folder / "ledger.db"
    with Ledger(path, read_only=True) as ledger:
        assert list(ledger.replay()) == [(1, RunStarted(0))]
    with pytest.raises(LedgerError, match=rf"{path}: it (is read-only|cannot be opened)"):
        Ledger(path).append([RunStarted(1)])
