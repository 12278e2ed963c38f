"""Ranks of the learner are killed, again and again; the league keeps its word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from killing import EVERYTHING, STOP, Killer
from tiny_runs import BATCH, create, tiny

from ludus.workers.config import LearnerConfig

RANKS = LearnerConfig(
    batch_size=BATCH, minibatch_size=BATCH // 2, epochs=2, buffer_size=8 * BATCH, schedule="async", ranks=2
)


@pytest.mark.slow
def test_rows_04_and_09_any_rank_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "run"
    create(path, replace(tiny(learner=RANKS), budget=10**9, actors=2))
    killer = Killer(path, seed=7)
    killer.live(("learner", "learner", "actor"), EVERYTHING)
    killer.live(("learner", "learner"), STOP)
    assert killer.kills == {"learner": 4, "actor": 1, EVERYTHING: 1}
