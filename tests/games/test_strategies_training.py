"""Whole runs with AlphaStar's loss: players learn to follow what they are shown, and keep their teacher."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building_game import FACTS, PLACES, Building

from ludus.algorithms.alphastar import AlphaStarGradient, RewardWeights
from ludus.algorithms.teacher import Teacher
from ludus.config import encode
from ludus.data.specs import GameSpec
from ludus.data.trees import Tree
from ludus.experiment import Experiment
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.game import GameSource, allocate_actions
from ludus.games.strategies import WithStrategies
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import Policy
from ludus.recipes import skirmish
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig

TABLES = 32


@pytest.fixture
def game(tmp_path: Path) -> WithStrategies:
    """Build nothing but thing 0, 1 or 2, at least four of it."""
    order = np.repeat(np.arange(3, dtype=np.int16)[:, None], PLACES, 1)
    built = np.ones((3, FACTS), np.bool_)
    built[:, :3] = np.eye(3, dtype=np.bool_)
    np.savez(tmp_path / "strategies.npz", build_order=order, built=built)
    path = str(tmp_path / "strategies.npz")
    return WithStrategies(game=Building(), strategies=path, shown=1.0, active=1.0)


def experiment(game: GameSource, budget: int, **changes: Any) -> Experiment:
    return Experiment(
        name="strategies",
        game=game,
        budget=budget,
        model=ActorCritic(hidden=(32,)),
        algorithm=AlphaStarGradient(
            main=RewardWeights(policy=0.0, value=1.0), upgo=0.0, entropy=0.01, teacher=Teacher(weight=1e-3)
        ),
        actor=ActorConfig(num_tables=TABLES, matches=1, episodes_per_table=3, unroll_length=8),
        learner=LearnerConfig(batch_size=512, minibatch_size=512, epochs=2, learning_rate=0.01, buffer_size=8192),
        league=LeagueRules(
            roles={"main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=4_000))}, bots=("random",)
        ),
        evaluation=EvaluationConfig(opponents=(), past=0, episodes=3),
        **changes,
    )


def new_folder(path: Path, described: Experiment) -> RunFolder:
    return RunFolder.create(path, encode(described), seed=described.seed, command=())


def reward_for_following(game: GameSource, policies: tuple[Policy, ...]) -> float:
    """Mean over seats of the further rewards of an episode."""
    tables, rng = game.tables(TABLES), np.random.default_rng(0)
    tables.reset(np.arange(TABLES), np.arange(TABLES, dtype=np.uint64))
    total = 0.0
    while not tables.view.over.all():
        live = ~tables.view.over
        actions = allocate_actions(tables.spec, TABLES)
        for kind, policy in enumerate(policies):
            seats = len(tables.spec.seats_of_kind[kind])

            def rows(tree: Tree) -> Tree:
                return {name: array.reshape(-1, *array.shape[2:]) for name, array in tree.items()}

            uniforms = rng.random((TABLES * seats, policy.num_draws)).astype(np.float32)
            view = tables.view
            acted = policy.act(rows(view.observation[kind]), rows(view.legal[kind]), {}, uniforms)
            actions[kind]["build"][:] = acted.action["build"].reshape(TABLES, seats)
        tables.step(actions)
        total += sum(float(rewards[live][..., -2:].sum()) for rewards in tables.view.rewards)
    return total / (TABLES * tables.spec.num_seats)


def test_a_player_learns_to_follow_what_it_is_shown(game: WithStrategies, tmp_path: Path) -> None:
    described = experiment(game, 12_000)
    folder = new_folder(tmp_path / "run", described)
    with closing(serial_training(described, folder)) as training:
        main = training.learner.players["main"]
        before = reward_for_following(game, main.policies)
        assert training.run() == FINISHED
        after = reward_for_following(game, main.policies)
        assert main.skipped == 0
        assert all(np.isfinite(array).all() for array in main.weights().values())
    assert before < -0.2
    assert after > 0.2


def teacher_of(training: Coordinator[SerialWorkers]) -> Tree:
    arrays, _ = training.learner.players["main"].save()
    return {name: array for name, array in arrays.items() if name.startswith("reference.teacher")}


def test_the_teacher_survives_resets_and_a_stop(game: WithStrategies, tmp_path: Path) -> None:
    role = Role(matchmaking=SelfPlay(), promotion=BySteps(every=500), reset_probability=1.0)
    rules = LeagueRules(roles={"main": role}, bots=("random",))
    described = replace(experiment(game, 2_000), league=rules, checkpoint_every=700)
    folder = new_folder(tmp_path / "run", described)
    with closing(serial_training(described, folder)) as training:
        first = teacher_of(training)
        assert training.run() == FINISHED
        assert training.learner.players["main"].incarnation > 0
        kept = teacher_of(training)
    longer = replace(described, budget=3_000)
    with closing(serial_training(longer, folder)) as training:
        resumed = teacher_of(training)
        assert training.learner.decisions >= 2_000
    assert first.keys() == kept.keys() == resumed.keys() != set()
    for name, array in first.items():
        np.testing.assert_array_equal(kept[name], array)
        np.testing.assert_array_equal(resumed[name], array)


def test_settings_that_do_not_fit_the_game_are_refused_before_the_run(game: WithStrategies) -> None:
    wrong = AlphaStarGradient(rewards={"bilt": RewardWeights()})
    with pytest.raises(ValueError, match=r"rewards: 'bilt'.*did you mean 'built'"):
        replace(experiment(game, 100), algorithm=wrong)


def test_a_game_that_shows_no_strategy_pays_no_further_rewards_that_an_algorithm_would_have_to_take() -> None:
    """So an exploiter of a player that followed strategies may use any algorithm."""
    game = WithStrategies(game=Skirmish(), strategies="skirmish", types=5)
    with pytest.raises(ValueError, match=r"skirmish has further rewards .*, which PPO ignores"):
        replace(skirmish.experiment(), game=game)
    assert replace(skirmish.experiment(), game=game.without()).game == game.without()
    with pytest.raises(ValueError, match="which PPO ignores"):
        replace(skirmish.experiment(), game=replace(game, shown=0.0, fixed=3))


def test_rewards_of_the_game_inside_are_not_ignored_where_it_shows_no_strategy() -> None:
    class Paying(Skirmish):
        @property
        def spec(self) -> GameSpec:
            spec = super().spec
            return replace(spec, kinds=tuple(replace(kind, rewards=("patches",)) for kind in spec.kinds))

    game = WithStrategies(game=Paying(), strategies="skirmish", types=5).without()
    with pytest.raises(ValueError, match=r"skirmish has further rewards \(patches\), which PPO ignores"):
        replace(skirmish.experiment(), game=game)
