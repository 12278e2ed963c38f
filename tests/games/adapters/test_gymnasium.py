"""Gymnasium environments as games: promises, spaces, limits, and agreement with the environment itself."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
import gymnasium
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from ludus.data.addresses import address_of
from ludus.data.specs import ActionSpec, Box, Planes, Vector
from ludus.games.adapters.gymnasium import Gymnasium
from ludus.games.adapters.gymnasium_spaces import ActionCodec, observation_leaves, observation_spec
from ludus.games.adapters.gymnasium_tables import DEFAULT_MAX_LENGTH, SingleTables, VectorTables
from ludus.games.check import check_game
from ludus.games.game import allocate_actions


@pytest.mark.parametrize(
    "source",
    [
        Gymnasium(env_id="CartPole-v1"),
        Gymnasium(env_id="CartPole-v1", max_length=15),
        Gymnasium(env_id="CartPole-v1", vectorization="single", max_length=15),
        Gymnasium(env_id="Acrobot-v1", max_length=30),
        Gymnasium(env_id="FrozenLake-v1", options={"is_slippery": True}),
        Gymnasium(env_id="Blackjack-v1"),
        Gymnasium(env_id="Pendulum-v1", bins=3, max_length=20),
        Gymnasium(env_id="Pendulum-v1", max_length=20),
        Gymnasium(env_id="MountainCarContinuous-v0", max_length=20),
    ],
    ids=repr,
)
def test_environments_keep_the_promises_of_a_game(source: Gymnasium) -> None:
    report = check_game(source, episodes=16, max_steps=300)
    assert report.ok, str(report)


@pytest.mark.parametrize("vectorization", ["auto", "single"])
def test_cart_pole_plays_as_the_environment_does(vectorization: Any) -> None:
    batch = Gymnasium(env_id="CartPole-v1", vectorization=vectorization).tables(3)
    assert isinstance(batch, VectorTables if vectorization == "auto" else SingleTables)
    env = gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(0)
    for seed in range(5):
        batch.reset(np.array([1]), np.array([seed], np.uint64))
        batch.reset(np.array([0, 2]), np.array([100, 200 + seed], np.uint64))
        observation, _ = env.reset(seed=seed)
        total = 0.0
        while not batch.view.over[1]:
            np.testing.assert_allclose(batch.view.observation[0]["observation"][1, 0], observation, rtol=1e-5)
            actions = allocate_actions(batch.spec, 3)
            actions[0]["move"][:] = rng.integers(0, 2, (3, 1))
            observation, reward, terminated, _, _ = env.step(int(actions[0]["move"][1, 0]))
            total += float(reward)
            batch.step(actions)
            assert terminated == batch.view.over[1]
        assert batch.view.score[1, 0] == total


@pytest.mark.parametrize("vectorization", ["auto", "single"])
def test_a_time_limit_truncates_and_keeps_the_final_observation(vectorization: Any) -> None:
    batch = Gymnasium(env_id="CartPole-v1", vectorization=vectorization, max_length=3).tables(1)
    env = gymnasium.make("CartPole-v1")
    batch.reset(np.array([0]), np.array([7], np.uint64))
    env.reset(seed=7)
    for _ in range(3):
        assert batch.view.to_act.all()
        batch.step(allocate_actions(batch.spec, 1))
        final, *_ = env.step(0)
    assert batch.view.truncated.tolist() == [True]
    assert batch.view.over.tolist() == [False]
    assert batch.view.score.tolist() == [[3.0]]
    np.testing.assert_allclose(batch.view.observation[0]["observation"][0, 0], final, rtol=1e-5)


def test_the_own_limit_of_the_environment_holds() -> None:
    assert Gymnasium(env_id="CartPole-v1").spec.max_length == 500
    assert Gymnasium(env_id="FrozenLake-v1").spec.max_length == 100
    assert Gymnasium(env_id="CartPole-v1", options={"max_episode_steps": 9}).spec.max_length == 9
    assert Gymnasium(env_id="Blackjack-v1").spec.max_length == DEFAULT_MAX_LENGTH


def test_observation_spaces() -> None:
    space = spaces.Dict(
        {
            "scalar": spaces.Box(-1, 1, (), np.float64),
            "hwc": spaces.Box(0, 255, (8, 6, 3), np.uint8),
            "chw": spaces.Box(0, 255, (4, 8, 8), np.uint8),
            "grid": spaces.Box(0, 1, (5, 6), np.float32),
            "pair": spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2))),
            "several": spaces.MultiDiscrete([2, 3]),
        }
    )
    leaves = observation_leaves(space)
    assert observation_spec(leaves).parts == {
        "scalar": Vector(size=1),
        "hwc": Planes(channels=3, height=8, width=6, dtype="uint8"),
        "chw": Planes(channels=4, height=8, width=8, dtype="uint8"),
        "grid": Planes(channels=1, height=5, width=6),
        "pair_part0": Vector(size=3),
        "pair_part1": Vector(size=2),
        "several": Vector(size=5),
    }
    value = space.sample()
    value["pair"] = (3, np.array([0, 1], np.int8))
    value["several"] = np.array([1, 0])
    read = {leaf.name: leaf.read(value) for leaf in leaves}
    assert read["hwc"][2, 5, 1] == value["hwc"][5, 1, 2]
    assert read["pair_part0"].tolist() == [0, 0, 1]
    assert read["several"].tolist() == [0, 1, 1, 0, 0]
    for name, part in observation_spec(leaves).parts.items():
        assert read[name].shape == part.arrays(name)[name].shape


def test_action_spaces() -> None:
    several = ActionCodec.of(spaces.MultiDiscrete([3, 2], start=[1, 0]), "x")
    assert [head.num for head in several.spec.heads.values()] == [3, 2]  # type: ignore[union-attr]
    chosen = {name: np.array([[i], [1]], np.int32) for i, name in enumerate(several.spec.heads)}
    assert several.decode(chosen).tolist() == [[1, 1], [2, 1]]
    assert list(ActionCodec.of(spaces.MultiBinary(3), "x").spec.heads) == ["move_0", "move_1", "move_2"]
    shifted = ActionCodec.of(spaces.Discrete(3, start=-1), "x")
    assert shifted.decode({"move": np.array([[0], [2]], np.int32)}).tolist() == [-1, 1]


def test_bins_cover_a_box_of_actions() -> None:
    space = spaces.Box(np.array([[-1.0, 0.0]], np.float32), np.array([[1.0, 4.0]], np.float32))
    codec = ActionCodec.of(space, "x", bins=5)
    assert [head.num for head in codec.spec.heads.values()] == [5, 5]  # type: ignore[union-attr]
    chosen = {"move_0": np.array([[0], [4]], np.int32), "move_1": np.array([[1], [2]], np.int32)}
    assert codec.decode(chosen).tolist() == [[[-1.0, 1.0]], [[1.0, 2.0]]]
    with pytest.raises(ValueError, match=r"x: actions need a lowest and a highest value, .*TransformAction"):
        ActionCodec.of(spaces.Box(-np.inf, np.inf, (1,)), "x", bins=5)
    with pytest.raises(ValueError, match="x: bins must be at least 2, got 1"):
        ActionCodec.of(space, "x", bins=1)
    with pytest.raises(ValueError, match="x: bins are for a Box of actions"):
        ActionCodec.of(spaces.Discrete(2), "x", bins=5)


def test_a_box_of_actions_is_a_head_of_real_numbers() -> None:
    space = spaces.Box(np.array([[-1.0, -0.7]]), np.array([[1.0, 0.1]]), dtype=np.float64)
    codec = ActionCodec.of(space, "x")
    assert codec.spec == ActionSpec(heads={"move": Box(size=2, low=(-1.0, -0.7), high=(1.0, 0.1))})
    chosen = np.array([[[0.25, 0.1]], [[np.nan, 9.0]]], np.float32)
    assert float(chosen[0, 0, 1]) > 0.1, "rounded to float32"
    moves = codec.decode({"move": chosen})
    assert (moves.dtype, moves.shape) == (np.float64, (2, 1, 2))
    assert space.contains(moves[0])
    assert moves[0].tolist() == [[0.25, 0.1]]
    assert moves[1, 0, 1] == 0.1, "rows that are not to act hold anything"


def test_pendulum_gets_the_numbers_that_were_chosen() -> None:
    batch, env = Gymnasium(env_id="Pendulum-v1").tables(2), gymnasium.make("Pendulum-v1")
    batch.reset(np.arange(2), np.array([1, 5], np.uint64))
    observation, _ = env.reset(seed=5)
    for number in np.linspace(-2, 2, 20):
        np.testing.assert_array_equal(batch.view.observation[0]["observation"][1, 0], observation)
        actions = allocate_actions(batch.spec, 2)
        actions[0]["move"][1] = number
        batch.step(actions)
        observation, reward, *_ = env.step(np.array([number], np.float32))
        assert batch.view.reward[1, 0] == np.float32(reward)
    actions[0]["move"][1] = 2.1
    with pytest.raises(
        ValueError, match=r"table 1, seat 0: head 'move' is 2.1 at number 0, but its bounds are -2 to 2"
    ):
        batch.step(actions)


def test_what_is_not_supported_says_so() -> None:
    with pytest.raises(ValueError, match="x: actions need a lowest and a highest value, but they are Box"):
        ActionCodec.of(spaces.Box(0.0, np.inf, (1,)), "x")
    with pytest.raises(ValueError, match="x: actions need a lowest and a highest value"):
        ActionCodec.of(spaces.Box(-1e300, 1e300, (1,), np.float64), "x")
    with pytest.raises(ValueError, match=r"x: actions are whole numbers .*: with bins=N"):
        ActionCodec.of(spaces.Box(0, 255, (3,), np.uint8), "x")
    with pytest.raises(ValueError, match=r"observation space Text\(.*is not supported"):
        observation_leaves(spaces.Text(5))
    with pytest.raises(ValueError, match="Acrobot-v1: there is no VectorEnv"):
        _ = Gymnasium(env_id="Acrobot-v1", vectorization="vector").spec


class Countdown(gymnasium.Env[Any, Any]):
    """A user's own environment: two heads, three steps."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 4))
        return self.left, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.left, float(action[0]) - 0.5 * float(action[1]), self.left == 0, False, {}


class VectorCountdown(VectorEnv[Any, Any, Any]):
    """A user's own vector environment that leaves resets to us."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    single_observation_space = spaces.Discrete(50)
    single_action_space = spaces.Discrete(2)

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self.left = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        for table in np.flatnonzero(options["reset_mask"]):
            self.left[table] = 3 + np.random.default_rng(seed[table]).integers(0, 40)
        return self.left.copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.left = np.maximum(self.left - 1 - actions, 0)
        never = np.zeros(self.num_envs, np.bool_)
        return self.left.copy(), actions.astype(np.float64), self.left == 0, never, {}


@pytest.mark.parametrize(("env", "batch"), [(Countdown, SingleTables), (VectorCountdown, VectorTables)])
def test_environments_of_a_user_by_address(env: type, batch: type) -> None:
    source = Gymnasium(env_id=address_of(env), max_length=20)
    assert isinstance(source.tables(2), batch)
    report = check_game(source, episodes=16, max_steps=300)
    assert report.ok, str(report)


def test_a_source_can_be_sent_to_another_process() -> None:
    source = Gymnasium(env_id="CartPole-v1", options={"sutton_barto_reward": True})
    assert pickle.loads(pickle.dumps(source)) == source
