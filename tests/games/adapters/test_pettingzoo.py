"""PettingZoo's environments as games: promises over both APIs, and agreement with the environments."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="needs `pip install -e '.[pettingzoo]'`")
pytest.importorskip("mpe2", reason="needs `pip install -e '.[pettingzoo]'`")
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from ludus.data.specs import ActionSpec, Box, Planes, Vector
from ludus.games.adapters.pettingzoo import DEFAULT_MAX_LENGTH, PettingZoo
from ludus.games.adapters.pettingzoo_library import make_env, quiet, team_of_each
from ludus.games.bots import RandomBot
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import GameBatch, HasPicture, allocate_actions
from ludus.games.seat_rows import GameError

HERE = str(Path(__file__).resolve())


@pytest.mark.parametrize(
    "source",
    [
        PettingZoo(env_name="classic.connect_four_v3"),
        PettingZoo(env_name="classic.connect_four_v3", max_length=9),
        PettingZoo(env_name="classic.tictactoe_v3"),
        PettingZoo(env_name="classic.go_v5", options={"board_size": 5}, max_length=30),
        PettingZoo(env_name="classic.leduc_holdem_v4"),
        PettingZoo(env_name="classic.texas_holdem_no_limit_v6", options={"num_players": 3}),
        PettingZoo(env_name="classic.hanabi_v5", options={"colors": 2, "ranks": 2, "hand_size": 2}, max_length=6),
        PettingZoo(env_name="classic.rps_v2", options={"max_cycles": 5}),
        PettingZoo(env_name="classic.rps_v2", api="aec"),
        PettingZoo(env_name="butterfly.knights_archers_zombies_v11", options={"max_cycles": 25}),
        PettingZoo(env_name="mpe2.simple_tag_v3"),
        PettingZoo(env_name="mpe2.simple_tag_v3", api="aec", options={"max_cycles": 5}, critic_state=True),
        PettingZoo(env_name="mpe2.simple_adversary_v3", critic_state=True),
        PettingZoo(env_name="mpe2.simple_push_v3", options={"continuous_actions": True}, bins=3),
        PettingZoo(env_name="mpe2.simple_tag_v3", options={"continuous_actions": True}, max_length=10),
        PettingZoo(env_name="mpe2.simple_spread_v3", options={"continuous_actions": True}, api="aec", max_length=30),
        PettingZoo(env_name="mpe2.simple_crypto_v3", critic_state=True, critic_observations=True),
        PettingZoo(env_name="classic.leduc_holdem_v4", critic_observations=True, max_length=3),
        PettingZoo(env_name="mpe2.simple_speaker_listener_v4"),
        PettingZoo(env_name="mpe2.simple_world_comm_v3", max_length=10),
    ],
    ids=repr,
)
def test_environments_keep_the_promises_of_a_game(source: PettingZoo) -> None:
    report = check_game(source, episodes=3, tables=2, max_steps=100, bot_seconds=0.1)
    assert report.ok, str(report)


def test_the_walkers_of_sisl_take_real_numbers() -> None:
    pytest.importorskip("Box2D")
    source = PettingZoo(env_name="sisl.multiwalker_v9", options={"max_cycles": 20})
    assert source.spec.kinds[0].action == ActionSpec(heads={"move": Box(size=4)})
    report = check_game(source, episodes=2, tables=2, max_steps=30, bot_seconds=0.1)
    assert report.ok, str(report)


@pytest.mark.parametrize("api", ["parallel", "aec"])
def test_continuous_actions_reach_the_environment_as_they_are(api: Any) -> None:
    options = {"continuous_actions": True, "max_cycles": 5}
    batch = PettingZoo(env_name="mpe2.simple_spread_v3", api=api, options=options).tables(2)
    env = make_env("mpe2.simple_spread_v3", "parallel", options)
    batch.reset(np.arange(2), np.array([3, 4], np.uint64))
    observations, _ = env.reset(seed=4)
    rng = np.random.default_rng(0)
    while env.agents:
        moves = {agent: rng.random(5, np.float32) for agent in env.agents}
        actions = allocate_actions(batch.spec, 2)
        shown = batch.view.observation[0]["observation"][1]
        np.testing.assert_allclose(shown[0], observations["agent_0"], atol=1e-6)
        for seat, move in enumerate(moves.values()):
            actions[0]["move"][1, seat] = move
        for _ in range(3 if api == "aec" else 1):
            batch.step(actions)
        observations, *_ = env.step(moves)
    assert batch.view.truncated.all()


def test_chess_keeps_its_promises_and_has_planes_of_the_board() -> None:
    pytest.importorskip("chess")
    source = PettingZoo(env_name="classic.chess_v6", max_length=10)
    assert source.spec.kinds[0].observation.parts == {"observation": Planes(channels=111, height=8, width=8)}
    report = check_game(source, episodes=2, tables=1, max_steps=10, bot_seconds=0.1)
    assert report.ok, str(report)


def test_connect_four_plays_as_the_environment_does() -> None:
    batch = PettingZoo(env_name="classic.connect_four_v3").tables(3)
    env = make_env("classic.connect_four_v3", "aec", {})
    rng = np.random.default_rng(0)
    for seed in range(3):
        batch.reset(np.arange(3), np.array([seed, 7, 8], np.uint64))
        env.reset(seed=seed)
        total = dict.fromkeys(env.possible_agents, 0.0)
        while not batch.view.over[0]:
            (seat,) = np.flatnonzero(batch.view.to_act[0])
            seen, paid, *_ = env.last()
            assert env.agent_selection == f"player_{seat}"
            np.testing.assert_array_equal(
                batch.view.observation[0]["observation"][0, seat], np.moveaxis(seen["observation"], -1, 0)
            )
            np.testing.assert_array_equal(batch.view.legal[0]["move"][0, seat], seen["action_mask"])
            actions = _random(batch, rng)
            env.step(int(actions[0]["move"][0, seat]))
            total[f"player_{seat}"] += paid
            batch.step(actions)
        for agent in env.agents:
            total[agent] += env._cumulative_rewards[agent]
        assert batch.view.score[0].tolist() == list(total.values())
        assert sorted(total.values()) in ([-1.0, 1.0], [0.0, 0.0])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("classic.tictactoe_v3", {}),
        ("classic.leduc_holdem_v4", {}),
        ("classic.texas_holdem_v4", {"num_players": 3}),
        ("classic.go_v5", {"board_size": 5}),
        ("classic.rps_v2", {"max_cycles": 5}),
        ("mpe2.simple_adversary_v3", {"max_cycles": 5}),
    ],
)
def test_each_seat_sees_and_is_paid_what_pettingzoos_own_loop_gives(name: str, options: dict[str, Any]) -> None:
    """The loop of its documentation, with its wrappers and its steps of agents that are out."""
    batch = PettingZoo(env_name=name, api="aec", options=options).tables(2)
    spec, view, rng = batch.spec, batch.view, np.random.default_rng(0)
    paid = np.zeros((2, spec.num_seats))
    decisions: list[list[Any]] = [[], []]
    batch.reset(np.arange(2), np.array([5, 6], np.uint64))
    while view.to_act.any():
        actions = _random(batch, rng)
        for table, seat in np.argwhere(view.to_act).tolist():
            kind, column = spec.seats[seat], spec.column_of_seat[seat]
            seen = view.observation[kind]["observation"][table, column].copy()
            decisions[table].append((seat, seen, int(actions[kind]["move"][table, column])))
        stepped = view.to_act.any(axis=1)
        batch.step(actions)
        paid[stepped] += view.reward[stepped]
    with quiet():
        env = importlib.import_module(f"{'' if name.startswith('mpe2') else 'pettingzoo.'}{name}").env(**options)
    for table, seed in enumerate((5, 6)):
        env.reset(seed=seed)
        given = dict.fromkeys(env.possible_agents, 0.0)
        moves = iter(decisions[table])
        for agent in env.agent_iter():
            observation, reward, over, cut, _ = env.last()
            given[agent] += reward
            if over or cut:
                env.step(None)
                continue
            seat, seen, move = next(moves)
            assert env.possible_agents[seat] == agent
            theirs = observation["observation"] if isinstance(observation, dict) else observation
            if np.ndim(theirs) == 0:  # the number of a choice
                theirs = np.arange(len(seen)) == theirs
            np.testing.assert_allclose(seen, np.moveaxis(theirs, -1, 0), rtol=1e-6)
            env.step(move)
        assert next(moves, None) is None
        np.testing.assert_allclose(paid[table], list(given.values()), rtol=1e-5)


def test_tag_plays_as_the_environment_does() -> None:
    batch = PettingZoo(env_name="mpe2.simple_tag_v3").tables(2)
    env = make_env("mpe2.simple_tag_v3", "parallel", {})
    rng = np.random.default_rng(0)
    batch.reset(np.arange(2), np.array([3, 4], np.uint64))
    observations, _ = env.reset(seed=4)
    totals = np.zeros(4)
    while not batch.view.truncated[1]:
        for column in range(3):
            np.testing.assert_array_equal(
                batch.view.observation[0]["observation"][1, column], observations[f"adversary_{column}"]
            )
        np.testing.assert_array_equal(batch.view.observation[1]["observation"][1, 0], observations["agent_0"])
        actions = _random(batch, rng)
        moves = [*actions[0]["move"][1].tolist(), int(actions[1]["move"][1, 0])]
        observations, rewards, *_ = env.step(dict(zip(env.possible_agents, moves, strict=True)))
        totals += list(rewards.values())
        batch.step(actions)
    np.testing.assert_allclose(batch.view.score[1], [totals[:3].mean(), totals[3]], rtol=1e-4)
    np.testing.assert_array_equal(batch.view.observation[1]["observation"][1, 0], observations["agent_0"])


@pytest.mark.parametrize("api", ["parallel", "aec"])
def test_critics_see_the_state_of_the_environment_also_at_a_truncation(api: Literal["parallel", "aec"]) -> None:
    source = PettingZoo(env_name="mpe2.simple_adversary_v3", api=api, options={"max_cycles": 3}, critic_state=True)
    batch, env = source.tables(1), make_env("mpe2.simple_adversary_v3", api, {"max_cycles": 3})
    spec, view, rng = batch.spec, batch.view, np.random.default_rng(0)
    assert [kind.observation.critic for kind in spec.kinds] == [{"state": Vector(size=28)}] * 2
    assert [kind.observation.common for kind in spec.kinds] == [("state",)] * 2
    batch.reset(np.arange(1), np.array([7], np.uint64))
    env.reset(seed=7)
    while not view.truncated[0]:
        acting = np.flatnonzero(view.to_act[0]).tolist()
        shown = [view.observation[spec.seats[seat]]["critic.state"][0, spec.column_of_seat[seat]] for seat in acting]
        np.testing.assert_array_equal(shown, [env.state()] * len(acting))
        actions = _random(batch, rng)
        moves = {seat: int(actions[spec.seats[seat]]["move"][0, spec.column_of_seat[seat]]) for seat in acting}
        batch.step(actions)
        env.step(
            {env.possible_agents[seat]: move for seat, move in moves.items()} if api == "parallel" else moves[acting[0]]
        )
    last = np.concatenate([tree["critic.state"][0] for tree in view.observation])
    np.testing.assert_array_equal(last, [env.state()] * 3)  # the state that was cut off, not the next episode's


@pytest.mark.parametrize("api", ["parallel", "aec"])
def test_critics_see_what_the_other_agents_see_alike_ones_first(api: Literal["parallel", "aec"]) -> None:
    source = PettingZoo(env_name="mpe2.simple_adversary_v3", api=api, critic_observations=True)
    batch, env = source.tables(1), make_env("mpe2.simple_adversary_v3", api, {})
    assert [kind.name for kind in batch.spec.kinds] == ["adversary", "agent"]
    assert batch.spec.kinds[1].observation.critic == {"other1": Vector(size=10), "other2": Vector(size=8)}
    batch.reset(np.arange(1), np.array([7], np.uint64))
    env.reset(seed=7)
    while batch.spec.num_seats > 1 and not batch.view.to_act[0, 2]:
        batch.step(allocate_actions(batch.spec, 1))
        env.step(0)
    seen = {agent: (env.unwrapped if api == "aec" else env.aec_env.unwrapped).observe(agent) for agent in env.agents}
    agent = {name: array[0, 1] for name, array in batch.view.observation[1].items()}  # agent_1
    np.testing.assert_array_equal(agent["critic.other1"], seen["agent_0"])
    np.testing.assert_array_equal(agent["critic.other2"], seen["adversary_0"])
    if api == "parallel":
        adversary = {name: array[0, 0] for name, array in batch.view.observation[0].items()}
        np.testing.assert_array_equal(adversary["critic.other1"], seen["agent_0"])
        np.testing.assert_array_equal(batch.view.observation[1]["critic.other1"][0, 0], seen["agent_1"])


def test_critics_see_nothing_of_agents_that_have_left() -> None:
    batch = resolve(f"pettingzoo:{HERE}:Lodgers", options={"cut": True}, critic_observations=True).tables(1)
    batch.reset(np.arange(1), np.zeros(1, np.uint64))
    shown = []
    for time in range(6):
        host = {name: array[0, 0].tolist() for name, array in batch.view.observation[0].items()}
        shown.append((host["critic.other1"], host["critic.other2"]))
        actions = allocate_actions(batch.spec, 1)
        actions[0]["move"][:] = time % 4
        batch.step(actions)
    assert shown[0] == ([0, 2], [0, 0])
    assert shown[2] == ([2, 3], [2, 3])
    assert shown[5] == ([0, 0], [0, 0])
    guests = batch.view.observation[1]
    assert guests["observation"][0, :, 0].tolist() == [3, 4]
    assert guests["critic.other2"][0].tolist() == [[6, 0]] * 2  # what the host sees at the end


def test_critics_see_the_last_state_also_of_seats_whose_agents_left_before() -> None:
    batch = resolve(f"pettingzoo:{HERE}:Lodgers", options={"cut": True}, critic_state=True).tables(1)
    batch.reset(np.arange(1), np.zeros(1, np.uint64))
    for time in range(6):
        actions = allocate_actions(batch.spec, 1)
        actions[0]["move"][:] = time % 4
        batch.step(actions)
    assert batch.view.truncated[0]
    assert batch.view.observation[1]["observation"][0, :, 0].tolist() == [3, 4]
    assert batch.view.observation[1]["critic.state"][0].tolist() == [[6, 0]] * 2


def test_kinds_teams_and_limits() -> None:
    tag = PettingZoo(env_name="mpe2.simple_tag_v3").spec
    assert [kind.name for kind in tag.kinds] == ["adversary", "agent"]
    assert (tag.seats, tag.teams, tag.zero_sum) == ((0, 0, 0, 1), (0, 0, 0, 1), False)
    assert tag.max_length == 25
    assert PettingZoo(env_name="mpe2.simple_tag_v3", api="aec").spec.max_length == 100
    four = PettingZoo(env_name="classic.connect_four_v3").spec
    assert (four.teams, four.zero_sum, four.max_length) == ((0, 1), True, DEFAULT_MAX_LENGTH)
    assert four.kinds[0].observation.parts == {"observation": Planes(channels=2, height=6, width=7)}
    rps = PettingZoo(env_name="classic.rps_v2").spec
    assert rps.kinds[0].observation.parts == {"observation": Vector(size=4)}
    assert rps.kinds[0].legal_arrays == {}


def test_teams_come_from_the_names_of_agents() -> None:
    assert team_of_each("any_v1", ["red_0", "blue_0", "red_1"]) == (0, 1, 0)
    assert team_of_each("any_v1", ["player_0", "player_1", "player_2"]) == (0, 1, 2)
    assert team_of_each("any_v1", ["black_0", "white_0"]) == (0, 1)
    assert team_of_each("butterfly.knights_archers_zombies_v11", ["archer_0", "knight_0"]) == (0, 0)
    assert team_of_each("atari.pong_v3", ["first_0", "second_0"]) == (0, 1)
    assert team_of_each("atari.pong_v3", ["first_0", "second_0", "third_0", "fourth_0"]) == (0, 1, 0, 1)
    assert team_of_each("any_v1", ["a_0", "a_1", "b_0"], [["b_*", "a_1"], ["a_0"]]) == (0, 1, 1)
    with pytest.raises(GameError, match=r"agent 'c_0' is in none of the teams a_\* \| b_0"):
        team_of_each("any_v1", ["a_0", "c_0"], [["a_*"], ["b_0"]])
    with pytest.raises(GameError, match="agent 'a_0' is in 2 of the teams"):
        team_of_each("any_v1", ["a_0"], [["a_*"], ["*"]])


def test_an_option_changes_the_teams() -> None:
    teams = PettingZoo(env_name="mpe2.simple_spread_v3", teams=(("agent_0",), ("agent_[12]",))).spec.teams
    assert teams == (0, 1, 1)


def test_pictures_are_drawn_where_the_environment_can() -> None:
    batch = PettingZoo(env_name="classic.connect_four_v3").tables(1)
    batch.reset(np.arange(1), np.zeros(1, np.uint64))
    assert isinstance(batch, HasPicture)
    assert batch.render(0).shape[2] == 3


def test_closing_some_tables_leaves_the_others_alone() -> None:
    source = PettingZoo(env_name="butterfly.knights_archers_zombies_v11")
    first, second = source.tables(1), source.tables(1)
    for batch in (first, second):
        batch.reset(np.arange(1), np.zeros(1, np.uint64))
    first.close()
    for _ in range(10):
        second.step(_random(second, np.random.default_rng(0)))
    assert second.view.to_act.any()


def test_a_source_travels_to_another_process() -> None:
    source = PettingZoo(env_name="classic.tictactoe_v3", max_length=5)
    assert source.spec.num_seats == 2
    assert pickle.loads(pickle.dumps(source)).spec == source.spec


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("classic.connect_for_v3", {}, "did you mean 'classic.connect_four_v3'?"),
        ("classic.chess_v5", {}, "did you mean 'classic.chess_v6'?"),
        ("connect_for_v3", {}, "write FAMILY.NAME, such as classic.connect_four_v3"),
        ("classic.rps_v2", {"teams": (("player_0",),)}, "agent 'player_1' is in none of the teams"),
        ("classic.connect_four_v3", {"api": "parallel"}, "has real turns"),
        (
            "classic.leduc_holdem_v4",
            {"critic_state": True},
            "critic_state: classic.leduc_holdem_v4 cannot tell its state",
        ),
        (f"{HERE}:not_an_environment", {}, "expected a PettingZoo AECEnv or ParallelEnv"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message.replace("?", "\\?")):
        _ = resolve(f"pettingzoo:{name}", **options).spec


def test_an_unknown_family_says_which_there_are() -> None:
    with pytest.raises(
        ModuleNotFoundError, match="the families are atari, butterfly, classic, mpe2, sisl, not 'clasic'"
    ):
        _ = resolve("pettingzoo:clasic.connect_four_v3").spec


class Lodgers(ParallelEnv[str, Any, Any]):
    """A user's own: guests come and go. `guest_1` is there from step 2 to step 4, `host_0` until 6."""

    metadata = {"name": "lodgers", "is_parallelizable": True}  # noqa: RUF012
    possible_agents = ["host_0", "guest_0", "guest_1"]  # noqa: RUF012
    render_mode = None

    def __init__(self, cut: bool = False) -> None:
        self.cut = cut

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 10, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4, start=1) if agent == "host_0" else spaces.MultiDiscrete([2, 3])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        self.agents = ["host_0", "guest_0"]
        return self._seen(self.agents), {agent: self._info() for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        assert actions["host_0"] == 1 + self.time % 4
        self.time += 1
        acted = list(self.agents)
        gone = {"guest_0": self.time == 3, "guest_1": self.time == 4, "host_0": self.time == 6 and not self.cut}
        cut = self.cut and self.time == 6
        self.agents = [agent for agent in acted if not gone[agent] and not cut]
        if self.time == 2:
            self.agents.append("guest_1")
        told = [*acted, *(agent for agent in self.agents if agent not in acted)]
        return (
            self._seen(told),
            {agent: 1.0 if agent == "host_0" else -0.5 for agent in acted},
            {agent: gone[agent] for agent in told},
            dict.fromkeys(told, cut),
            {agent: self._info() for agent in told},
        )

    def _seen(self, agents: list[str]) -> dict[str, Any]:
        return {agent: np.array([self.time, len(self.agents)], np.float32) for agent in agents}

    def _info(self) -> dict[str, Any]:
        return {}

    def state(self) -> Any:
        return np.array([self.time, len(self.agents)], np.float32)


class MaskedLodgers(Lodgers):
    """Only the move that fits is legal, as the info says."""

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4, start=1)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.arange(4) == self.time % 4}


