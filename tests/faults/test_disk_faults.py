"""A disk that is full, read-only or broken, and files that are damaged: a named error or the last good one,
and no acknowledged result lost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from invariants import check_nothing_left, check_run
from matrix.subject import NotHere, compiled_shim
from tiny_runs import BATCH, create, faults_of, learned, local, once, tiny

from ludus.config import encode
from ludus.data.records import ModelId, PlayerAbsent, PlayerReturned, Result, RunStarted
from ludus.observe.lost_matches import LossCount
from ludus.runtime.assemble import CHECKPOINT, load_experiment
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.processes import ProcessWorkers, local_training
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.files import StoreError
from ludus.store.ledger import Ledger
from ludus.store.run_folder import MetricsFile, RunFolder


def mount(*what: str) -> None:
    if shutil.which("mount") is None or subprocess.run(["mount", *what], capture_output=True).returncode:
        pytest.skip("may not mount here")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(2**16)):
                pass
        except OSError:
            return


def acknowledging(training: Coordinator[ProcessWorkers]) -> list[Result]:
    """The results whose reports have returned, from now on."""
    report, known = training.controller.report, list[Result]()

    def noting(result: Result) -> None:
        report(result)
        known.append(result)

    training.controller.report = noting  # type: ignore[method-assign]
    return known


@pytest.mark.slow
def test_rows_19_20_a_full_disk_ends_the_run_by_name_and_it_goes_on_later(small_disk: Path) -> None:
    path = small_disk / "run"
    with local(path, tiny(budget=20 * BATCH)) as training:
        known = acknowledging(training)
        watch = once(learned(4 * BATCH), lambda _: fill(small_disk))
        with pytest.raises((StoreError, OSError), match=r"(?i)disk is full|no space left"):
            training.run(watch)
    assert len(known) > 3
    (small_disk / "filler").unlink()
    check_run(path, acknowledged=known, open_matches=True)
    folder = RunFolder.open(path)
    with folder.lock(), closing(local_training(tiny(budget=20 * BATCH), folder, 1)) as again:
        assert again.run() == FINISHED
        check_run(path, live=again.league, acknowledged=known)
    check_nothing_left(path, ())


def write_rows(training: Coordinator[SerialWorkers]) -> None:
    for _ in range(2_000):
        training._ledger.append([RunStarted(1)] * 50)


def write_checkpoint(training: Coordinator[SerialWorkers]) -> None:
    training.save(clean=False)


def write_model(training: Coordinator[SerialWorkers]) -> None:
    training.learner.players["main"].step += 1
    training.learner.freeze("main", None)


@pytest.mark.parametrize("write", [write_rows, write_checkpoint, write_model])
def test_every_part_of_the_store_names_a_full_disk(
    small_disk: Path, write: Callable[[Coordinator[SerialWorkers]], None]
) -> None:
    path = small_disk / "run"
    create(path, tiny(runtime="serial", budget=3 * BATCH))
    folder = RunFolder.open(path)
    with closing(serial_training(load_experiment(folder), folder)) as training:
        training.run()
        fill(small_disk)
        with pytest.raises((StoreError, OSError), match=r"(?i)disk is full|no space left") as caught:
            write(training)
        assert str(path) in str(caught.value), "it says where"
        (small_disk / "filler").unlink()
        assert not list(path.rglob("*.tmp"))
        training.save(clean=True)


@pytest.mark.slow
def test_a_read_only_run_is_refused_by_name_and_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "run"
    create(path, tiny(runtime="serial", budget=2 * BATCH))
    ludus = [sys.executable, "-m", "ludus.cli.main"]
    train = [*ludus, "train", "--run", str(path), "--resume", "--quiet"]
    subprocess.run(train, capture_output=True, check=True)
    mount("--bind", "-o", "ro", str(path), str(path))
    try:
        refused = subprocess.run(train, capture_output=True, text=True)
        shown = subprocess.run([*ludus, "league", str(path)], capture_output=True, text=True)
    finally:
        subprocess.run(["umount", str(path)], check=True)
    assert refused.returncode == 1
    assert f"{path / 'lock.json'}: Read-only file system" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert shown.returncode == 0
    assert "main" in shown.stdout


FSYNC = """
import sys
from pathlib import Path
import numpy as np
from ludus.data.records import RunStarted
from ludus.store.checkpoints import Checkpoints
from ludus.store.ledger import Ledger

folder, broken = Path(sys.argv[1]), Path(sys.argv[2])
ledger, checkpoints = Ledger(folder / "ledger.db"), Checkpoints(folder / "checkpoints")
ledger.append([RunStarted(0)])
checkpoints.save(1, {"w": np.ones(3)}, {})
broken.touch()
for write in (lambda: ledger.append([RunStarted(1)]), lambda: checkpoints.save(2, {"w": np.ones(3)}, {})):
    try:
        write()
        print("acknowledged")
    except Exception as error:
        print(type(error).__name__, error)
