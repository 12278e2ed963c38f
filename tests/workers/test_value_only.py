"""After a reset, or from its start on, the value may be trained alone: meanwhile the policy stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_play import GAMES, self_play
from torch import Tensor, nn

from ludus.algorithms.actor_critic import Impala
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.config import ConfigError, encode
from ludus.data.batch import Batch
from ludus.data.records import ModelId
from ludus.data.specs import SeatKind
from ludus.experiment import Experiment
from ludus.games.builtin.connect_four import ConnectFour
from ludus.league.presets import alphastar
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.module_policy import ModulePolicy
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import value_parameters
from ludus.runtime.assemble import require_value_parameters
from ludus.runtime.networks import build_policies
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig
from ludus.workers.trained_player import TrainedPlayer

CONFIG = LearnerConfig(batch_size=64, minibatch_size=32, epochs=2, buffer_size=64, learning_rate=0.01)
MODELS = {
    "separate": ActorCritic(hidden=(8,)),
    "shared": ActorCritic(hidden=(8,), separate_critic=False),
    "normalised": ActorCritic(hidden=(8,), value_normalisation=True),
    "memory": ActorCritic(hidden=(8,), memory=4),
}


def played(model: ActorCritic) -> dict[int, Batch]:
    play = self_play(GAMES["connect_four"], model=model).run(40)
    return {kind: play.joined(kind) for kind in range(len(play.pools))}


def new_player(model: ActorCritic, algorithm: Any = None) -> TrainedPlayer:
    play = self_play(GAMES["connect_four"], model=model)
    return TrainedPlayer("main", play.build(3), algorithm or PPO(), CONFIG, seed=5)


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if not np.array_equal(before[name], after[name])}


@pytest.mark.parametrize("name", MODELS)
def test_the_policy_stays_and_the_value_learns_until_the_count_is_reached(name: str) -> None:
    model = MODELS[name]
    batches, main = played(model), new_player(model)
    main.update(batches, 0.0)
    size = main.decisions
    start = main.weights()
    main.reset(start, 1, value_only=2 * size)
    for _ in range(2):
        assert main.is_value_only
        assert main.update(batches, 0.1)["value_only"] == 1.0
    touched = changed(start, main.weights())
    assert touched
    assert all("/critic." in one or "/value_scale." in one for one in touched)
    assert not main.is_value_only
    assert "value_only" not in main.update(batches, 0.2)
    assert any("/heads." in one for one in changed(start, main.weights()))


@pytest.mark.parametrize("algorithm", [Impala(), MagnetPolicyGradient()], ids=["impala", "magnet"])
def test_whatever_the_algorithm(algorithm: Any) -> None:
    model = MODELS["separate"]
    main = new_player(model, algorithm)
    start = main.weights()
    main.reset(start, 1, value_only=10**9)
    main.update(played(model), 0.0)
    touched = changed(start, main.weights())
    assert touched
    assert all("/critic." in one for one in touched)


def test_a_stop_in_between_does_not_end_it() -> None:
    model = MODELS["separate"]
    first, second = new_player(model), new_player(model)
    first.reset(first.weights(), 1, value_only=10**9)
    second.load(*first.save())
    assert second.is_value_only


class Plain(nn.Module):
    """A user's own network, whose value has this name."""

    def __init__(self, kind: SeatKind, name: str) -> None:
        super().__init__()
        self.policy = nn.Linear(2, kind.num_options("move"))
        setattr(self, name, nn.Linear(2, 1))

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Users:
    def __init__(self, name: str) -> None:
        self.name = name

    def build(self, kind: SeatKind, seed: int) -> ModulePolicy:
        return ModulePolicy(kind, Plain(kind, self.name))


def test_a_users_own_network_says_by_its_names_what_the_value_is() -> None:
    kind = ConnectFour().spec.kinds[0]
    for name, found in (("value", 2), ("critic", 2), ("baseline", 0)):
        assert len(value_parameters(Users(name).build(kind, 0))) == found


def test_a_league_that_wants_it_of_a_network_that_does_not_say_is_refused_at_the_start() -> None:
    rules = alphastar(value_only_after_reset=1000)
    experiment = Experiment(name="x", game=ConnectFour(), budget=1, league=rules, model=Users("value"))
    require_value_parameters(experiment)
    with pytest.raises(ConfigError, match=r"main_exploiter.*value_only_decisions.*'value' or 'critic'"):
        require_value_parameters(replace(experiment, model=Users("baseline")))
    at_start = replace(
        experiment, league=LeagueRules(roles={"main": Role(value_only_at_start=5)}), model=Users("baseline")
    )
    with pytest.raises(ConfigError, match=r"main\.value_only_at_start.*'value' or 'critic'"):
        require_value_parameters(at_start)
    with pytest.raises(ValueError, match="value_only_at_start must be at least 0, got -1"):
        Role(value_only_at_start=-1)


def test_the_warm_up_is_what_a_reset_of_that_role_asks_for() -> None:
    assert alphastar(value_only_after_reset=7).roles["main_exploiter"].after_reset.value_only_decisions == 7


@pytest.mark.parametrize("decisions", [0, 10**9])
def test_a_player_that_starts_from_a_model_may_train_its_value_first(tmp_path: Path, decisions: int) -> None:
    given = ModelId("given", 0, 0)
    experiment = Experiment(
        name="x",
        game=GAMES["connect_four"],
        budget=256,
        model=MODELS["separate"],
        actor=ActorConfig(num_tables=8, matches=1, episodes_per_table=2),
        learner=CONFIG,
        league=LeagueRules(roles={"main": Role(start=str(given), value_only_at_start=decisions)}),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0, episodes=2),
        runtime="serial",
    )
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=0)
    start = TrainedPlayer("main", build_policies(experiment, 3), PPO(), CONFIG, seed=5).weights()
    folder.models.publish(given, start, parent=None, facts={})
    training = serial_training(experiment, folder)
    training.run()
    standing = training.league.standings["main"]
    assert standing.value_only_left == max(0, decisions - standing.decisions)
    touched = changed(start, training.learner.players["main"].weights())
    assert any("/critic." in one for one in touched)
    assert any("/heads." in one for one in touched) == (decisions == 0)
    training.close()
