"""Lifting plain-Python games: what is written where, what the game is given, and what the errors say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ludus.data.specs import (
    ActionSpec,
    Choice,
    Entities,
    GameSpec,
    ObservationSpec,
    Planes,
    Pointer,
    SeatKind,
    Vector,
    When,
)
from ludus.games.bots import RandomBot
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.check import check_game
from ludus.games.game import GameSource, HasTrees, Turn, allocate_actions
from ludus.games.lift import Lifted


class Nim:
    """Take 1 to 3 of the sticks in turn; who takes the last one wins. Bare arrays, an int action."""

    spec = GameSpec.symmetric(
        name="nim",
        num_seats=2,
        observation=ObservationSpec(parts={"sticks": Vector(size=2)}),
        action=ActionSpec(heads={"take": Choice(num=3)}),
        max_length=20,
    )

    def reset(self, seed: int) -> Turn:
        assert type(seed) is int
        self.sticks, self.seat = 7 + seed % 8, 0
        return self.turn()

    def step(self, actions: Mapping[int, int]) -> Turn:
        assert actions.keys() == {self.seat}
        assert type(actions[self.seat]) is int
        self.sticks -= 1 + actions[self.seat]
        if self.sticks == 0:
            winner = self.seat
            return Turn(observations={}, reward={winner: 1.0, 1 - winner: -1.0}, over=True)
        self.seat = 1 - self.seat
        return self.turn()

    def turn(self) -> Turn:
        mask = np.arange(3) < self.sticks
        sticks = np.array([self.sticks, self.sticks % 4], np.float32)
        return Turn(observations={self.seat: sticks}, legal={self.seat: mask})


class Orders:
    """Two kinds of seat acting together, structured observations and actions, a clock and a cut-off."""

    def __init__(self, num_units: int = 4) -> None:
        units = Entities(maximum=num_units, features=2)
        captain = SeatKind(
            name="captain",
            observation=ObservationSpec(parts={"units": units}, critic={"secret": Vector(size=1)}),
            action=ActionSpec(
                heads={
                    "order": Choice(num=2),
                    "who": Pointer(into="units", when=When(head="order", values=(1,))),
                    "group": Pointer(into="units", picks=3, masked=False),
                }
            ),
        )
        scout = SeatKind(
            name="scout",
            observation=ObservationSpec(parts={"map": Planes(channels=1, height=2, width=2, dtype="uint8")}),
            action=ActionSpec(heads={"go": Choice(num=4, masked=False)}),
        )
        self.spec = GameSpec(
            name="orders",
            kinds=(captain, scout),
            seats=(0, 1, 1),
            teams=(0, 0, 1),
            max_length=5,
            zero_sum=False,
            reward_is_score=False,
            timed=True,
        )
        self.given: list[Mapping[int, Any]] = []
        self.closed = False

    def reset(self, seed: int) -> Turn:
        self.rng = np.random.default_rng(seed)
        self.time = 0
        return self.turn()

    def step(self, actions: Mapping[int, Any]) -> Turn:
        self.given.append(actions)
        self.time += 1
        return self.turn(reward=[0.5, 1, 0], truncated=self.time == 5, score=(1.0, -3.0))

    def turn(self, **more: Any) -> Turn:
        units = self.rng.random((1 + self.time % 4, 2))
        observations: dict[int, Any] = {
            0: {"units": units, "critic.secret": [self.time]},
            1: np.full((1, 2, 2), self.time, np.uint8),
            2: {"map": np.full((1, 2, 2), 9, np.uint8)},
        }
        return Turn(observations=observations, clock=10 * self.time, **more)

    def close(self) -> None:
        self.closed = True


def seeds(number: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.arange(number, dtype=np.uint64)


@pytest.mark.parametrize("factory", [Nim, Orders])
def test_lifted_games_keep_their_promises(factory: Callable[[], Any]) -> None:
    report = check_game(Lifted(factory))
    assert report.ok, str(report)


def test_a_turn_goes_into_the_view() -> None:
    batch = Lifted(Nim).tables(2)
    batch.reset(np.arange(2), seeds(2))
    view = batch.view
    assert view.observation[0]["sticks"][1, 0].tolist() == [8.0, 0.0]
    assert view.to_act.tolist() == [[True, False], [True, False]]
    actions = allocate_actions(batch.spec, 2)
    for taken in (2, 2):
        actions[0]["take"][:] = taken
        batch.step(actions)
    assert view.legal[0]["take"][0, 0].tolist() == [True, False, False]
    actions[0]["take"][:] = 0
    batch.step(actions)
    assert view.over.tolist() == [True, False]
    assert view.reward.tolist() == [[1.0, -1.0], [0.0, 0.0]]
    assert view.score[0].tolist() == [1.0, -1.0]  # the mean total reward, as the game gave none
    assert not view.to_act[0].any()


def test_structured_observations_and_actions() -> None:
    games: list[Orders] = []

    def make() -> Orders:
        games.append(Orders())
        return games[-1]

    source = Lifted(make)
    assert isinstance(source, GameSource)
    batch = source.tables(1)
    batch.reset(np.arange(1), seeds(1))
    captain, scouts = batch.view.observation
    assert captain["units_length"].tolist() == [[1]]
    assert not captain["units"][0, 0, 1:].any()
    assert captain["critic.secret"].tolist() == [[[0.0]]]
    assert scouts["map"][0, :, 0, 0, 0].tolist() == [0, 9]
    assert batch.view.legal[0]["who"].tolist() == [[[True, False, False, False]]]  # only real entities
    actions = allocate_actions(batch.spec, 1)
    actions[0]["order"][:] = 1
    actions[0]["group"][:] = [2, 0, -1]
    actions[1]["go"][0] = [3, 1]
    batch.step(actions)
    actions[0]["group"][:] = 7
    given = games[-1].given[0]
    assert {name: np.asarray(value).tolist() for name, value in given[0].items()} == {
        "order": 1,
        "who": 0,
        "group": [2, 0, -1],
    }
    assert given[1] == 3
    assert given[2] == 1
    assert batch.view.reward.tolist() == [[0.5, 1.0, 0.0]]
    assert batch.view.clock.tolist() == [10]
    batch.close()
    assert games[-1].closed


def test_a_truncated_turn_keeps_the_last_observation_and_the_given_score() -> None:
    batch = Lifted(Orders).tables(1)
    batch.reset(np.arange(1), seeds(1))
    for _ in range(5):
        batch.step(allocate_actions(batch.spec, 1))
    assert batch.view.truncated.tolist() == [True]
    assert not batch.view.to_act.any()
    assert batch.view.observation[1]["map"][0, 0].max() == 5
    assert batch.view.score.tolist() == [[1.0, -3.0]]


def turn(**parts: Any) -> Turn:
    sound: dict[str, Any] = {"observations": {0: np.zeros(2, np.float32)}, "legal": {}, "reward": ()}
    return Turn(**{**sound, **parts})


MASK = np.zeros(3, np.bool_)
BAD_TURNS = [
    (turn(observations={}), r"no seat must act"),
    (turn(observations={5: np.zeros(2, np.float32)}), r"observation for seat 5; seats are 0 to 1"),
    (turn(observations={0: np.zeros(3, np.float32)}), r"part 'sticks': expected float32\[2\], got float32\[3\]"),
    (turn(observations={0: np.zeros(2, complex)}), r"'sticks': expected float32\[2\], got complex128\[2\]"),
    (turn(observations={0: {"stick": [1, 2]}}), r"lacks part 'sticks'; did you mean 'stick'"),
    (turn(observations={0: {"sticks": [1, 2], "x": 1}}), r"unknown part 'x'"),
    (turn(legal={0: MASK}), r"seat 0: head 'take' has no legal option"),
    (turn(legal={0: np.ones(4, np.bool_)}), r"head 'take': expected bool\[3\], got bool\[4\]"),
    (turn(legal={0: np.ones(3, np.int8)}), r"head 'take': expected bool\[3\], got int8\[3\]"),
    (turn(legal={0: {"tkae": ~MASK}}), r"unknown or unmasked head 'tkae'; did you mean 'take'"),
    (turn(reward={2: 1.0}), r"reward for seat 2; seats are 0 to 1"),
    (turn(reward=(1.0, "x")), r"a reward is a number, got \[1.0, 'x'\]"),
    (turn(reward=(1.0,)), r"reward has 1 numbers for 2 seats: \(1.0,\)"),
    (turn(over=True, truncated=True), r"cannot be both over and truncated"),
    (turn(over=True, score=(1.0, 0.0, -1.0)), r"score has 3 numbers for 2 teams"),
    (turn(truncated=True, observations={1: [0, 0]}), r"truncated without an observation for seat 0"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_TURNS, ids=[message for _, message in BAD_TURNS])
def test_errors_name_game_table_and_seat(bad: Turn, message: str) -> None:
    class Bad(Nim):
        def step(self, actions: Mapping[int, int]) -> Turn:
            return bad if self.sticks == 8 else super().step(actions)

    batch = Lifted(Bad).tables(2)
    batch.reset(np.arange(2), seeds(2))
    with pytest.raises(ValueError, match=message) as raised:
        batch.step(allocate_actions(batch.spec, 2))
    assert str(raised.value).startswith("nim, table 1")


def test_an_error_of_the_game_itself_keeps_its_type_and_says_at_which_table() -> None:
    class Raising(Nim):
        def step(self, actions: Mapping[int, int]) -> Turn:
            raise KeyError("ouch")

    batch = Lifted(Raising).tables(1)
    batch.reset(np.arange(1), seeds(1))
    with pytest.raises(KeyError, match="ouch") as raised:
        batch.step(allocate_actions(batch.spec, 1))
    assert raised.value.__notes__ == ["raised by nim, table 0, in step({0: 0})"]


def test_entities_beyond_the_maximum_are_an_error() -> None:
    batch = Lifted(lambda: Orders(num_units=2)).tables(1)
    batch.reset(np.arange(1), seeds(1))
    batch.step(allocate_actions(batch.spec, 1))
    with pytest.raises(ValueError, match=r"orders, table 0, seat 0: part 'units': expected float32\[at most 2, 2\]"):
        batch.step(allocate_actions(batch.spec, 1))


def test_a_missing_score_and_a_reward_at_reset_are_errors() -> None:
    class Unscored(Nim):
        spec = replace(Nim.spec, reward_is_score=False)

        def step(self, actions: Mapping[int, int]) -> Turn:
            return Turn(observations={}, over=True)

    class Early(Nim):
        def turn(self) -> Turn:
            return replace(super().turn(), reward=(1.0, -1.0))

    batch = Lifted(Unscored).tables(1)
    batch.reset(np.arange(1), seeds(1))
    with pytest.raises(ValueError, match="ended without a score"):
        batch.step(allocate_actions(batch.spec, 1))
    with pytest.raises(ValueError, match=r"reward \(1.0, -1.0\) at reset"):
        Lifted(Early).tables(1).reset(np.arange(1), seeds(1))


def test_bots_trees_and_names_come_from_the_game_or_are_given() -> None:
    class Searchable(Nim):
        def bots(self) -> Mapping[str, RandomBot]:
            return {"own": RandomBot()}

        def tree(self) -> Any:
            return TicTacToe().tree()

        def tree_state(self) -> Any:
            return TicTacToe().tree()

    assert list(Lifted(Searchable).bots()) == ["random", "own"]
    assert list(Lifted(Nim, extra_bots={"mine": RandomBot()}).bots()) == ["random", "mine"]
    assert Lifted(Searchable).tree() is not None
    assert Lifted(Nim).tree() is None
    assert isinstance(Lifted(Searchable).tables(1), HasTrees)
    assert not isinstance(Lifted(Nim).tables(1), HasTrees)
    renamed = Lifted(Nim, name="sticks")
    assert renamed.spec.name == renamed.tables(1).spec.name == "sticks"
