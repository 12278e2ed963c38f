"""A hundred random kills of one run and more: actors, the learner, the policy worker, the controller, all."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from invariants import check_run
from killing import CONTROLLER, EVERYTHING, STOP, Killer
from tiny_runs import LOCAL, RAY, create, tiny

KILLS = {"local": 110, "ray": 12}
SEED = 20260
"""Kept, so that a failure can be looked at again; who dies when also depends on how fast the machine is."""


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_many_random_kills_lose_nothing_and_leave_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None], runtime: str
) -> None:
    described = tiny(budget=10**9, runtime=runtime)
    create(tmp_path / "run", replace(described, actor=replace(described.actor, inference="worker")))
    killer = Killer(tmp_path / "run", SEED)
    rng = random.Random(SEED)
    while killer.kills.total() < KILLS[runtime]:
        victims = rng.choices(["actor", "learner", "policy"], weights=[2, 1, 1], k=6)
        killer.live(victims, rng.choice([CONTROLLER, EVERYTHING]))
    killer.live([], STOP)
    league = check_run(tmp_path / "run")
    told = ", ".join(f"{count} {victim}" for victim, count in sorted(killer.kills.items()))
    record_property(
        "told",
        f"{killer.kills.total()} random kills on {runtime} (seed {SEED}): {told}; "
        f"{league.matches.issued:,} matches "
        f"issued, {league.matches.finished:,} finished, {league.matches.void:,} void, none lost",
    )
