"""Vector environments that reset themselves, pools, and environments of the old gym, as tables."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from ludus.config import encode
from ludus.data.addresses import address_of
from ludus.experiment import Experiment
from ludus.games.adapters.gymnasium import Gymnasium
from ludus.games.adapters.gymnasium_tables import OldGym, PoolTables, SelfResettingTables, SingleTables
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import GameBatch, allocate_actions
from ludus.league.rules import EvaluationConfig
from ludus.models.network_policy import ActorCritic
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig

LENGTH = 4


class Counters:
    """Each environment counts its steps up from 10 times the number of its episode; the fourth ends it, and
    every second one is cut off instead. Pays its count."""

    observation_space = spaces.Box(0, 1_000, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.episode = np.zeros(num_envs, np.int64)
        self.count = np.zeros(num_envs, np.int64)

    def begin(self, ids: Any) -> None:
        self.episode[ids] += 1
        self.count[ids] = 0

    def shown(self, ids: Any = slice(None)) -> Any:
        return (10 * self.episode + self.count)[ids, None].astype(np.float32)

    def ends(self, ids: Any = slice(None)) -> tuple[Any, Any]:
        ended, odd = self.count[ids] >= LENGTH, self.episode[ids] % 2 == 1
        return ended & odd, ended & ~odd

    def close(self) -> None:
        pass


class NextStep(Counters):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def reset(self, *, seed: int | None = None) -> Any:
        self.begin(slice(None))
        return self.shown(), {}

    def step(self, actions: Any) -> Any:
        asleep = self.count >= LENGTH
        self.count[~asleep] += 1
        self.begin(asleep)
        paid = np.where(asleep, 0, self.count).astype(np.float64)
        return self.shown(), paid, *self.ends(), {}


class SameStep(Counters):
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def reset(self, *, seed: int | None = None) -> Any:
        self.begin(slice(None))
        return self.shown(), {}

    def step(self, actions: Any) -> Any:
        self.count += 1
        paid, last, (over, cut) = self.count.astype(np.float64), self.shown(), self.ends()
        self.begin(over | cut)
        info = {"final_obs": np.array([*last, None], object)[:-1], "_final_obs": over | cut}
        return self.shown(), paid, over, cut, info


class FourValues(SameStep):
    """As vector environments were before Gymnasium."""

    metadata = {}  # noqa: RUF012

    def reset(self) -> Any:
        return super().reset()[0]

    def step(self, actions: Any) -> Any:
        shown, paid, over, cut, info = super().step(actions)
        infos = [
            {"terminal_observation": last, "TimeLimit.truncated": bool(one)}
            for last, one in zip(info["final_obs"], cut, strict=True)
        ]
        return shown, paid, over | cut, infos


class Pool(Counters):
    """As EnvPool: takes ids, and answers in an order of its own."""

    def reset(self, env_id: Any = None) -> Any:
        self.begin(env_id)
        return self.shown(env_id), {"env_id": env_id}

    def step(self, action: Any, env_id: Any = None) -> Any:
        assert len(action) == len(env_id)
        self.count[env_id] += 1
        back = env_id[::-1]
        return self.shown(back), self.count[back].astype(np.float64), *self.ends(back), {"env_id": back}


def step(batch: GameBatch) -> list[float]:
    batch.step(allocate_actions(batch.spec, batch.num_tables))
    shown: list[float] = batch.view.observation[0]["observation"][:, 0, 0].tolist()
    return shown


KINDS = [(NextStep, SelfResettingTables), (SameStep, SelfResettingTables), (FourValues, SelfResettingTables),
         (Pool, PoolTables)]  # fmt: skip


@pytest.mark.parametrize(("env", "batch"), KINDS)
def test_environments_that_reset_themselves_keep_the_other_promises(env: type, batch: type) -> None:
    source = Gymnasium(env_id=address_of(env))
    assert not source.spec.repeatable
    assert isinstance(source.tables(2), batch)
    report = check_game(source, episodes=16, max_steps=100)
    assert report.ok, str(report)
    tested = {verdict.promise for verdict in report.verdicts if verdict.times}
    assert {"truncation", "ended_stays", "reset_only"} <= tested
    assert not {"same_again", "same_elsewhere"} & tested


@pytest.mark.parametrize(("env", "batch"), KINDS)
def test_the_last_observation_stays_and_the_next_episode_begins_at_its_start(env: type, batch: type) -> None:
    tables = Gymnasium(env_id=address_of(env)).tables(2)
    tables.reset(np.arange(2), np.arange(2, dtype=np.uint64))
    assert [step(tables)[0] for _ in range(LENGTH)] == [11, 12, 13, 14]
    assert tables.view.over.all()
    assert tables.view.score[:, 0].tolist() == [10.0, 10.0]
    tables.reset(np.arange(2), np.arange(2, dtype=np.uint64))
    if env is NextStep:
        assert not tables.view.observation[0]["observation"].any()
        step(tables)
        assert not tables.view.reward.any()
    assert tables.view.observation[0]["observation"][:, 0, 0].tolist() == [20, 20]
    assert [step(tables)[1] for _ in range(LENGTH)] == [21, 22, 23, 24]
    assert tables.view.truncated.all()


def test_a_pool_steps_only_the_tables_that_run() -> None:
    tables = Gymnasium(env_id=address_of(Pool)).tables(3)
    tables.reset(np.array([0, 2]), np.arange(2, dtype=np.uint64))
    step(tables)
    tables.reset(np.array([1]), np.arange(1, dtype=np.uint64))
    assert step(tables) == [12, 11, 12]


class OldWalk:
    """Four values, seeded by a method; a list of its own as observation space."""

    observation_space = spaces.Discrete(30)
    action_space = spaces.Discrete(2)
    spec = SimpleNamespace(max_episode_steps=6)

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self) -> int:
        self.steps, self.place = 0, int(self.rng.integers(3, 9))
        return self.place

    def step(self, action: int) -> tuple[int, float, bool, dict[str, Any]]:
        self.steps += 1
        self.place += 1 if action else -1
        done = self.place == 0 or self.steps == 6
        return self.place, float(action), done, {"TimeLimit.truncated": self.steps == 6 and self.place != 0}


class Unseeded(OldWalk):
    seed = None  # type: ignore[assignment]


@pytest.mark.parametrize("make", [OldGym, Gymnasium])
def test_an_environment_with_four_values(make: Any) -> None:
    source = make(env_id=address_of(OldWalk))
    assert source.spec.max_length == 6
    assert isinstance(source.tables(1), SingleTables)
    report = check_game(source, episodes=16, max_steps=200)
    assert report.ok, str(report)
    assert {verdict.promise: verdict.times for verdict in report.verdicts}["truncation"]
    assert not make(env_id=address_of(Unseeded)).spec.repeatable


def test_the_old_library_is_named_by_its_own_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("gym")
    library.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    library.make = lambda env_id: OldWalk()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gym", library)
    source = resolve("gym:Walk-v0")
    assert isinstance(source, OldGym)
    assert check_game(source, episodes=4, max_steps=50).ok


def test_a_run_that_is_stopped_starts_its_open_episodes_anew(tmp_path: Path) -> None:
    experiment = Experiment(
        name="counters",
        game=Gymnasium(env_id=address_of(SameStep)),
        budget=64,
        model=ActorCritic(hidden=(4,)),
        actor=ActorConfig(num_tables=4, matches=2, episodes_per_table=2, unroll_length=4),
        learner=LearnerConfig(batch_size=32, minibatch_size=32, buffer_size=128),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=4),
    )
    RunFolder.create(tmp_path / "run", encode(experiment), seed=0, command=())
    for budget, incarnation in ((64, 0), (128, 1)):
        folder = RunFolder.open(tmp_path / "run")
        with closing(serial_training(replace(experiment, budget=budget), folder)) as training:
            assert training.learner.players["main"].incarnation == incarnation
            assert training.run() == FINISHED
