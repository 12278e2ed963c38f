"""Where players start: from a named model, from a reset that no checkpoint has seen, and with few slots."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from invariants import check_run
from tiny_runs import faults_of, kill, local, once, tiny

from ludus.config import encode
from ludus.data.records import LearnerProgress, ModelId
from ludus.data.trees import Tree
from ludus.games.builtin.rock_paper_scissors import RockPaperScissors
from ludus.league.matchmaking import SelfPlay, UniformPast
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.models.policy import join_kinds, weights_of
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.networks import build_policies
from ludus.runtime.processes import ProcessWorkers, local_training
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def test_row_36_a_reset_that_no_checkpoint_has_seen_is_repeated_under_the_new_incarnation(tmp_path: Path) -> None:
    """The learner dies after a reset: what it learns afterwards is heard, and no model id is used twice."""
    role = Role(matchmaking=SelfPlay(), promotion=BySteps(every=4_000), reset_probability=1.0)
    described = tiny(budget=12_000, checkpoint_every=3_000, league=LeagueRules(roles={"main": role}, bots=("random",)))

    def was_reset(training: Coordinator[ProcessWorkers]) -> bool:
        standing = training.league.standings["main"]
        return standing.incarnation == 1 and training._saved_at < standing.interval_start

    watch = once(was_reset, lambda training: kill(training.workers.learner_pid))
    path = tmp_path / "run"
    with local(path, described) as training:
        assert training.run(watch) == FINISHED
        assert watch.done
        standing, report = training.league.standings["main"], training.learner.report("main")
        assert (standing.incarnation, standing.step) == (report.incarnation, report.step)
        reports = [e for _, e in training._ledger.replay() if isinstance(e, LearnerProgress)]
        means = Counter((e.incarnation, e.step) for e in set(reports))
        assert max(means.values()) == 1, "a model id has two contents"
    check_run(path)


def test_both_runtimes_begin_with_the_model_that_a_role_names(tmp_path: Path) -> None:
    roles = {"main": Role(start="teacher:0:0")}
    began: dict[str, Tree] = {}
    for runtime in ("serial", "local"):
        described = tiny(league=LeagueRules(roles=roles, bots=("random",)))
        described = replace(described, runtime=runtime)  # type: ignore[arg-type]
        folder = RunFolder.create(tmp_path / runtime, encode(described), seed=0, command=())
        policies = build_policies(described, seed=777)
        teacher = join_kinds(policies, map(weights_of, policies))
        folder.models.publish(ModelId("teacher", 0, 0), teacher, parent=None, facts={})
        with folder.lock():
            if runtime == "serial":
                with closing(serial_training(described, folder)) as serial:
                    began[runtime] = serial.learner.players["main"].weights()
            else:
                with closing(local_training(described, folder, 1)) as processes:
                    began[runtime] = processes.workers.group.launcher.parts.weights.fetch("main")[1]
        for name, array in teacher.items():
            np.testing.assert_array_equal(began[runtime][name], array)


def test_an_actor_that_is_short_of_slots_waits_for_the_learner(tmp_path: Path) -> None:
    """Two players by turns at tables with one decision an episode: far more slots for as many decisions."""
    path = tmp_path / "run"
    described = tiny(
        budget=20_000,
        game=RockPaperScissors(),
        actor=ActorConfig(num_tables=513, matches=3, episodes_per_table=2, unroll_length=16),
        learner=LearnerConfig(batch_size=4_096, buffer_size=4_096, minibatch_size=4_096, epochs=1),
        league=LeagueRules(
            roles={name: Role(matchmaking=UniformPast()) for name in ("main", "second")}, bots=("random",)
        ),
    )
    with local(path, described) as training:
        assert training.run() == FINISHED
        assert training.learner.decisions >= described.budget
    assert not faults_of(path)
    check_run(path)