def not_an_environment() -> int:
    return 3


@pytest.mark.parametrize("cut", [False, True])
def test_agents_come_and_go(cut: bool) -> None:
    batch = resolve(f"pettingzoo:{HERE}:Lodgers", options={"cut": cut}).tables(1)
    spec = batch.spec
    assert [kind.name for kind in spec.kinds] == ["host", "guest"]
    assert (spec.seats, spec.teams) == ((0, 1, 1), (0, 1, 1))
    batch.reset(np.arange(1), np.zeros(1, np.uint64))
    there = []
    for time in range(6):
        there.append(batch.view.to_act[0].tolist())
        actions = allocate_actions(spec, 1)
        actions[0]["move"][:] = time % 4
        batch.step(actions)
    assert there == [
        [True, True, False],
        [True, True, False],
        [True, True, True],
        [True, False, True],
        [True, False, False],
        [True, False, False],
    ]
    assert (batch.view.over[0], batch.view.truncated[0]) == (not cut, cut)
    np.testing.assert_allclose(batch.view.score[0], [6.0, -1.25])
    if cut:  # each seat shows what its agent saw last
        assert batch.view.observation[0]["observation"][0, 0, 0] == 6
        assert batch.view.observation[1]["observation"][0, :, 0].tolist() == [3, 4]


