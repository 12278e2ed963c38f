"""Runs that have lost their checkpoint or their ledger: refused by name, and continued on purpose."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Ludus, exit_code
from invariants import check_run
from tiny_runs import BATCH, create, faults_of, tiny

from ludus.config import encode
from ludus.data.records import LearnerProgress, LossAccepted, ModelId
from ludus.runtime.assemble import CHECKPOINT, load_experiment, load_state
from ludus.runtime.coordinator import Training
from ludus.runtime.recovery import require_whole
from ludus.runtime.rounds import FINISHED
from ludus.runtime.start import training_of
from ludus.store.files import StoreError
from ludus.store.inspection import newer_models
from ludus.store.run_folder import MetricsFile, RunFolder, read_metrics


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints" / CHECKPOINT).iterdir())


def decisions(run: Path) -> int:
    _, league = load_state(RunFolder.open(run))
    return league.standings["main"].decisions


def remove_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def empty_checkpoints(run: Path) -> None:
    for path in checkpoints(run):
        path.write_bytes(b"")


def remove_checkpoints_and_their_note(run: Path) -> None:
    remove_checkpoints(run)
    remove_note(run)


def remove_note(run: Path) -> None:
    with closing(sqlite3.connect(run / "ledger.db")) as ledger:
        assert ledger.execute("DELETE FROM latest_checkpoint").rowcount == 1
        ledger.commit()


def remove_ledger(run: Path) -> None:
    (run / "ledger.db").unlink()


def shorten_ledger(run: Path) -> None:
    """As a copy from before the checkpoint."""
    row = RunFolder.open(run).checkpoints(CHECKPOINT).load_latest().facts["events"]  # type: ignore[union-attr]
    with closing(sqlite3.connect(run / "ledger.db")) as ledger:
        ledger.execute("DROP TRIGGER never_removed")
        ledger.execute(f"DELETE FROM rows WHERE seq >= {row}")
        ledger.execute(f"UPDATE sqlite_sequence SET seq = {row - 1} WHERE name = 'rows'")
        ledger.commit()


def swap_ledger(run: Path) -> None:
    """For that of another run."""
    assert exit_code("train", "kuhn", "--run", str(run.parent / "other"), "--quiet", *TINY, "--set", "seed=5") == 0
    shutil.copy(run.parent / "other" / "ledger.db", run / "ledger.db")


def go_back_without_the_models(run: Path) -> None:
    """As if a copy of the ledger and the checkpoints had been restored, and none of the models."""
    kept = run.parent / "kept"
    shutil.copytree(run / "checkpoints", kept / "checkpoints")
    shutil.copy(run / "ledger.db", kept)
    assert exit_code("train", "--run", str(run), "--resume", "--quiet", "--set", "budget=12000") == 0
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(kept, run, dirs_exist_ok=True)


LOSSES = [
    (go_back_without_the_models, "its ledger and checkpoint are older than its models: they know main up to step"),
    (remove_checkpoints, "its checkpoint is gone: the ledger names"),
    (
        remove_checkpoints_and_their_note,
        "its checkpoint is gone: the ledger's note of its latest checkpoint was removed, and",
    ),
    pytest.param(empty_checkpoints, "no checkpoint in", marks=pytest.mark.slow),
    (remove_ledger, "its ledger is gone"),
    (shorten_ledger, "its ledger is older than its checkpoint: it ends at row"),
    pytest.param(swap_ledger, "its ledger is not the one that its checkpoint was made with", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("lose", "named"), LOSSES)
def test_a_lost_part_is_refused_and_accepted_on_purpose(
    lose: Callable[[Path], None], named: str, run: Path, ludus: Ludus
) -> None:
    lose(run)
    models = {(entry.model, entry.variant): entry.digest for entry in RunFolder.open(run).models.entries()}
    code, _, err = ludus("train", "--run", str(run), "--resume", "--quiet")
    assert code == 2
    text = " ".join(err.split())
    assert named in text
    assert f"ludus train --run {run} --resume --accept-loss" in text
    code, _, err = ludus("train", "--run", str(run), "--resume", "--accept-loss", "--quiet", "--set", "budget=9000")
    assert code == 0, err
    assert "; accepted: " in err
    assert [row["class"] for row in faults_of(run)].count("loss_accepted") == 1
    check_run(run, open_matches=True)
    folder = RunFolder.open(run)
    with folder.ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
        assert sum(isinstance(event, LossAccepted) for event in events) == 1
    assert decisions(run) >= 9_000
    now = {(entry.model, entry.variant): entry.digest for entry in folder.models.entries()}
    assert {model: now[model] for model in models if model in now} == {
        model: digest for model, digest in models.items() if model in now
    }, "no id has two contents"
    assert ludus("train", "--run", str(run), "--resume", "--quiet", "--set", "budget=9500")[0] == 0


def test_a_single_newer_snapshot_never_gets_other_weights(run: Path, ludus: Ludus) -> None:
    """A controller leaves one that is killed before it names the snapshot, and so does an older copy of the rest."""
    folder = RunFolder.open(run)
    with folder.ledger(read_only=True) as ledger:
        checkpoint = folder.checkpoints(CHECKPOINT).load_latest()
        weights = {
            name.removeprefix("learner/main/live."): array + 1
            for name, array in checkpoint.arrays.items()  # type: ignore[union-attr]
            if name.startswith("learner/main/live.")
        }
        last = max(event.step for event in ledger.learned() if isinstance(event, LearnerProgress))
        stray = ModelId("main", 1, last + 2)
        folder.models.publish(stray, weights, parent=None, facts={"decisions": 7_000})
        assert newer_models(ledger, folder.models, checkpoint) is None
    digest = folder.models.entry(stray).digest
    more = ("--set", "budget=12000", "--runtime", "local")  # with its tables it would go on as the same incarnation
    code, _, err = ludus("train", "--run", str(run), "--resume", "--quiet", *more)
    assert code == 0, err
    assert folder.models.entry(stray).digest == digest
    assert {entry.model.incarnation for entry in folder.models.entries() if entry.model > stray} == {2}


def test_without_its_checkpoint_a_player_goes_on_from_its_newest_snapshot(run: Path) -> None:
    folder = RunFolder.open(run)
    experiment, league = load_state(folder)
    remove_checkpoints(run)
    with folder.lock():
        assert require_whole(folder, experiment, accept_loss=True) is not None
        assert require_whole(folder, experiment, accept_loss=True) is None, "it is whole now"
    newest = [player for player in league.players.values() if player.frozen][-1]
    assert newest.model is not None
    checkpoint = folder.checkpoints(CHECKPOINT).load_latest()
    assert checkpoint is not None
    live = {
        name.removeprefix("learner/main/live."): array
        for name, array in checkpoint.arrays.items()
        if name.startswith("learner/main/live.")
    }
    for name, array in folder.models.fetch(ModelId.parse(newest.model)).items():
        assert (live[name] == array).all()
    facts = checkpoint.facts["learner"]["main"]
    assert facts["decisions"] == newest.parent_decisions > 0
    assert facts["incarnation"] == league.standings["main"].incarnation + 1
    with folder.ledger(read_only=True) as ledger:
        *_, (_, last) = ledger.replay()
    assert isinstance(last, LossAccepted)
    assert last.models == {"main": newest.model}


def test_an_older_checkpoint_is_used_and_told(run: Path, ludus: Ludus) -> None:
    checkpoints(run)[-1].write_bytes(b"")
    code, _, err = ludus("train", "--run", str(run), "--resume", "--quiet", "--set", "budget=9000")
    assert code == 0
    assert "cannot be read" in err
    assert "is used, at" in err
    [fault] = [row for row in faults_of(run) if row["class"] == "damaged_checkpoint"]
    assert "is used, at" in fault["reason"]


def test_a_removed_note_of_the_checkpoint_is_told(run: Path, ludus: Ludus) -> None:
    remove_note(run)
    code, _, err = ludus("train", "--run", str(run), "--resume", "--quiet", "--set", "budget=9000")
    assert code == 0
    assert "the ledger's note of its latest checkpoint was removed" in " ".join(err.split())
    assert [row["class"] for row in faults_of(run)].count("damaged_checkpoint") == 1
    assert ludus("doctor", str(run))[0] == 0, "the next checkpoint is noted again"


def test_a_missing_newest_checkpoint_is_told_as_well(run: Path, ludus: Ludus) -> None:
    checkpoints(run)[-1].unlink()
    code, _, err = ludus("train", "--run", str(run), "--resume", "--quiet", "--set", "budget=9000")
    assert code == 0
    assert "is gone" in err
    assert [row["class"] for row in faults_of(run)].count("damaged_checkpoint") == 1


def test_accepting_a_loss_needs_a_run_that_is_resumed(ludus: Ludus, tmp_path: Path) -> None:
    code, _, err = ludus("train", "kuhn", "--run", str(tmp_path / "new"), "--accept-loss")
    assert code == 2
    assert "--accept-loss is for a run that is resumed" in err


def test_a_ledger_that_goes_just_before_a_stop_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    experiment = tiny(budget=10_000_000, runtime="serial")

    def watch(training: Training) -> None:
        if training.learner.decisions >= 1_000 and (path / "ledger.db").exists():
            (path / "ledger.db").unlink()
            os.kill(os.getpid(), signal.SIGINT)

    folder = RunFolder.create(path, encode(experiment), seed=0, command=())
    with folder.lock(), training_of(experiment, folder, num_actors=1, address=None) as training:
        with pytest.raises(StoreError, match=r"ledger\.db was removed .* rows were written again, to"):
            training.run(watch)
        expected = training.league.state_digest()
    assert load_state(folder)[1].state_digest() == expected


def files(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_a_run_whose_folder_was_moved_writes_nothing_into_another_at_its_place(tmp_path: Path) -> None:
    """As where a backup is restored beside a run that still trains."""
    path, moved = tmp_path / "run", tmp_path / "moved"
    experiment = tiny(budget=10_000_000, runtime="serial")
    folder = RunFolder.create(path, encode(experiment), seed=0, command=())
    backup = shutil.copytree(path, tmp_path / "backup")

    def watch(training: Training) -> None:
        if not moved.exists() and training.learner.decisions >= 2_000:
            path.rename(moved)
            backup.rename(path)

    before = files(backup)
    with folder.lock(), training_of(experiment, folder, num_actors=1, address=None) as training:
        with pytest.raises(StoreError, match=r"run folder .*run was moved or removed while the run was using it"):
            training.run(watch)
        expected = training.league.state_digest()
    assert files(path) == before
    assert load_state(RunFolder.open(moved))[1].state_digest() == expected


@pytest.mark.parametrize(
    ("runtime", "replaced"),
    [
        ("serial", False),
        pytest.param("local", False, marks=pytest.mark.slow),
        pytest.param("local", True, marks=pytest.mark.slow),
    ],
)
def test_a_ledger_that_goes_while_the_run_trains_is_noticed_and_rescued(
    runtime: str, replaced: bool, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    experiment = tiny(budget=10_000_000, runtime=runtime)
    done = False

    def watch(training: Training) -> None:
        nonlocal done
        if not done and training.learner.decisions >= 2_000:
            done = True
            (path / "ledger.db").unlink()
            if replaced:
                (path / "ledger.db").write_bytes(b"something else")

    folder = RunFolder.create(path, encode(experiment), seed=0, command=())
    with folder.lock(), training_of(experiment, folder, num_actors=1, address=None) as training:
        with pytest.raises(StoreError, match=r"ledger\.db was (removed|replaced).* rows were written again, to"):
            training.run(watch)
        expected = training.league.state_digest()
    if replaced:
        os.replace(path / "ledger.rescued-1.db", path / "ledger.db")
    assert load_state(folder)[1].state_digest() == expected
    check_run(path, open_matches=runtime == "serial")
    with folder.lock():
        assert require_whole(folder, experiment, accept_loss=False) is None
    assert [row["then"] for row in faults_of(path)][-1] == "the run ends"
    with folder.ledger(read_only=True) as ledger:
        note = ledger.latest_checkpoint()
        assert note is not None
        progress = [event for _, event in ledger.replay() if isinstance(event, LearnerProgress)]
        assert note.decisions >= progress[-1].decisions


def test_models_of_another_run_are_not_taken_for_its_own(run: Path, ludus: Ludus) -> None:
    """Ids of models are the same in all runs; the ledger names their digests."""
    other = run.parent / "other"
    assert exit_code("train", "kuhn", "--run", str(other), "--quiet", *TINY, "--set", "seed=5") == 0
    shutil.rmtree(run / "models")
    shutil.copytree(other / "models", run / "models")
    assert ludus("doctor", str(run)).code == 1
    code, out, err = ludus("train", "--run", str(run), "--resume", "--quiet", "--set", "budget=7000")
    assert code == 0, err
    assert "no readable weights" in " ".join(out.split())
    told = [row["reason"] for row in faults_of(run) if row["class"] == "damaged_model"]
    assert any("they are of another run" in reason for reason in told), told


def test_metrics_that_are_removed_while_a_run_trains_are_written_again_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    create(path, tiny(runtime="serial"))
    folder = RunFolder.open(path)
    names = ("train.jsonl", "evaluations.jsonl", "exploits.jsonl")
    before: dict[str, list[dict[str, Any]]] = {}
    with MetricsFile(folder.metrics / "exploits.jsonl") as exploits:
        exploits.append({"target": "main.1"})

    def remove(training: Training) -> None:
        if not before and training.numbers()["decisions"] >= 4 * BATCH:
            training._look()  # the next is a second away
            before.update({name: read_metrics(folder.metrics / name)[0] for name in names})
            shutil.rmtree(folder.metrics)

    with folder.lock(), training_of(load_experiment(folder), folder, num_actors=1, address=None) as training:
        assert training.run(remove) == FINISHED
    shown = capsys.readouterr().err
    for name in names:
        assert before[name]
        assert read_metrics(folder.metrics / name)[0][: len(before[name])] == before[name]
    rows = read_metrics(folder.metrics / "train.jsonl")[0]
    assert rows[-1]["decisions"] >= tiny().budget
    told = [(row["class"], row["reason"]) for row in faults_of(path)]
    for name in ("faults.jsonl", *names):
        reason = f"{folder.metrics / name} was removed while the run was using it"
        assert ("disk", reason) in told
        assert f"{reason}; it was written again" in shown
