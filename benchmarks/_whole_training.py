"""Costs that only show in a whole training: many opponents instead of one, and the ledger at full speed."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ludus.config import encode
from ludus.experiment import Experiment
from ludus.league.matchmaking import Candidates, Law, Matchmaker, uniform
from ludus.league.payoff import Payoff
from ludus.league.promotion import BySteps, Never
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.recipes import connect_four, kuhn
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.ledger import Ledger
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig

OPPONENTS = 16
NOBODY = EvaluationConfig(opponents=(), past=0, ladder=0)
ACTOR = ActorConfig(num_tables=1024, matches=OPPONENTS, episodes_per_table=4, unroll_length=16)
WINDOWS = 7
STEPS = 60
"""Of the actor in a window: a few episodes at every table."""
_turns: dict[int, Iterator[int]] = defaultdict(itertools.count)


@dataclass(frozen=True, kw_only=True, slots=True)
class InTurn(Matchmaker):
    """The first `count` frozen players, one after the other, so that each gets an equal block of tables."""

    count: int

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        return uniform(candidates.frozen()[: self.count], player)

    def choose(self, player: str, candidates: Candidates, payoff: Payoff, rng: np.random.Generator) -> tuple[str, ...]:
        return (candidates.frozen()[next(_turns[self.count]) % self.count],)


def opponent_rates() -> list[tuple[str, str]]:
    """Whole steps of an actor against one frozen player at all tables, and against sixteen in equal blocks.
    CPU time per decision; the windows alternate, and each pair gives a ratio."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {count: _against(count, Path(folder) / str(count)) for count in (1, OPPONENTS)}
        costs: dict[int, list[float]] = {count: [] for count in runs}
        for _ in range(WINDOWS + 1):
            for count, run in runs.items():
                costs[count].append(_actor_cost(run))
        for run in runs.values():
            run.close()
    one, many = (costs[count][1:] for count in (1, OPPONENTS))
    ratios = sorted(many_cost / one_cost for one_cost, many_cost in zip(one, many, strict=True))
    ratio = ratios[WINDOWS // 2]
    verdict = "met" if ratio <= 1.3 else "**MISSED**"
    return [
        ("one frozen opponent", f"{min(one) * 1e6:.2f} us a decision"),
        (f"{OPPONENTS} frozen opponents", f"{min(many) * 1e6:.2f} us a decision"),
        (
            "ratio, middle of the windows (bar: at most 1.3)",
            f"{ratio:.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f}), {verdict}",
        ),
    ]


def _against(opponents: int, path: Path) -> Coordinator[SerialWorkers]:
    """A run on connect four whose player meets that many of the snapshots it has made."""
    recipe = connect_four.experiment()
    batch = recipe.learner.batch_size
    making = replace(
        recipe,
        budget=(OPPONENTS + 1) * batch,
        actor=ACTOR,
        learner=replace(recipe.learner, epochs=1, minibatch_size=batch),
        league=LeagueRules(roles={"main": Role(promotion=BySteps(every=1))}),
        evaluation=NOBODY,
    )
    folder = RunFolder.create(path, encode(making), seed=0)
    training = serial_training(making, folder)
    training.run()
    training.close()
    found = len(training.league.candidates.frozen())
    if found < OPPONENTS:
        raise AssertionError(f"the run has made {found} snapshots, {OPPONENTS} are needed")
    playing = replace(
        making,
        budget=10**12,
        league=LeagueRules(roles={"main": Role(matchmaking=InTurn(count=opponents), promotion=Never())}),
    )
    return serial_training(playing, folder)


def _actor_cost(training: Coordinator[SerialWorkers]) -> float:
    """CPU seconds per decision of the actor; what the others take in between does not count."""
    spent, decisions = 0.0, 0
    for _ in range(STEPS):
        training.learner.step()
        training.controller.step()
        before = time.process_time()
        decisions += training.workers.actor.step().count
        spent += time.process_time() - before
    return spent / decisions


def ledger_share(budget: int = 200_000) -> list[tuple[str, str]]:
    """CPU time inside the ledger, as a share of all, while Kuhn trains as fast as it can in one process."""
    experiment: Experiment = replace(kuhn.experiment(), budget=budget, evaluation=NOBODY)
    with tempfile.TemporaryDirectory() as folder:
        training = serial_training(experiment, RunFolder.create(folder, encode(experiment), seed=0))
        timed = _Timed(Ledger.append)
        Ledger.append = timed.method()  # type: ignore[method-assign]
        before = time.process_time()
        try:
            training.run()
        finally:
            Ledger.append = timed.function  # type: ignore[method-assign]
            training.close()
        total = time.process_time() - before
    share = timed.spent / total
    verdict = "met" if share < 0.01 else "**MISSED**"
    return [
        ("decisions per CPU second", f"{budget / total:,.0f}"),
        ("commits", f"{timed.calls} in {total:.1f} s, {timed.spent / timed.calls * 1e6:.0f} us each"),
        ("CPU share of the ledger (bar: below 1 %)", f"{share:.2%}, {verdict}"),
    ]


class _Timed:
    """Counts the calls of a function and the CPU time inside it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.spent = 0.0
        self.calls = 0

    def method(self) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            before = time.process_time()
            result = self.function(*arguments)
            self.spent += time.process_time() - before
            self.calls += 1
            return result

        return call