def test_masks_may_come_in_the_info() -> None:
    report = check_game(resolve(f"pettingzoo:{HERE}:MaskedLodgers"), episodes=3, tables=2, bot_seconds=0.1)
    assert report.ok, str(report)
    batch = resolve(f"pettingzoo:{HERE}:MaskedLodgers").tables(1)
    batch.reset(np.arange(1), np.zeros(1, np.uint64))
    batch.step(_random(batch, np.random.default_rng(0)))
    assert batch.view.legal[0]["move"][0, :2].tolist() == [[False, True, False, False]] * 2


class Duel(AECEnv[str, Any, Any]):
    """A user's own with turns: `red_0` is out after its second turn; `blue` plays on for two turns each."""

    metadata = {"name": "duel"}  # noqa: RUF012
    possible_agents = ["red_0", "blue_0", "blue_1"]  # noqa: RUF012

    def __init__(self) -> None:
        self.closed = False

    def observation_space(self, agent: str) -> Any:
        return spaces.Discrete(20)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def observe(self, agent: str) -> int:
        return self.turns

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.turns = 0
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "red_0"
        self._skip_agent_selection: Any = None

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        self.rewards[agent] = 1.0
        self.turns += 1
        if "red_0" in self.agents:
            self.rewards["red_0"] -= 0.25  # paid at every turn, whoever takes it
            self.terminations["red_0"] = self.turns == 4
        if self.turns == 8:
            self.truncations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        living = [one for one in self.agents if not self.terminations[one]]
        self.agent_selection = living[(living.index(agent) + 1) % len(living)] if agent in living else living[0]
        self._deads_step_first()


