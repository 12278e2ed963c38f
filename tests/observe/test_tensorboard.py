"""Event files as TensorBoard itself reads them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from ludus.observe.sinks import TensorBoardSink

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries that it brings along
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def curve(folder: Path, name: str) -> list[tuple[int, float, float]]:
    accumulator = events.EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, round(event.value, 4), event.wall_time) for event in accumulator.Scalars(name)]


def write(folder: Path, *rows: dict[str, float | None]) -> None:
    sink = TensorBoardSink(folder)
    sink.write(rows)
    sink.close()


def test_steps_are_decisions_and_times_are_those_of_the_rows(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"time": 100.0, "decisions": 1_000, "main/entropy": 0.5},
        {"time": 101.5, "decisions": 2_000, "main/entropy": None, "main/entropy.unit": 0.25},
    )
    assert curve(tmp_path, "main/entropy") == [(1_000, 0.5, 100.0)]
    assert curve(tmp_path, "main/entropy.unit") == [(2_000, 0.25, 101.5)]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_what_a_run_has_fallen_back_from_does_not_count(tmp_path: Path, is_resumed: bool) -> None:
    before = [{"time": 1.0, "decisions": step, "main/loss": 1.0} for step in (10, 20, 30)]
    after = [{"time": 2.0, "decisions": step, "main/loss": 2.0} for step in (20, 40)]
    if is_resumed:
        write(tmp_path, *before)
        write(tmp_path, *after)
    else:
        write(tmp_path, *before, *after)
    assert curve(tmp_path, "main/loss") == [(10, 1.0, 1.0), (20, 2.0, 2.0), (40, 2.0, 2.0)]