broken.unlink()
print([event.start for _, event in ledger.replay()], checkpoints.load_latest().step)
ledger.append([RunStarted(2)])
"""


def test_row_21_what_cannot_be_synced_is_not_acknowledged(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    fault = {"FAULT_PATH": str(tmp_path), "FAULT_CALLS": "fsync", "FAULT_ACT": "EIO", "FAULT_WHILE": str(broken)}
    try:
        library = compiled_shim(tmp_path)
    except NotHere as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [sys.executable, "-c", FSYNC, str(tmp_path), str(broken)],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(library), **fault},
    )
    assert done.returncode == 0, done.stderr
    ledger, checkpoint, state = done.stdout.splitlines()
    assert ledger.startswith(f"LedgerError ledger {tmp_path / 'ledger.db'}: the disk failed")
    assert checkpoint.startswith("OSError [Errno 5] cannot write: Input/output error")
    assert state == "[0] 1", "neither the row nor the checkpoint is there"
    with Ledger(tmp_path / "ledger.db") as after:
        assert [event for _, event in after.replay()] == [RunStarted(0), RunStarted(2)]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    rng = random.Random(0)
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


DAMAGES: tuple[Callable[[Path], object], ...] = (
    flip,
    lambda path: path.write_bytes(b""),
    lambda path: os.truncate(path, path.stat().st_size // 2),
)


@pytest.mark.slow
def test_row_23_damaged_models_and_checkpoints_are_found_and_left_out(tmp_path: Path) -> None:
    """The checkpoint before it is used, and frozen players are absent; all is told."""
    path = tmp_path / "run"
    described = tiny(budget=13 * BATCH)
    folder = RunFolder.create(path, encode(described), seed=0, command=())
    with closing(serial_training(replace(described, budget=12 * BATCH), folder)) as first:
        first.run()
        victims = first.league.candidates.frozen()[1:4]
        models = [ModelId.parse(first.league.players[victim].model or "") for victim in victims]
    for damage, model in zip(DAMAGES, models, strict=True):
        damage(path / "models" / "main" / f"{model.incarnation}-{model.step}.safetensors")
    newest = max((path / "checkpoints" / CHECKPOINT).iterdir())
    flip(newest)
    with closing(local_training(described, folder, 1)) as training:
        assert training.run() == FINISHED
        league = check_run(path, live=training.league)
    assert not set(victims) & set(league.candidates)
    faults = faults_of(path)
    assert [f["reason"] for f in faults if f["class"] == "damaged_checkpoint"] == [newest.name]
    assert [f["worker"] for f in faults if f["class"] == "damaged_model"] == list(victims)
    with folder.ledger(read_only=True) as ledger:
        absent = [event for _, event in ledger.replay() if isinstance(event, PlayerAbsent)]
    assert [event.player for event in absent] == list(victims)
    assert all(event.reason.startswith("weights of") for event in absent)


def test_all_weights_are_read_only_if_those_of_a_suspect_cannot_be(tmp_path: Path) -> None:
    """As for a match whose models a node could not have: mostly it is the node that cannot reach them."""
    path = tmp_path / "run"
    described = tiny(budget=4 * BATCH)
    folder = RunFolder.create(path, encode(described), seed=0, command=())
    with closing(serial_training(described, folder)) as training:
        training.run()
        first, second = training.league.candidates.frozen()[:2]
        model = ModelId.parse(training.league.players[first].model or "")
        file = path / "models" / "main" / f"{model.incarnation}-{model.step}.safetensors"
        file.rename(tmp_path / file.name)
        assert not training.controller.check_frozen({"main", second})
        assert [event.player for event in training.controller.check_frozen({"main", first})] == [first]
        assert [*training.league.absent] == [first]
        (tmp_path / file.name).rename(file)
        assert training.controller.check_frozen() == [PlayerReturned(first)]


def test_players_whose_weights_were_away_for_one_start_return_with_them(tmp_path: Path) -> None:
    """A volume that is not mounted at one start: nothing is removed, everything comes back."""
    path = tmp_path / "run"
    described = tiny(budget=12 * BATCH)
    folder = RunFolder.create(path, encode(described), seed=0, command=())
    with closing(serial_training(replace(described, budget=4 * BATCH), folder)) as first:
        first.run()
        snapshots = first.league.candidates.frozen()
    assert len(snapshots) >= 2
    away = path / "models" / "main"
    away.rename(tmp_path / "main")
    with closing(serial_training(replace(described, budget=8 * BATCH), folder)) as second:
        assert [*second.league.absent] == list(snapshots)
        second.run()
        assert not set(snapshots) & set(second.league.candidates)
    with folder.ledger(read_only=True) as ledger:
        lost = LossCount().follow(ledger)
    [told] = [line for line in lost.lines() if "no readable weights" in line]
    assert snapshots[0] in told
    for file in (tmp_path / "main").glob("*-*"):
        file.rename(away / file.name)
    with closing(serial_training(described, folder)) as third:
        third.run()
        assert not third.league.absent
        assert set(snapshots) <= set(third.league.candidates)
        check_run(path, live=third.league, open_matches=True)
    assert [f["then"] for f in faults_of(path) if f["class"] == "model_returned"] == ["plays again"] * len(snapshots)


@pytest.mark.slow
def test_row_23_a_model_that_is_damaged_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def damage_all(training: Coordinator[ProcessWorkers]) -> None:
        for file in (path / "models" / "main").glob("*.safetensors"):
            flip(file)

    def frozen(training: Coordinator[ProcessWorkers]) -> bool:
        return len(training.league.candidates.frozen()) >= 2

    with local(path, tiny(budget=14 * BATCH)) as training:
        watch = once(frozen, damage_all)
        assert training.run(watch) == FINISHED
        assert training.faults.counts["damaged_model"] >= 2
        check_run(path, live=training.league)
        assert training.restarts >= 1


def test_metrics_that_cannot_be_written_name_their_file(tmp_path: Path) -> None:
    full = tmp_path / "full.jsonl"
    full.symlink_to("/dev/full")
    with MetricsFile(full) as metrics, pytest.raises(OSError, match=rf"No space left.*{full}"):
        metrics.append({"x": 1})