def test_turns_go_round_without_the_dead_and_pay_what_came_between() -> None:
    batch = PettingZoo(env_name=f"{HERE}:Duel").tables(1)
    batch.reset(np.arange(1), np.zeros(1, np.uint64))
    order, rewards = [], []
    while not batch.view.truncated[0]:
        order.append(int(np.flatnonzero(batch.view.to_act[0])[0]))
        batch.step(allocate_actions(batch.spec, 1))
        rewards.append(batch.view.reward[0].tolist())
    assert order == [0, 1, 2, 0, 1, 2, 1, 2]
    assert rewards[2] == [0.25, 0, 0]  # one for its turn, less a quarter for each of three turns
    assert rewards[3] == [0.75, 1, 0]  # its end is paid before the next agent acts
    np.testing.assert_allclose(batch.view.score[0], [1.0, 3.0])
    assert batch.view.observation[0]["observation"][0].argmax(axis=1).tolist() == [4, 8, 8]


def test_turns_keep_the_promises() -> None:
    report = check_game(PettingZoo(env_name=f"{HERE}:Duel"), episodes=4, tables=2, bot_seconds=0.1)
    assert report.ok, str(report)


class FaultyDuel(Duel):
    """Breaks a promise at a turn of `blue_0`, only if its seed is 1."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict({"board": spaces.Box(0, 9, (2,)), "action_mask": spaces.MultiBinary(2)})

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed)
        self.faulty = seed == 1
        if self.faulty and self.fault == "paid":
            self._cumulative_rewards["red_0"] = 2.0

    def observe(self, agent: str) -> Any:
        fault = self.fault if self.faulty and agent == "blue_0" else ""
        mask = np.zeros(2, np.int8) if fault == "mask" else np.ones(2, np.int8)
        return {"board": np.zeros(3 if fault == "shape" else 2), "action_mask": mask}

    def step(self, action: Any) -> None:
        super().step(action)
        if self.faulty and self.fault == "name":
            self.terminations["blu_0"] = self.truncations["blu_0"] = False
            self._cumulative_rewards["blu_0"], self.infos["blu_0"] = 0.0, {}
            self.agent_selection = "blu_0"
        if self.faulty and self.fault == "crash":
            raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("mask", r"table 1, seat 1: head 'move' has no legal option"),
        ("shape", r"table 1, seat 1: part 'board': expected float32\[2\], got float64\[3\]"),
        ("paid", "table 1: a reward at reset"),
        ("name", "agent 'blu_0' is not one of possible_agents; did you mean 'blue_0'"),
        ("crash", "out of memory"),
    ],
)
def test_what_an_environment_with_turns_does_wrong_is_named_with_its_table(fault: str, message: str) -> None:
    batch = PettingZoo(env_name=f"{HERE}:FaultyDuel", options={"fault": fault}).tables(3)

    def play() -> None:
        batch.reset(np.arange(3), np.arange(3, dtype=np.uint64))
        batch.step(allocate_actions(batch.spec, 3))

    with pytest.raises((GameError, RuntimeError), match=message) as raised:
        play()
    if fault in ("name", "crash"):
        (note,) = raised.value.__notes__
        assert "FaultyDuel, table 1, in" in note


def _random(batch: GameBatch, rng: np.random.Generator) -> Any:
    actions = allocate_actions(batch.spec, batch.num_tables)
    for kind, seats in enumerate(batch.spec.seats_of_kind):
        tables, columns = np.nonzero(batch.view.to_act[:, list(seats)])
        if len(tables):
            chosen = RandomBot().act(batch, tables, np.asarray(seats)[columns], rng)
            for name, values in chosen.items():
                actions[kind][name][tables, columns] = values
    return actions
