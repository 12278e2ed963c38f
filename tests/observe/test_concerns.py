"""What a person should look at, read off the status, the metrics and the matches of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_runs import status_of

from ludus.observe.documents import MetricsTable
from ludus.observe.league_fold import Counts
from ludus.observe.overview import concerns_of_matches, concerns_of_metrics, concerns_of_ratings, concerns_of_status
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


def table(path: Path, **columns: list[float]) -> MetricsTable:
    """Metrics of main, a row per decision."""
    with MetricsFile(path / "train.jsonl") as file:
        for number, row in enumerate(zip(*columns.values(), strict=True)):
            file.append({"decisions": number, **{f"main/{name}": one for name, one in zip(columns, row, strict=True)}})
    metrics = MetricsTable(path / "train.jsonl")
    metrics.follow()
    return metrics


def said_of(metrics: MetricsTable, budget: int = 100) -> list[str]:
    return [one.what for one in concerns_of_metrics(metrics, ["main"], "runs/a", budget)]


COLLAPSED = ["entropy of main has collapsed"]


@pytest.mark.parametrize(
    ("entropies", "budget", "said"),
    [
        ([1.0] * 12, 100, []),
        ([1.0] * 6 + [0.03] * 6, 100, COLLAPSED),
        ([1.0] * 6 + [0.03] * 60, 100, COLLAPSED),  # and stays so
        ([1.0] * 6 + [0.03] * 10 + [0.4] * 10, 100, []),  # it has come back
        ([1.0] * 6 + [0.03] * 6, 12, []),  # at the end it may be sure of itself
        ([1.0] * 60 + [0.03] * 30, 100, []),
        ([1e-9] * 12, 100, COLLAPSED),  # in its first update
        ([1.0] * 90 + [1e-9] * 10, 100, COLLAPSED),  # not one decision in a thousand differs
        ([1.0, 0.01, 0.01], 100, []),  # too few rows
    ],
)
def test_a_policy_that_always_does_the_same_is_named(
    tmp_path: Path, entropies: list[float], budget: int, said: list[str]
) -> None:
    assert said_of(table(tmp_path, entropy=entropies), budget) == said


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([-0.003] * 30, []),
        ([-0.003] * 20 + [0.02] * 10, ["updates of main overshoot"]),
        ([0.02] * 20 + [-0.003] * 10, []),  # no longer
        ([-0.003, 0.04] * 4 + [-0.003] * 4, []),  # now and then
        ([0.02] * 9, []),
    ],
)
def test_updates_that_make_a_policy_worse_are_named(tmp_path: Path, losses: list[float], said: list[str]) -> None:
    clipped = [0.2] * len(losses)
    assert said_of(table(tmp_path, policy_loss=losses, clip_fraction=clipped)) == said


def test_the_policy_loss_of_another_algorithm_says_nothing(tmp_path: Path) -> None:
    worse = [0.02] * 12
    assert said_of(table(tmp_path, policy_loss=worse)) == []
    (tmp_path / "magnet").mkdir()
    metrics = table(tmp_path / "magnet", policy_loss=worse, clip_fraction=worse, magnet_kl=worse)
    assert said_of(metrics) == []


@pytest.mark.parametrize(
    ("constant", "named"),
    [
        ([0.0] * 5 + [1.0] * 5, True),
        ([0.0] * 5 + [1.0] * 4, False),
        ([1.0] * 20, False),  # a game of one position
        ([0.0] * 5 + [1.0] * 5 + [0.0], False),
    ],
)
def test_a_policy_that_sees_nothing_any_more_is_named(tmp_path: Path, constant: list[float], named: bool) -> None:
    said = ["the policy of main is dead"] if named else []
    assert said_of(table(tmp_path, constant_policy=constant)) == said


@pytest.mark.parametrize(("distance", "count", "named"), [(0.3, 9, False), (2.0, 9, True), (2.0, 2, False)])
def test_live_and_averaged_weights_that_disagree_are_named(
    tmp_path: Path, distance: float, count: int, named: bool
) -> None:
    said = ["live and averaged weights of main play differently"] if named else []
    assert said_of(table(tmp_path, average_kl=[0.1, *[distance] * count])) == said


@pytest.mark.parametrize(
    ("elo", "left", "named"),
    [
        ((0, 300, 500, 510, 505, 508, 503), 0.1, True),
        ((0, 300, 500, 510, 505, 508, 503), 0.6, False),  # it explores: an equilibrium looks like this
        ((0, 100, 200, 300, 400, 500, 600), 0.1, False),
        ((0, 500, 505, 508, 503), 0.1, False),  # too few snapshots
        ((0, 600, 500, 450, 400, 350, 300), 0.1, True),  # it gets worse
    ],
)
def test_snapshots_that_no_longer_get_better_are_named(
    tmp_path: Path, elo: tuple[float, ...], left: float, named: bool
) -> None:
    metrics = table(tmp_path, entropy=[1.0] * 10 + [left] * 10)
    names = [f"main.{number}" for number in range(1, len(elo) + 1)]
    ratings = {name: (float(own), 10.0) for name, own in zip(names, elo, strict=True)}
    found = [one.what for one in concerns_of_ratings(ratings, {"main": names}, metrics)]
    assert found == (["the snapshots of main no longer get better"] if named else [])
    assert list(concerns_of_ratings({}, {"main": names}, metrics)) == []


def test_a_rating_that_is_not_known_yet_says_nothing_about_progress(tmp_path: Path) -> None:
    names = [f"main.{number}" for number in range(1, 9)]
    ratings = {name: (100.0 * number, 10.0) for number, name in enumerate(names)} | {names[-1]: (300.0, 170.0)}
    metrics = table(tmp_path, entropy=[1.0] * 10 + [0.1] * 10)
    assert list(concerns_of_ratings(ratings, {"main": names}, metrics)) == []


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("stale", 19.0, []),
        ("stale", 21.0, ["much of what is played for main is thrown away"]),
        ("unused", 25.0, []),  # the device runtime leaves out as many on purpose
        ("unused", 35.0, ["much of what is played for main is not trained on"]),
    ],
)
def test_decisions_that_are_not_trained_on_are_named(tmp_path: Path, name: str, count: float, said: list[str]) -> None:
    metrics = table(tmp_path, **{name: [count] * 101})
    assert said_of(metrics) == said


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
