"""Middleware around the steps of workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ludus.workers.worker import IDLE, Middleware, Progress, StopTraining, Worker, wrap


class Counter:
    """A worker that counts its own steps."""

    def __init__(self, name: str = "counter") -> None:
        self.name = name
        self.steps = 0

    def step(self) -> Progress:
        self.steps += 1
        return Progress(count=self.steps)

    def close(self) -> None:
        pass


def test_without_middleware_it_is_the_step_itself() -> None:
    worker = Counter()
    step = wrap(worker, ())
    assert [step().count, step().count] == [1, 2]


def test_the_first_middleware_is_outermost_and_sees_the_worker() -> None:
    calls: list[str] = []

    def layer(label: str) -> Middleware:
        def around(worker: Worker, step: Callable[[], Progress]) -> Progress:
            calls.append(f"{label} before {worker.name}")
            progress = step()
            calls.append(f"{label} after {progress.count}")
            return progress

        return around

    wrap(Counter("w"), (layer("outer"), layer("inner")))()
    assert calls == ["outer before w", "inner before w", "inner after 1", "outer after 1"]


def test_middleware_may_change_the_progress_skip_the_step_or_stop() -> None:
    def doubled(worker: Worker, step: Callable[[], Progress]) -> Progress:
        return Progress(count=2 * step().count, statistics={"doubled": 1.0})

    def skipped(worker: Worker, step: Callable[[], Progress]) -> Progress:
        return IDLE

    def stopping(worker: Worker, step: Callable[[], Progress]) -> Progress:
        raise StopTraining("enough")

    worker = Counter()
    assert wrap(worker, (doubled, doubled))() == Progress(count=4, statistics={"doubled": 1.0})
    assert wrap(worker, (doubled, skipped))().count == 0
    assert worker.steps == 1
    with pytest.raises(StopTraining, match="enough"):
        wrap(worker, (stopping,))()
    assert worker.steps == 1
