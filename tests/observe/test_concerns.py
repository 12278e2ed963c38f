"""What a person should look at, read off the status, the metrics and the matches of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_runs import status_of

from ludus.observe.documents import MetricsTable
from ludus.observe.league_fold import Counts
from ludus.observe.overview import concerns_of_matches, concerns_of_metrics, concerns_of_status
from ludus.observe.progress import troubles
from ludus.store.run_control import WorkerStatus
from ludus.store.run_folder import MetricsFile


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


@pytest.mark.parametrize(
    ("entropies", "said"),
    [
        ([1.0] * 12, []),
        ([1.0] * 6 + [0.05] * 6, ["entropy of main has collapsed"]),
        ([1e-9] * 12, ["entropy of main has collapsed"]),  # in its first update
    ],
)
def test_a_policy_that_always_does_the_same_is_named(tmp_path: Path, entropies: list[float], said: list[str]) -> None:
    with MetricsFile(tmp_path / "train.jsonl") as file:
        for number, entropy in enumerate(entropies):
            file.append({"decisions": number, "main/entropy": entropy})
    metrics = MetricsTable(tmp_path / "train.jsonl")
    metrics.follow()
    assert [one.what for one in concerns_of_metrics(metrics, ["main"], "runs/a")] == said


def test_matches_that_are_all_void_are_named() -> None:
    voids = {"game: it rained": 3, "stopped": 4}
    for finished, said in ((0, ["no match has been finished"]), (1, [])):
        counts = Counts(issued=9, finished=finished)
        assert [one.what for one in concerns_of_matches(counts, voids, {}, "runs/a")] == said


def test_a_line_of_progress_says_what_goes_wrong() -> None:
    assert troubles({"decisions": 1, "main/entropy": 0.4, "void_in_a_row": 3}) == []
    wrong = {"main/entropy": 1e-9, "void_in_a_row": 12, "metrics_lost": 2, "main/skipped": 5}
    assert troubles(wrong) == [
        "main always does the same (entropy near 0)!",
        "12 matches in a row void!",
        "5 updates not finite!",
        "2 rows of metrics not written!",
    ]
