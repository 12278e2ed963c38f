"""What a person should look at, read off the status of a run."""

from __future__ import annotations

import pytest
from planted_runs import status_of

from ludus.observe.overview import concerns_of_status
from ludus.store.run_control import WorkerStatus


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


def test_a_service_that_has_only_begun_to_wait_is_no_concern() -> None:
    for waited_s, count in ((5.0, 0), (31.0, 1)):
        started = 1_000.0 - waited_s
        worker = WorkerStatus(name="service-judge-0", state="waiting", pid=None, node="", started=started)
        status = status_of("training", time=1_000.0, workers=(worker,), restarts=0)
        assert len(list(concerns_of_status(status, 1_000.0, (), "runs/a"))) == count
