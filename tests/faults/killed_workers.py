"""Workers that kill themselves at a chosen instant of their work, and what must be true of the run then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_runs import BATCH

from ludus.data.addresses import load_address
from ludus.data.records import MatchVoid
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.processes import ProcessWorkers
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.config import LearnerConfig

MIDDLEWARE = """
import os
import signal
from pathlib import Path

HERE = Path(__file__).parent


def killing(worker, step):
    kills = len(list(HERE.glob("kill-*")))
    if worker.name == {worker!r} and kills < {kills}:
        killing.steps += 1
        if {ready} and not killing.is_planted:
            killing.is_planted = True
            owner, method = {instants}[kills]
            setattr(owner, method, then_die(getattr(owner, method)))
    return step()


killing.steps, killing.is_planted = 0, False


def then_die(function):
    def called(*arguments):
        function(*arguments)
        (HERE / f"kill-{{os.getpid()}}").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    return called
"""


def killing(folder: Path, worker: str, instants: Sequence[str], ready: str) -> Any:
    """A middleware that kills this worker once for each instant: after a method of an object was called, as
    in "(worker, 'step')", once the worker is `ready`."""
    file = folder / "killing.py"
    written = f"({', '.join(instants)},)"
    file.write_text(MIDDLEWARE.format(worker=worker, kills=len(instants), instants=written, ready=ready))
    return load_address(f"{file}:killing")


def kills_in(folder: Path) -> int:
    """How often it has come to that, where the workers saw this folder."""
    return len(list(folder.glob("kill-*")))


def telling_learner(**changes: Any) -> LearnerConfig:
    """One update per batch, by so much that two versions of the weights differ visibly."""
    return LearnerConfig(
        batch_size=BATCH,
        minibatch_size=100 * BATCH,
        epochs=1,
        buffer_size=8 * BATCH,
        learning_rate=0.01,
        device="cpu",
        **changes,
    )


def check_versions(path: Path, updates: int) -> list[dict[str, Any]]:
    """I6: all that was trained on is of lag 0, and was decided by the weights that are written beside it.
    Gives the records of the updates, of which there must be so many."""
    records, _ = read_metrics(path / "metrics" / "train.jsonl")
    assert len(records) >= updates
    assert max(record["main/lag"] for record in records) == 0.0
    assert max(abs(record["main/kl"]) for record in records) < 1e-8
    return records


def voids_of(path: Path) -> list[str]:
    """Why matches are void, apart from the end of the run."""
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        voids = [event.reason for _, event in ledger.replay() if isinstance(event, MatchVoid)]
    return [reason for reason in voids if reason != "stopped"]


def pids_of(training: Coordinator[ProcessWorkers]) -> list[int]:
    """Of all its workers."""
    found = [training.workers.learner_pid, training.workers.policy_worker_pid, training.workers.buffer_worker_pid]
    return [*training.workers.actor_pids, *(pid for pid in found if pid is not None)]
