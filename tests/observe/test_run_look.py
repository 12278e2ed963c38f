"""What a run says of itself, joined with what can be seen of its processes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ludus.observe.run_state import ProcessUse, look_at_run, state_without_status
from ludus.store.run_control import RunStatus, WorkerStatus, write_status
from ludus.store.run_folder import RunFolder

CONTROLLER, ACTOR, ELSEWHERE = 1, 2, 3
USE = {
    CONTROLLER: ProcessUse(cores=1.5, memory=1000, gpu_memory=70),
    ACTOR: ProcessUse(cores=1.2345, memory=600, gpu_memory=50),
    ELSEWHERE: ProcessUse(cores=9.0, memory=9000),
}


def measured(pids: Iterable[int]) -> dict[int, ProcessUse]:
    return {pid: USE[pid] for pid in pids}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {}, seed=0)


def say(folder: RunFolder, state: str) -> RunStatus:
    here = socket.gethostname()

    def worker(name: str, pid: int, node: str) -> WorkerStatus:
        return WorkerStatus(name=name, state="working", pid=pid, node=node, started=0.0)

    values: dict[str, Any] = {"experiment": "kuhn", "trial": None, "runtime": "local", "lag": {}}
    counts = dict.fromkeys(("decisions", "budget", "decisions_per_s", "episodes", "matches", "restarts"), 1)
    status = RunStatus(
        time=time.time(),
        state=state,
        node=here,
        pid=CONTROLLER,
        started=0.0,
        time_limit_h=1.0,
        workers=(worker("actor-0", ACTOR, here), worker("actor-1", ELSEWHERE, "another")),
        **values,
        **counts,
    )
    write_status(folder.status, status)
    return status


def test_workers_are_shown_with_what_they_use_here(folder: RunFolder) -> None:
    say(folder, "training")
    with folder.lock():
        seen = look_at_run(folder, measured)
    assert seen is not None
    controller, actor, elsewhere = seen.workers
    assert (controller.name, actor.name, elsewhere.name) == ("controller", "actor-0", "actor-1")
    assert (actor.cores, actor.memory, actor.gpu_memory) == (1.234, 600, 50)
    assert (elsewhere.cores, elsewhere.memory, elsewhere.gpu_memory) == (None, None, None)
    # The actors are its children: what they use is not its own.
    assert controller.cores == pytest.approx(1.5 - 1.234)
    assert (controller.memory, controller.gpu_memory) == (400, 20)


def test_cores_that_are_not_known_yet_stay_so(folder: RunFolder) -> None:
    say(folder, "training")
    with folder.lock():
        seen = look_at_run(folder, lambda pids: {pid: replace(USE[pid], cores=None) for pid in pids})
    assert seen is not None
    controller, actor, _ = seen.workers
    assert (controller.cores, controller.memory, controller.gpu_memory) == (None, 400, 20)
    assert (actor.cores, actor.memory, actor.gpu_memory) == (None, 600, 50)


def test_a_run_without_a_process_is_dead_unless_it_has_ended(folder: RunFolder) -> None:
    say(folder, "training")
    seen = look_at_run(folder, measured)
    assert seen is not None
    assert (seen.state, seen.workers) == ("dead", ())
    status = say(folder, "finished")
    assert look_at_run(folder, measured) == status


def test_a_run_that_has_said_nothing_has_no_status(folder: RunFolder) -> None:
    assert look_at_run(folder, measured) is None
    assert state_without_status(folder) == "never started"
    with folder.lock():
        assert state_without_status(folder) == "starting"
    folder.status.write_bytes(msgspec.json.encode({"of": "another version"}))
    assert look_at_run(folder, measured) is None
