"""StarCraft II as a game, on PySC2's mock: promises, seats, the lobby, delays, mistakes."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ludus.games.adapters.pysc2 import COMPUTERS, INSTALL, Computer, PySC2
from ludus.games.catalog import resolve
from ludus.games.game import allocate_actions
from ludus.games.seat_rows import GameError

needs_pysc2 = pytest.mark.skipif(importlib.util.find_spec("pysc2") is None, reason="pysc2 is not installed")

SMALL: dict[str, Any] = {"screen": 16, "minimap": 16, "mock": True}
MINI_GAME = PySC2(map_name="MoveToBeacon", **SMALL)
AGAINST_COMPUTER = PySC2(map_name="Simple64", opponent=Computer(difficulty="hard"), **SMALL)
TWO_SEATS = PySC2(map_name="Simple64", builtin_bots=False, max_units=16, **SMALL)
RAW_WITH_DELAYS = PySC2(
    map_name="Simple64",
    builtin_bots=False,
    interface="raw",
    max_units=16,
    max_delay=8,
    raw_resolution=32,
    screen=0,
    minimap=0,
    mock=True,
)
PUBLISHED = PySC2(
    map_name="Simple64",
    interface="raw",
    inputs="published",
    opponent_view=True,
    max_units=16,
    max_delay=8,
    raw_resolution=32,
    **SMALL,
)
LOBBY = PySC2(map_name="Simple64", **SMALL)


def first_seed() -> Any:
    return np.array([0]), np.array([1], np.uint64)


@needs_pysc2
@pytest.mark.parametrize(
    "source",
    [MINI_GAME, AGAINST_COMPUTER, TWO_SEATS, RAW_WITH_DELAYS, replace(PUBLISHED, builtin_bots=False)],
    ids=["mini-game", "against the computer", "two seats", "raw", "published"],
)
def test_keeps_the_promises_of_a_game(source: PySC2) -> None:
    from ludus.games.check import check_game

    report = check_game(source, episodes=4, tables=2, max_steps=60, bot_seconds=0.2)
    assert report.ok, str(report)


@needs_pysc2
def test_seats_are_as_many_as_players_less_the_opponent() -> None:
    assert MINI_GAME.spec.num_seats == AGAINST_COMPUTER.spec.num_seats == 1
    assert TWO_SEATS.spec.num_teams == 2
    assert TWO_SEATS.spec.zero_sum
    assert not AGAINST_COMPUTER.spec.zero_sum
    assert MINI_GAME.spec.max_length == 244  # 1,920 game steps, eight a decision, and some
    assert resolve("pysc2:MoveToBeacon", mock=True).spec.name == "pysc2:MoveToBeacon"


@needs_pysc2
def test_computers_are_bots_where_there_is_a_second_seat() -> None:
    assert set(MINI_GAME.bots()) == set(TWO_SEATS.bots()) == {"random"}
    bots = LOBBY.bots()
    assert len(bots) == 1 + 4 * 10
    assert {"random", "builtin_terran_easy", "builtin_random_cheat_insane"} <= set(bots)
    with_builds = PySC2(map_name="Simple64", builtin_builds=("random", "rush"), **SMALL)
    assert "builtin_zerg_hard_rush" in with_builds.bots()
    assert len({computer.name for computer in COMPUTERS}) == len(COMPUTERS) == 240


@needs_pysc2
@pytest.mark.parametrize("seat", [0, 1])
def test_a_built_in_bot_takes_its_seat_in_the_lobby_and_never_acts_again(seat: int) -> None:
    batch = LOBBY.tables(1)
    batch.reset(*first_seed())
    assert batch.view.to_act[0].tolist() == [True, True]
    assert batch.view.legal[0]["function"][0].sum(axis=1).tolist() == [1, 1]
    assert not batch.view.observation[0]["scalars"].any()
    rng = np.random.default_rng(0)
    actions = allocate_actions(LOBBY.spec, 1)
    bot = LOBBY.bots()["builtin_zerg_hard"]
    for head, value in bot.act(batch, np.array([0]), np.array([seat]), rng).items():
        actions[0][head][0, seat] = value[0]
    batch.step(actions)
    assert batch.view.to_act[0].tolist() == [seat != 0, seat != 1]
    assert batch.view.observation[0]["scalars"][0, 1 - seat].any()
    while not batch.view.over[0]:
        batch.step(actions)  # the number that marks the seat is not looked at any more
        assert not batch.view.to_act[0, seat]
    batch.close()


@needs_pysc2
@pytest.mark.parametrize("computer", [False, True])
def test_a_critic_sees_the_other_seat_unless_a_computer_plays_it(computer: bool) -> None:
    batch = PUBLISHED.tables(1)
    batch.reset(*first_seed())
    actions = allocate_actions(PUBLISHED.spec, 1)
    if computer:
        bot = PUBLISHED.bots()["builtin_zerg_hard"]
        for head, value in bot.act(batch, np.array([0]), np.array([1]), np.random.default_rng(0)).items():
            actions[0][head][0, 1] = value[0]
    batch.step(actions)
    actions = allocate_actions(PUBLISHED.spec, 1)
    actions[0]["delay"][0] = [2, 2]
    actions[0]["function"][0, 1] = 1
    batch.step(actions)
    view = {name: array[0] for name, array in batch.view.observation[0].items()}
    kind = PUBLISHED.spec.kinds[0]
    assert set(kind.observation.critic) == {*kind.observation.parts, "scores"}
    others = [name for name in view if name.startswith("critic.") and name != "critic.scores"]
    assert len(others) > 14
    for name in others:
        expected = np.zeros_like(view[name][0]) if computer else view[name.removeprefix("critic.")][1]
        np.testing.assert_array_equal(view[name][0], expected, err_msg=name)
    scores = view["critic.scores"][0].reshape(2, -1)
    assert scores[0].any()
    assert scores[1].any() == (not computer)
    assert view["last_action"][0].argmax() == 0
    assert view["last_delay"][0].sum() == 1
    if not computer:
        assert view["critic.last_action"][0].argmax() == 1
    batch.close()


@needs_pysc2
def test_two_built_in_bots_cannot_play_each_other() -> None:
    batch = LOBBY.tables(1)
    batch.reset(*first_seed())
    bot = LOBBY.bots()["builtin_zerg_hard"]
    chosen = bot.act(batch, np.array([0, 0]), np.array([0, 1]), np.random.default_rng(0))
    with pytest.raises(GameError, match="builtin_zerg_hard and builtin_zerg_hard"):
        batch.step(({head: value[None] for head, value in chosen.items()},))
    batch.close()


@needs_pysc2
def test_seats_decide_when_their_delay_has_run_out() -> None:
    batch = RAW_WITH_DELAYS.tables(1)
    batch.reset(*first_seed())
    actions = allocate_actions(RAW_WITH_DELAYS.spec, 1)
    actions[0]["delay"][0] = [1, 4]  # two and five game steps
    acting, clock = [], []
    for _ in range(4):
        batch.step(actions)
        acting.append(batch.view.to_act[0].tolist())
        clock.append(int(batch.view.clock[0]))
    assert clock == [2, 4, 5, 6]
    assert acting == [[True, False], [True, False], [False, True], [True, False]]
    batch.close()


@needs_pysc2
def test_a_seat_that_has_acted_often_enough_has_to_wait() -> None:
    from ludus.games.adapters.pysc2_actions import FunctionCodec

    source = replace(RAW_WITH_DELAYS, max_actions=2, max_delay=128)
    camera = [function.name for function in FunctionCodec(source).functions].index("raw_move_camera")
    batch = source.tables(1)
    batch.reset(*first_seed())
    actions = allocate_actions(source.spec, 1)
    actions[0]["delay"][0] = 9  # ten game steps
    actions[0]["function"][0] = [camera, 0]
    free = []
    for delay in (9, 9, 99, 9):
        actions[0]["delay"][0] = delay
        batch.step(actions)
        free.append(batch.view.legal[0]["function"][0, :, camera].tolist())
        if not free[-1][0]:
            assert batch.view.legal[0]["function"][0, 0].sum() == 1
            actions[0]["function"][0, 0] = 0
    # After the actions at 0 and 10 the seat waits until the first is 112 game steps ago; the other one never acts.
    assert free == [[True, True], [False, True], [True, True], [True, True]]
    batch.close()


@needs_pysc2
def test_ratings_are_shown_and_races_sometimes_hidden() -> None:
    batch = replace(PUBLISHED, builtin_bots=False, races=("zerg",), hidden_race=0.3, mmr=4_300).tables(20)
    hidden = []
    for first in range(0, 200, 20):
        batch.reset(np.arange(20), np.arange(first, first + 20, dtype=np.uint64))
        view = batch.view.observation[0]
        assert (view["mmr"].argmax(-1) == 4).all()
        assert (view["home_race"].argmax(-1) == 1).all()
        assert (view["away_race"].argmax(-1) <= 1).all()
        hidden.append(~view["away_race"].any(-1))
    share = np.concatenate(hidden)
    assert share.mean() == pytest.approx(0.3, abs=0.07)
    assert (share[:, 0] != share[:, 1]).any()  # each seat has a draw of its own
    batch.close()


@needs_pysc2
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"map_name": "MoveToBeakon"}, "no map 'MoveToBeakon'; did you mean 'MoveToBeacon'"),
        ({"map_name": "MoveToBeacon", "opponent": Computer()}, "is for one player"),
        ({"map_name": "Simple64", "opponent": Computer(), "opponent_view": True}, "opponent_view needs a second seat"),
        ({"map_name": "Simple64", "races": ("zerg", "zerg", "zerg")}, "3 races for 2 seats"),
        ({"map_name": "Simple64", "functions": ("select_larva",)}, "builtin_bots=false"),
    ],
)
def test_mistakes_that_need_pysc2_to_be_seen(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GameError, match=message):
        PySC2(**options, mock=True).spec  # noqa: B018


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"races": ("human",)}, "races must be of terran, zerg, protoss, random, got human"),
        ({"interface": "rgb"}, "interface must be features or raw, got 'rgb'"),
        ({"interface": "raw"}, "set max_units"),
        ({"hidden_race": 1.5}, "hidden_race must be at most 1, got 1.5"),
        ({"inputs": "all"}, "inputs must be basic or published, got 'all'"),
        ({"inputs": "published"}, "inputs='published' needs interface='raw', got 'features'"),
        ({"screen": 0}, "needs a screen and a minimap"),
        ({"step_mul": 0}, "step_mul must be at least 1, got 0"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GameError, match=message):
        PySC2(map_name="Simple64", **options)
    with pytest.raises(GameError, match="difficulty must be one of very_easy"):
        Computer(difficulty="simple")  # type: ignore[arg-type]


def test_without_pysc2_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    source = PySC2(map_name="MoveToBeacon")
    with pytest.raises(GameError, match=f"PySC2, which is not installed; {re.escape(INSTALL)}"):
        source.spec  # noqa: B018
