"""Schedules over the share of the budget that is spent."""

from __future__ import annotations

import pytest

from ludus import load_experiment
from ludus.config import decode, encode
from ludus.data.schedules import Exponential, Linear, Schedule, Warmup, at


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (0.25, (0.25, 0.25, 0.25)),
        (3, (3.0, 3.0, 3.0)),
        (Linear(start=1.0, end=0.0), (1.0, 0.5, 0.0)),
        (Linear(start=-1.0, end=3.0), (-1.0, 1.0, 3.0)),
        (Exponential(start=1.0, end=0.01), (1.0, 0.1, 0.01)),
    ],
)
def test_start_middle_and_end(schedule: Schedule, values: tuple[float, float, float]) -> None:
    for progress, value in zip((0.0, 0.5, 1.0), values, strict=True):
        assert at(schedule, progress) == pytest.approx(value)
        assert isinstance(at(schedule, progress), float)


@pytest.mark.parametrize("schedule", [Linear(start=2.0, end=1.0), Exponential(start=2.0, end=1.0)])
def test_beyond_the_budget_it_stays_at_its_ends(schedule: Schedule) -> None:
    assert at(schedule, 1.7) == at(schedule, 1.0) == pytest.approx(1.0)
    assert at(schedule, -0.3) == at(schedule, 0.0) == pytest.approx(2.0)


@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_an_exponential_cannot_start_or_end_at_zero(start: float, end: float) -> None:
    with pytest.raises(ValueError, match=f"above 0, got {start} and {end}"):
        Exponential(start=start, end=end)


def test_a_warm_up_rises_and_then_follows_its_schedule() -> None:
    rate = Warmup(then=Linear(start=1.0, end=0.0), over=0.1)
    assert [at(rate, progress) for progress in (0.0, 0.05, 0.1, 0.5, 1.0)] == pytest.approx([0, 0.475, 0.9, 0.5, 0])
    assert at(Warmup(then=0.2), 0.005) == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"Warmup\.over"):
        Warmup(then=0.1, over=0.0)


def test_a_warm_up_can_be_set_and_written() -> None:
    rate = "{type: Warmup, then: {type: Linear, start: 1e-3, end: 0}}"
    experiment = load_experiment("kuhn", **{"learner.learning_rate": rate})
    assert experiment.learner.learning_rate == Warmup(then=Linear(start=1e-3, end=0.0))
    assert decode(encode(experiment)) == experiment
