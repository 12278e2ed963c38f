"""A learner for each player on nodes of a cluster: each where there is room, and one that dies starts again alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_runs import check_run, faults_of, needs_ray, ray_run
from small_runs import small

from ludus.experiment import ClusterConfig, Experiment
from ludus.league.matchmaking import PFSP, SelfPlay
from ludus.league.rules import Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.ray.loopback import LoopbackCluster
from ludus.runtime.ray.transfer import TrajectoryReceiver, TrajectorySender
from ludus.runtime.shared_parts import SharedParts
from ludus.system.shared_memory import Signal

pytestmark = needs_ray


def two_players(**changes: Any) -> Experiment:
    described = small(budget=10**9, cluster=ClusterConfig(ranks_per_node=1), **changes)
    roles = {
        "main": Role(matchmaking=SelfPlay()),
        "exploiter": Role(matchmaking=PFSP(), model=ActorCritic(hidden=(4,))),
    }
    learner = replace(described.learner, placement="per_player")
    return replace(described, learner=learner, league=replace(described.league, roles=roles))


class Direct:
    """A node that is called without Ray."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._call(name, *arguments)


def test_what_a_learner_has_to_say_reaches_actors_and_learners_of_another_node() -> None:
    """Node A has the learner of `main`, node B that of `exploiter` and the actor."""
    from concurrent.futures import Future

    roles = {"main": "main", "exploiter": "exploiter"}
    a, b = (SharedParts(two_players(), roles, 1, np.zeros) for _ in range(2))
    signals = [Signal.create() for _ in a.heartbeats]

    def to(call: Any) -> Any:
        def answered(_: str, *arguments: Any) -> Future[bool]:
            done: Future[bool] = Future()
            done.set_result(call(*arguments))
            return done

        return Direct(answered)

    receiver = TrajectoryReceiver(a, signals, lambda _: to(lambda *update: sender.take_in(*update)), (), [0])
    sender = TrajectorySender(b, signals, {0: to(lambda *sent: receiver.deliver(*sent))}, compress="none", in_flight=2)
    receiver.admit(0, 7, "b")
    sender.open(0, 7)
    codes = a.code(0, 0, np.arange(3))
    for channel in (0, 1):
        b.ready[0][channel].put(codes)
    sender.step()
    assert np.array_equal(a.ready[0][0].take(), codes)
    assert len(b.ready[0][1]) == 3, "its learner is here"
    a.free[0][0].put(codes)
    a.used[0] = (30, 99)
    a.generations[0], a.decisions[0], a.held_up[0, 0] = 3, 500, True
    receiver.step()
    assert np.array_equal(b.free[0][0].take(), codes)
    assert b.used[0].tolist() == [30, 0], "of the other player, its own learner knows better"
    assert (b.generations.tolist(), b.decisions.tolist()) == ([3, 0], [500, 0])
    assert b.held_up.tolist() == [[True, False]]


def learners_of(path: Path) -> dict[str, dict[str, Any]]:
    """As `ludus status` tells it."""
    program = [sys.executable, "-m", "ludus.cli.main", "status", str(path), "--json"]
    status = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    return {one["name"]: one for one in status["workers"] if one["name"].startswith("learner")}


@pytest.mark.slow
def test_learners_on_two_nodes_and_one_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with (
        LoopbackCluster(2, 2) as nodes,
        ray_run(path, two_players(), "--address", nodes.address, environment=nodes.environment) as run,
    ):
        run.learned(6_000)
        before = learners_of(path)
        assert before.keys() == {"learner-main", "learner-exploiter"}
        assert len({one["node"] for one in before.values()}) == 2
        os.kill(before["learner-exploiter"]["pid"], signal.SIGKILL)
        run.until(lambda numbers: numbers["restarts"] >= 1)
        run.learned(12_000)
        after = learners_of(path)
        assert after["learner-main"]["pid"] == before["learner-main"]["pid"]
        assert after["learner-exploiter"]["pid"] != before["learner-exploiter"]["pid"]
        assert after["learner-exploiter"]["node"] == before["learner-exploiter"]["node"]
        run.interrupt()
        assert run.end() == 130
    league = check_run(path)
    assert league.standings["exploiter"].incarnation == 1
    assert league.standings["main"].incarnation == 0
    assert min(standing.decisions for standing in league.standings.values()) > 2_000
    assert [(fault["worker"], fault["then"]) for fault in faults_of(path)] == [
        ("learner-exploiter", "started again from the checkpoint; the others go on")
    ]
