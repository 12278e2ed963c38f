"""What a person should look at, read off the status of a run."""

from __future__ import annotations

import pytest
from planted_runs import status_of

from ludus.run_view.concerns import concerns_of_status
from ludus.store.run_status import WorkerStatus


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("working", []),
        ("starting", []),
        ("quarantined", ["service-judge-0 is given up"]),
        ("waiting", ["service-judge-0 does not run"]),
        ("ended", ["service-judge-0 does not run"]),
    ],
)
def test_a_process_that_does_not_run_is_named(state: str, said: list[str]) -> None:
    worker = WorkerStatus(name="service-judge-0", state=state, pid=None, node="", started=0.0)
    status = status_of("training", workers=(worker,), restarts=0)
    assert [one.what for one in concerns_of_status(status, status.time, (), "runs/a")] == said
