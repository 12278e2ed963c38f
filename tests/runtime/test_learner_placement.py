"""A learner process for each learning player: together they train, save and go on as one learner for all does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from edited_runs import tiny

from ludus.config import encode
from ludus.experiment import Experiment
from ludus.league.matchmaking import PFSP, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import CHECKPOINT
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.processes import ProcessWorkers, default_actors, local_training
from ludus.runtime.rounds import FINISHED
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.config import LearnerConfig

LEARNER = LearnerConfig(batch_size=400, minibatch_size=400, epochs=1, buffer_size=2_000, placement="per_player")


def league(budget: int = 4_000, **changes: Any) -> Experiment:
    small = Role(matchmaking=PFSP(), promotion=BySteps(every=1_000), model=ActorCritic(hidden=(4,)))
    roles = {"main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=1_000)), "exploiter": small}
    rules = LeagueRules(roles=roles, bots=("random",))
    settings: dict[str, Any] = {"runtime": "local", "league": rules, "learner": LEARNER, "checkpoint_every": 1_000}
    return tiny(budget=budget, **(settings | changes))


@contextmanager
def training_in(
    path: Path, described: Experiment, num_actors: int = 1
) -> Iterator[tuple[Coordinator[ProcessWorkers], RunFolder]]:
    """A new run, or one that goes on with these settings."""
    if path.exists():
        folder = RunFolder.open(path).with_experiment(encode(described))
    else:
        folder = RunFolder.create(path, encode(described), seed=0, command=())
    with folder.lock(), closing(local_training(described, folder, num_actors)) as training:
        yield training, folder


def decisions(training: Coordinator[ProcessWorkers]) -> dict[str, int]:
    return {player: report.decisions for player, report in training.workers.learner.reports.items()}


def test_each_player_has_a_learner_and_the_checkpoint_is_that_of_all(tmp_path: Path) -> None:
    seen: dict[str, int | None] = {}

    def watch(training: Coordinator[ProcessWorkers]) -> None:
        seen.update({one.name: one.pid for one in training.workers.status()[0]})

    with training_in(tmp_path / "run", league()) as (training, folder):
        assert training.run(watch) == FINISHED
        learned = decisions(training)
        assert training.restarts == 0
    assert {name for name in seen if name.startswith("learner")} == {"learner-main", "learner-exploiter"}
    assert len({seen["learner-main"], seen["learner-exploiter"]}) == 2
    assert min(learned.values()) > 400
    assert sum(learned.values()) >= 4_000
    saved = folder.checkpoints(CHECKPOINT).load_latest()
    assert saved is not None
    assert {player: facts["decisions"] for player, facts in saved.facts["learner"].items()} == learned
    together = league(5_000, learner=replace(LEARNER, placement="together"))
    with training_in(tmp_path / "run", together) as (again, _):
        assert list(again.workers.group.learners) == [""]
        assert decisions(again) == learned
        assert again.run() == FINISHED


@pytest.mark.parametrize("placement", ["together", pytest.param("per_player", marks=pytest.mark.slow)])
def test_an_actor_that_dies_while_a_learner_has_news_costs_no_learner(
    tmp_path: Path, placement: Literal["together", "per_player"]
) -> None:
    """The controller was paused, so that it finds both in the same wait: replacing the actor takes the news, too."""
    described = league(3_000, learner=replace(LEARNER, placement=placement))
    killed: list[int] = []

    def watch(training: Coordinator[ProcessWorkers]) -> None:
        group = training.workers.group
        actor = group.actors[0].process
        if killed or training.learner.decisions < 1_000 or actor is None or actor.control.poll(0):
            return
        learners = [one.control for one in group.learners.values()]
        if wait(learners, timeout=0.2):  # longer, and the actor would wait for the controller
            os.kill(actor.pid, signal.SIGKILL)
            actor.wait_end(10)
            killed.append(actor.pid)

    with training_in(tmp_path / "run", described) as (training, _):
        assert training.run(watch) == FINISHED
        assert training.faults.counts == {"killed": 1}
        assert set(training.workers.group.learner_starts.values()) == {1}
        assert training.restarts == 1


@pytest.mark.slow
def test_parts_of_checkpoints_go_with_their_players(tmp_path: Path) -> None:
    with training_in(tmp_path / "run", league(1_000)) as (training, folder):
        stale = folder.checkpoints(f"{CHECKPOINT}-removed")
        stale.save(1, {"a": np.zeros(1)}, {})
        training.save(clean=False)
        training._restart("league edited")
        kept = sorted(path.name for path in stale.folder.parent.iterdir())
    assert kept == [CHECKPOINT, f"{CHECKPOINT}-exploiter", f"{CHECKPOINT}-main"]


@pytest.mark.slow
def test_a_killed_learner_starts_again_alone(tmp_path: Path) -> None:
    roles = {
        "main": Role(count=2, matchmaking=SelfPlay(), promotion=BySteps(every=4_000)),
        "exploiter": Role(count=3, matchmaking=PFSP(), promotion=BySteps(every=4_000), initial_snapshot=False),
    }
    described = league(60_000, league=LeagueRules(roles=roles, bots=("random",)), checkpoint_every=4_000)
    before: dict[str, int | None] = {}
    at_kill: dict[str, int] = {}
    seen: list[dict[str, int]] = []
    states: set[str] = set()

    def watch(training: Coordinator[ProcessWorkers]) -> None:
        now = decisions(training)
        workers = {one.name: one for one in training.workers.status()[0]}
        if not before and now["main_1"] > 3_000 and sum(now.values()) > 6_000:
            before.update({name: one.pid for name, one in workers.items()})
            at_kill.update(now)
            pid = before["learner-main_1"]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        elif before:
            seen.append(now)
            states.add(workers["learner-main_1"].state)
            if workers["learner-main_1"].restarts and workers["learner-main_1"].state == "working":
                after = {name: one.pid for name, one in workers.items()}
                after.pop("learner-main_1")
                assert after == {name: pid for name, pid in before.items() if name != "learner-main_1"}

    with training_in(tmp_path / "run", described, 2) as (training, folder):
        assert training.run(watch) == FINISHED
        incarnations = {player: one.incarnation for player, one in training.league.standings.items()}
    assert sum(name.startswith("learner-") for name in before) == 5
    assert "starting" in states, "the others were watched while it started"
    assert training.restarts == 1
    assert incarnations == {"main_0": 0, "main_1": 1, "exploiter_0": 0, "exploiter_1": 0, "exploiter_2": 0}
    starting = [now for now in seen if now["main_1"] == at_kill["main_1"]]
    assert sum(starting[-1].values()) > sum(at_kill.values()), "the others learned meanwhile"
    assert seen[-1]["main_1"] > at_kill["main_1"] + 3_000, "it learns again"
    faults = read_metrics(folder.metrics / "faults.jsonl")[0]
    assert [(one["worker"], one["then"]) for one in faults] == [
        ("learner-main_1", "started again from the checkpoint; the others go on")
    ]


def test_learners_of_players_have_cores_of_their_own() -> None:
    one, two = (default_actors(league(learner=replace(LEARNER, placement=how))) for how in ("together", "per_player"))
    assert two == max(1, one - 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ranks": 2}, "placement=per_player has one process for each player, got ranks=2"),
        ({"stacked": "on"}, "placement=per_player has one process for each player, got stacked=on"),
        ({"placement": "alone"}, "placement is 'alone', not one of"),
    ],
)
def test_what_does_not_go_with_it_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(LEARNER, **change)
