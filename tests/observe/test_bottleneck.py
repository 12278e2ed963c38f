"""What holds a run up, from who waits for whom."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.observe.run_state import find_bottleneck


def found(actors: tuple[float, ...], learner_waits: float, **how: Any) -> Any:
    """`actors`: game, inference, other, waiting."""
    settings: dict[str, Any] = {"num_actors": 2, "schedule": "async", "central": False, "run": "runs/mine"}
    return find_bottleneck(
        dict(zip(("game", "inference", "other", "waiting"), actors, strict=True)),
        {"training": 1.0 - learner_waits, "other": 0.0, "waiting": learner_waits},
        **(settings | how),
    )


@pytest.mark.parametrize(
    ("actors", "learner_waits", "what", "advice"),
    [
        ((0.6, 0.2, 0.2, 0.0), 0.5, "game", "ludus scale runs/mine actors=3"),
        ((0.2, 0.6, 0.2, 0.0), 0.5, "inference", "actor.num_tables"),
        ((0.2, 0.1, 0.1, 0.6), 0.05, "learner", "learner.epochs"),
        ((0.2, 0.2, 0.1, 0.5), 0.5, "buffer", "learner.max_lag"),
        ((0.5, 0.3, 0.2, 0.0), 0.0, "game", "actors=3"),
    ],
)
def test_who_waits_shows_it(actors: tuple[float, ...], learner_waits: float, what: str, advice: str) -> None:
    bottleneck = found(actors, learner_waits)
    assert bottleneck.what == what
    assert advice in bottleneck.advice
    assert f"the learner for actors {learner_waits:.0%}" in bottleneck.why


def test_who_takes_turns_is_told_how_not_to() -> None:
    assert "schedule=async" in found((0.2, 0.2, 0.1, 0.5), 0.5, schedule="sync").advice


def test_a_policy_worker_does_not_hear_that_it_should_be_one() -> None:
    assert "inference=worker" not in found((0.2, 0.6, 0.2, 0.0), 0.5, central=True).advice


def test_nothing_is_said_before_anything_is_known() -> None:
    assert find_bottleneck({}, {"waiting": 0.0}, num_actors=1, schedule="sync", central=False, run="r") is None


def test_a_busy_buffer_worker_that_the_learner_waits_for() -> None:
    shares = {"recomputing": 0.93, "waiting": 0.07}
    found = find_bottleneck(
        {"game": 0.3, "inference": 0.2, "other": 0.1, "waiting": 0.4},
        {"training": 0.5, "other": 0.1, "waiting": 0.4},
        shares,
        num_actors=2,
        schedule="async",
        central=False,
        run="r",
    )
    assert found is not None
    assert found.what == "buffer"
    assert "buffer worker is busy 93%" in found.why
    assert "learner.recompute_lag" in found.advice


def test_the_advice_is_for_this_machine_and_this_run() -> None:
    """No GPU that is not there, and not fewer actors than one."""
    learner, inference = ((0.2, 0.1, 0.1, 0.6), 0.05), ((0.2, 0.6, 0.2, 0.0), 0.5)
    for shares in (learner, inference):
        assert "cuda" not in found(*shares).advice
        assert "inference=worker" not in found(*shares).advice
    assert "learner.device=cuda" in found(*learner, idle_gpu=True).advice
    assert "actor.inference=worker" in found(*inference, idle_gpu=True).advice
    assert "fewer actors" in found(*learner, num_actors=2).advice
    assert "fewer actors" not in found(*learner, num_actors=1).advice
