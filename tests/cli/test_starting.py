"""A training with its services, as commands start it."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.league.rules import EvaluationConfig
from ludus.runtime.rounds import FINISHED
from ludus.runtime.start import training_of
from ludus.store.run_control import WorkerStatus, read_status
from ludus.store.run_folder import RunFolder

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_service.py"


def test_services_are_in_the_status_of_a_run(tmp_path: Path) -> None:
    experiment = replace(
        load_address(f"{EXAMPLE}:experiment")(),
        budget=1_000,
        runtime="serial",
        evaluation=EvaluationConfig(opponents=("random",), episodes=16),
    )
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=0, command=())
    seen: list[WorkerStatus] = []

    def look(_: object) -> None:
        status = read_status(folder.status)
        if status is not None and not seen:
            seen.extend(status.workers)

    with folder.lock(), training_of(experiment, folder, num_actors=None, address=None) as training:
        assert training.run(look) == FINISHED
        for one in seen:
            assert one.pid is not None
            os.kill(one.pid, 0)  # it lives
    assert [one.name for one in seen] == ["service-adviser-0", "service-adviser-1"]
    for number, one in enumerate(seen):
        assert (one.state, one.restarts, one.node) == ("working", 0, socket.gethostname())
        assert one.address == f"unix:{tmp_path}/run/services/adviser-{number}.sock"
    ended = read_status(folder.status)
    assert ended is not None
    assert ended.workers == ()
