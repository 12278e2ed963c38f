"""FightingICE against a stand-in for the game that speaks its protocol; the game itself is not run."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from ludus.games.adapters.fightingice import COMMANDS, FightingICE
from ludus.games.check import check_game
from ludus.games.game import allocate_actions
from ludus.games.seat_rows import GameError

if importlib.util.find_spec("pyftg") is None:
    pytest.skip("pyftg is not installed; pip install -e '.[fightingice]'", allow_module_level=True)

from stand_in_fightingice import DELAY, StandIn

WALK, GUARD, ATTACK = (COMMANDS.index(name) for name in ("FORWARD_WALK", "STAND_GUARD", "STAND_A"))


@pytest.fixture
def games() -> Iterator[Any]:
    running: list[StandIn] = []

    def start(count: int = 1, **plan: int) -> tuple[list[StandIn], tuple[int, ...]]:
        new = [StandIn(**plan) for _ in range(count)]
        running.extend(new)
        return new, tuple(one.port for one in new)

    yield start
    for one in running:
        one.close()


def played(source: FightingICE, *commands: int) -> tuple[list[float], list[float], int]:
    """Total rewards, score and clock of an episode in which each seat repeats its command."""
    total = np.zeros(2)
    with closing(source.tables(1)) as tables:
        tables.reset(np.array([0]), np.array([1], np.uint64))
        actions = allocate_actions(tables.spec, 1)
        actions[0]["command"][0] = commands
        while not tables.view.over[0]:
            tables.step(actions)
            total += tables.view.reward[0]
    return total.tolist(), tables.view.score[0].tolist(), int(tables.view.clock[0])


def test_keeps_the_promises_of_a_game(games: Any) -> None:
    _, ports = games(6)
    source = FightingICE(ports=ports, rounds=2, round_frames=90)
    report = check_game(source, episodes=6, tables=4, max_steps=150, bot_seconds=0.3)
    assert report.ok, str(report)


def test_the_nearer_fighter_that_attacks_wins(games: Any) -> None:
    (game,), ports = games(rounds=2, frames=200, hp=100)
    total, score, clock = played(FightingICE(ports=ports), WALK, ATTACK)
    assert score == [-1.0, 1.0]
    assert total == pytest.approx([-2.0, 2.0])  # every hit point in both rounds
    assert clock == len(game.pressed) + 1
    assert [(one.character_1, one.player_1, one.player_2) for one in game.asked] == [("ZEN", "Ludus1", "Ludus2")]


def test_guarding_takes_nothing(games: Any) -> None:
    _, ports = games(rounds=1, frames=120)
    total, score, _ = played(FightingICE(ports=ports), GUARD, GUARD)
    assert (total, score) == ([0.0, 0.0], [0.0, 0.0])


def test_commands_become_keys_of_the_side_that_a_fighter_faces(games: Any) -> None:
    (game,), ports = games(rounds=1, frames=12)
    played(FightingICE(ports=ports, frames_per_decision=4), WALK, COMMANDS.index("STAND_D_DF_FA"))
    assert [keys for keys, _ in game.pressed] == ["R"] * 12
    assert [keys for _, keys in game.pressed][:4] == ["D", "DL", "AL", ""]


def test_seats_decide_when_their_fighter_can_be_told_something(games: Any) -> None:
    _, ports = games(rounds=1, frames=40)
    tables = FightingICE(ports=ports, frames_per_decision=2).tables(1)
    tables.reset(np.array([0]), np.array([1], np.uint64))
    actions = allocate_actions(tables.spec, 1)
    actions[0]["command"][0] = (WALK, COMMANDS.index("STAND_D_DF_FB"))
    seen = []
    for _ in range(4):
        tables.step(actions)
        seen.append((int(tables.view.clock[0]), tables.view.to_act[0].tolist()))
    assert seen == [(3, [True, False]), (4, [False, True]), (5, [True, False]), (7, [True, True])]
    tables.close()


@pytest.mark.parametrize(("delayed", "lag"), [(True, DELAY - 1), (False, 0)])
def test_what_is_seen_may_be_late(games: Any, delayed: bool, lag: int) -> None:
    _, ports = games(rounds=1, frames=60)
    tables = FightingICE(ports=ports, delayed=delayed, round_frames=100, frames_per_decision=1).tables(1)
    tables.reset(np.array([0]), np.array([1], np.uint64))
    actions = allocate_actions(tables.spec, 1)
    for _ in range(29):
        tables.step(actions)
    seen = tables.view.observation[0]["fight"][0]
    assert seen[:, -2].tolist() == pytest.approx([(30 - lag) / 100] * 2)
    assert seen[0, 2] == pytest.approx(300 / 960)  # oneself comes first
    assert seen[1, 2] == pytest.approx(600 / 960)
    tables.close()


def test_a_game_that_is_not_ready_is_asked_again(games: Any) -> None:
    (game,), ports = games(refuse=2, rounds=1, frames=5)
    assert played(FightingICE(ports=ports), GUARD, GUARD)[1] == [0.0, 0.0]
    assert len(game.asked) == 3


def test_an_episode_that_is_broken_off_is_followed_by_another(games: Any) -> None:
    (game,), ports = games(rounds=1, frames=20)
    tables = FightingICE(ports=ports).tables(1)
    for seed in (1, 2):
        tables.reset(np.array([0]), np.array([seed], np.uint64))
    assert len(game.asked) == 2
    tables.close()


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        ({"crash_at": 3}, {}, "closed the connection|game was broken off"),
        ({"hang_at": 3}, {"time_limit_s": 0.3}, "said nothing for 0.3 s"),
        ({"refuse": 99}, {"time_limit_s": 0.3}, "does not start a game: The game is not ready"),
    ],
)
def test_what_goes_wrong_is_said(games: Any, plan: Any, options: Any, message: str) -> None:
    _, ports = games(**plan)
    with pytest.raises(GameError, match=message):
        played(FightingICE(ports=ports, **options), GUARD, GUARD)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(GameError, match=r"no FightingICE at 127.0.0.1:9.*--pyftg-mode --port 9"):
        played(FightingICE(ports=(9,)), 0, 0)
    with pytest.raises(GameError, match=r"2 tables, but ports names 1 running games"):
        FightingICE().tables(2)
    with pytest.raises(GameError, match="characters must be of GARNET, ZEN, LUD, NEZ, got 'BOB'"):
        FightingICE(characters=("ZEN", "BOB"))


def test_a_game_that_was_looked_for_can_be_played(games: Any) -> None:
    _, ports = games(rounds=1, frames=12)
    source = FightingICE(ports=ports)
    assert source.missing(1) == []
    assert played(source, GUARD, GUARD)[1] == [0.0, 0.0]
