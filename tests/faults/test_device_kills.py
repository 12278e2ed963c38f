"""A run of the device runtime, on the CPU, that is killed at random moments and goes on: its ledger stays in order."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from invariants import check_nothing_left, check_run
from tiny_runs import create, kill, started, stop, tiny

from ludus.experiment import Experiment
from ludus.league.matchmaking import Live
from ludus.league.promotion import BoundedHistory, BySteps, ByTime
from ludus.league.rules import LeagueRules, Role
from ludus.runtime.assemble import CHECKPOINT
from ludus.store.run_folder import RunFolder

KILLS = 50
SEED = 20261
"""Kept, so that a failure can be looked at again; what is going on when it dies depends on the speed of the machine."""


def league() -> Experiment:
    """Snapshots by time and by steps, a bounded history, resets, evaluation: all that writes to the ledger."""
    described = tiny(budget=10**9, runtime="device")
    [main] = described.league.roles.values()
    history = BoundedHistory(size=5, strongest=1, delete_models=True)
    roles = {
        "main": replace(main, promotion=ByTime(seconds=0.2), history=history),
        "foe": Role(matchmaking=Live(role="main"), promotion=BySteps(every=5_000), reset_probability=1.0),
    }
    learner = replace(described.learner, device="cpu")
    return replace(described, learner=learner, league=LeagueRules(roles=roles, bots=("random",)))


class Victim:
    """One run, its chances, and what its ledger held after the latest kill."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self._rng = path, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self._rows: list[bytes] = []

    def die(self) -> None:
        """Start the run and kill it: mostly while it trains, else while it starts."""
        if self._rng.random() < 0.7:
            with started(self.path) as training:
                time.sleep(self._rng.uniform(0.0, 1.5))
                kill(training.pid)
                training.wait()
            self.kills["training"] += 1
        else:
            program = [sys.executable, "-m", "ludus.cli.main", "train", "--run", str(self.path), "--resume", "--quiet"]
            with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
                time.sleep(self._rng.uniform(0.0, 6.0))
                kill(training.pid)
            self.kills["starting"] += 1
        check_nothing_left(self.path, [training.pid], clean=False)
        self._check()

    def _check(self) -> None:
        """All invariants hold, and every row that was there is there still."""
        if not (self.path / "ledger.db").exists():
            assert not self._rows
            return
        check_run(self.path, open_matches=True)
        rows = rows_of(self.path)
        assert rows[: len(self._rows)] == self._rows
        self._rows = rows


def rows_of(path: Path) -> list[bytes]:
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        return [msgspec.json.encode(event) for _, event in ledger.replay()]


def die_and_stop(path: Path, kills: int) -> str:
    create(path, league())
    victim = Victim(path, SEED)
    while victim.kills.total() < kills:
        victim.die()
    with started(path) as training:
        stop(training)  # asserts 130: the state is saved
    check_nothing_left(path, [training.pid])
    found = check_run(path)
    saved = RunFolder.open(path).checkpoints(CHECKPOINT).load_latest()
    assert saved is not None
    assert saved.step >= sum(standing.decisions for standing in found.standings.values())
    told = ", ".join(f"{count} while {what}" for what, count in sorted(victim.kills.items()))
    assert found.starts >= victim.kills["training"] + 1
    assert found.matches.finished > 0
    assert len(found.candidates.history_of("main")) <= 5
    return (
        f"{victim.kills.total()} random kills on device (seed {SEED}): {told}; {found.num_events:,} rows, "
        f"{found.matches.issued:,} matches issued, {found.matches.finished:,} finished, {found.matches.void:,} void, "
        f"{len(found.players):,} players, none lost"
    )


def test_a_few_random_kills_leave_the_ledger_in_order(tmp_path: Path) -> None:
    die_and_stop(tmp_path / "run", 2)


@pytest.mark.slow
def test_fifty_random_kills_leave_the_ledger_in_order(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    told = die_and_stop(tmp_path / "run", KILLS)
    print(told)
    record_property("told", told)
