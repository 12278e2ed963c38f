"""Saves a checkpoint, publishes a model or appends to a ledger, in one process after another. Each is killed
one call of the store later than the one before; what it left is checked. No torch, so that it is quick."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from ludus.data.records import ModelId, RunStarted
from ludus.store.checkpoints import Checkpoints
from ludus.store.ledger import Ledger
from ludus.store.model_pool import ModelPool

STORE = str(Path(sys.modules[Checkpoints.__module__].__file__ or "").parent)


def save(folder: Path, step: int) -> None:
    Checkpoints(folder).save(step, {"w": np.full(1_000, step)}, {"step": step})


def publish(folder: Path, step: int) -> None:
    parent = ModelId("main", 0, step - 1) if step > 1 else None
    weights = {"w": np.full(1_000, step)}
    ModelPool(folder).publish(ModelId("main", 0, step), weights, parent=parent, facts={})


def append(folder: Path, step: int) -> None:
    with Ledger(folder / "ledger.db") as ledger:
        ledger.append([RunStarted(step), RunStarted(step)])


def dies(work: Callable[[], None], at: int) -> bool:
    """Do the work in a child that is killed before the call number `at`; False if it came to its end."""
    child = os.fork()
    if child == 0:
        left = [at]

        def count(frame: FrameType, event: str, _: Any) -> None:
            if event in ("c_call", "c_return") and frame.f_code.co_filename.startswith(STORE):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def check_saved(folder: Path) -> None:
    checkpoint = Checkpoints(folder).load_latest()
    assert checkpoint is not None
    assert checkpoint.step in (1, 2)
    assert (checkpoint.arrays["w"] == checkpoint.step).all()
    assert checkpoint.damaged == ()
    assert not list(folder.rglob("*.tmp")), "what the dead left aside is cleared away"


def check_published(folder: Path) -> None:
    pool = ModelPool(folder)
    assert [entry.model.step for entry in pool.entries()] in ([1], [1, 2])
    for entry in pool.entries():
        assert (pool.fetch(entry.model)["w"] == entry.model.step).all()
    publish(folder, 2)  # and it can be done again
    assert pool.lineage(ModelId("main", 0, 2)) == (ModelId("main", 0, 2), ModelId("main", 0, 1))


def check_appended(folder: Path) -> None:
    with Ledger(folder / "ledger.db") as ledger:
        starts = [event.start for _, event in ledger.replay() if isinstance(event, RunStarted)]
    assert starts in ([1, 1], [1, 1, 2, 2]), "both rows of a group or none"


WORK = {"save": (save, check_saved), "publish": (publish, check_published), "append": (append, check_appended)}

if __name__ == "__main__":
    work, check = WORK[sys.argv[1]]
    place, died = 0, True
    while died:
        folder = Path(sys.argv[2]) / str(place)
        folder.mkdir()
        work(folder, 1)
        died = dies(lambda folder=folder: work(folder, 2), place)  # type: ignore[misc]
        check(folder)
        place += 1
    print(place)
