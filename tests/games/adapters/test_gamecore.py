"""Honor of Kings against stand-ins for all that is closed: server, simulator and library. The game itself was
never run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stand_in_gamecore import ATTACK, StandInServer
from stand_in_hok import install

from ludus.games.adapters.gamecore import Gamecore
from ludus.games.adapters.gamecore_client import CampAddress, GamecoreClient, Hero
from ludus.games.adapters.gamecore_stand_in import num_features
from ludus.games.bots import RandomBot, act_among
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import NeedsMore, allocate_actions
from ludus.games.remote.matches import ServerMatches
from ludus.games.remote.messages import Camp, MatchConfig
from ludus.games.seat_rows import GameError


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts a server and gives it, with a source that plays on it."""
    monkeypatch.setenv("PYTHONPATH", install(tmp_path))
    running: list[StandInServer] = []

    def start(mode: Any = "1v1", *, options: Any = None, **plan: int) -> tuple[StandInServer, Gamecore]:
        running.append(StandInServer(**plan))
        given = {"server": running[-1].address, "python": sys.executable, "max_frames": 60, "common_ai_bot": False}
        return running[-1], Gamecore(mode=mode, **(given | (options or {})))

    yield start
    for one in running:
        one.close()


def played(source: Gamecore, *buttons: int, steps: int = 200) -> tuple[list[float], list[float]]:
    """Score and total rewards of an episode in which each seat repeats its button."""
    total = np.zeros(source.spec.num_seats)
    with closing(source.tables(1)) as tables:
        tables.reset(np.array([0]), np.array([1], np.uint64))
        actions = allocate_actions(tables.spec, 1)
        actions[0]["button"][0] = buttons
        for _ in range(steps):
            tables.step(actions)
            total += tables.view.reward[0]
            if tables.view.over[0]:
                break
        return tables.view.score[0].tolist(), total.tolist()


@pytest.mark.parametrize("mode", ["1v1", "3v3"])
def test_keeps_the_promises_of_a_game(server: Any, mode: str) -> None:
    _, source = server(mode, features=12, options={"observation_size": 12, "max_frames": 12})
    report = check_game(source, episodes=1, tables=1, max_steps=20, bot_seconds=0.2)
    assert report.ok, str(report)


@pytest.mark.parametrize("mode", ["1v1", "3v3"])
def test_the_stand_in_keeps_the_promises_of_a_game(mode: Any) -> None:
    source = Gamecore(mode=mode, server="stand_in", max_frames=90, full_critic=True)
    assert isinstance(source, NeedsMore)
    assert source.missing(4) == []
    report = check_game(source, episodes=3, tables=4, max_steps=60, bot_seconds=0.5)
    assert report.ok, str(report)


@pytest.mark.parametrize("mode", ["1v1", "3v3"])
def test_a_battle_is_the_same_in_memory_and_through_server_simulator_and_bridge(server: Any, mode: Any) -> None:
    """Features, masks, rewards, score and what the critic sees; 3v3 masks come from a result that is never sent."""
    own = {"max_frames": 45, "full_critic": True, "observation_size": num_features(mode)}
    line_ups = {"heroes": ((112,), ("111:80108",)) if mode == "1v1" else ((157, 174, 167), (110, 111, 112))}
    _, source = server(mode, seed=5, options=own | line_ups)
    memory = Gamecore(mode=mode, server="stand_in", common_ai_bot=False, **own, **line_ups).tables(1)
    rng = np.random.default_rng(1)
    with closing(source.tables(1)) as wire:
        for tables in (memory, wire):
            tables.reset(np.array([0]), np.array([5], np.uint64))
        seats, size = np.arange(source.spec.num_seats), source.heroes_a_camp
        earned = np.zeros((2, source.spec.num_seats))
        while not memory.view.over[0]:
            chosen = RandomBot().act(memory, np.zeros(len(seats), np.int64), seats, rng)
            actions = ({head: rows[None] for head, rows in chosen.items()},)
            for camp in range(2):
                acting = seats[camp * size : (camp + 1) * size]
                assert np.flatnonzero(wire.view.to_act[0]).tolist() == acting.tolist()
                for part in ("observation", "legal"):
                    for name, array in getattr(memory.view, part)[0].items():
                        shown = getattr(wire.view, part)[0][name][0, acting]
                        late = source.num_features * size if name == "critic.camps" and camp == 0 else None
                        # The first camp of a frame has not seen the other one's features of that frame yet.
                        np.testing.assert_allclose(shown[..., :late], array[0, acting][..., :late], 1e-5, err_msg=name)
                wire.step(actions)
                earned[1] += wire.view.reward[0]
            memory.step(actions)
            earned[0] += memory.view.reward[0]
        assert wire.view.over[0]
        np.testing.assert_allclose(earned[1], earned[0], 1e-4, 1e-5)
        assert wire.view.score[0].tolist() == memory.view.score[0].tolist()


@pytest.mark.parametrize("camp", [0, 1])
def test_common_ai_is_a_bot_that_can_have_either_camp(server: Any, camp: int) -> None:
    game, source = server(options={"common_ai_bot": True})
    assert set(source.bots()) == {"random", "common_ai"}
    with closing(source.tables(1)) as tables:
        tables.reset(np.array([0]), np.array([1], np.uint64))
        assert tables.view.to_act[0].tolist() == [True, True]
        assert np.flatnonzero(tables.view.legal[0]["button"][0, camp]).tolist() == [0]
        assert not game.asked
        actions = allocate_actions(tables.spec, 1)
        act_among(source.bots()["common_ai"], tables, np.arange(2) == camp, np.random.default_rng(0), actions)
        tables.step(actions)
        actions[0]["button"][0] = 2
        while not tables.view.over[0]:
            assert tables.view.to_act[0].tolist() == [camp == 1, camp == 0]
            tables.step(actions)
        assert tables.view.score[0, camp] == 1.0
    (asked,) = [content for call, content in game.asked if call == "newGame"]
    infos = [hero["request_info"] for hero in asked["simulator_config"]["hero_conf"]]
    assert [info == {} for info in infos] == [camp == 0, camp == 1]


def test_common_ai_has_a_whole_camp_and_on_a_server_only_one(server: Any) -> None:
    rng = np.random.default_rng(0)
    for mode, seats, message in (("3v3", [0], "plays a whole camp"), ("1v1", [0, 1], "cannot have both camps")):
        _, source = server(mode, options={"common_ai_bot": True})
        with closing(source.tables(1)) as tables:
            tables.reset(np.array([0]), np.array([1], np.uint64))
            actions = allocate_actions(tables.spec, 1)
            among = np.isin(np.arange(source.spec.num_seats), seats)
            act_among(source.bots()["common_ai"], tables, among, rng, actions)
            with pytest.raises(GameError, match=message):
                tables.step(actions)


@pytest.mark.parametrize("mode", ["1v1", "3v3"])
def test_the_stand_ins_own_player_beats_a_random_one_and_has_no_better_camp(mode: Any) -> None:
    source = Gamecore(mode=mode, server="stand_in", max_frames=1_200)
    bots, tables, rng = source.bots(), source.tables(16), np.random.default_rng(0)
    for camps, expected in ((("common_ai", "random"), 1), (("random", "common_ai"), -1), (("common_ai",) * 2, 0)):
        tables.reset(np.arange(16), np.arange(16, dtype=np.uint64))
        actions = allocate_actions(tables.spec, 16)
        while not tables.view.over.all():
            for camp, name in enumerate(camps):
                act_among(bots[name], tables, np.asarray(source.spec.teams) == camp, rng, actions)
            tables.step(actions)
        assert abs(tables.view.score[:, 0].mean() - expected) < 0.4


def test_heroes_and_skills_are_given_per_camp(server: Any) -> None:
    game, source = server(options={"heroes": ((112,), ("190:80115",))})
    assert source.line_ups == ((Hero(hero_id=112),), (Hero(hero_id=190, skill_id=80115),))
    played(source, ATTACK, 2)
    (_, asked), *_ = [one for one in game.asked if one[0] == "newGame"]
    given = [
        {name: value for name, value in hero.items() if name != "request_info"}
        for hero in asked["simulator_config"]["hero_conf"]
    ]
    assert given == [{"hero_id": 112}, {"hero_id": 190, "skill_id": 80115}]
    with pytest.raises(GameError, match=r"a hero is NUMBER or NUMBER:SKILL, .* got 'mulan'"):
        Gamecore(mode="1v1", heroes=(("mulan",), (1,)))
    with pytest.raises(GameError, match="observation_size must be at least 90 with the stand-in, got 12"):
        Gamecore(mode="1v1", server="stand_in", observation_size=12)


def test_a_match_on_a_game_server_names_the_heroes_of_each_camp() -> None:
    matches = ServerMatches(lambda _, options: resolve("gamecore:1v1", **options), most_at_once=1)
    camps = (Camp(bot="random", heroes=(174,)), Camp(bot="common_ai", heroes=("157:80108",)))
    matches.start("one", MatchConfig(camps=camps, options={"server": "stand_in", "max_frames": 600}))
    result = matches.table("one").wait(30.0)
    assert result.state == "finished", result
    assert result.scores in (((-1.0, 1.0),), ((0.0, 0.0),))


def test_the_camp_whose_crystal_falls_has_lost(server: Any) -> None:
    _, source = server()
    assert played(source, ATTACK, 2)[0] == [1.0, -1.0]
    assert played(source, 2, ATTACK)[0] == [-1.0, 1.0]


def test_a_battle_that_is_cut_off_is_a_draw(server: Any) -> None:
    _, source = server(options={"max_frames": 10})
    assert played(source, 2, 2) == ([0.0, 0.0], [0.0, 0.0])


def test_rewards_are_the_librarys(server: Any) -> None:
    _, source = server(crystal=2)
    score, total = played(source, ATTACK, 0)
    assert score == [1.0, -1.0]
    assert total[0] > 0 > total[1]


def test_three_heroes_a_camp_decide_together(server: Any) -> None:
    _, source = server("3v3", features=12, options={"observation_size": 12})
    assert source.spec.teams == (0, 0, 0, 1, 1, 1)
    with closing(source.tables(1)) as tables:
        tables.reset(np.array([0]), np.array([1], np.uint64))
        actions = allocate_actions(tables.spec, 1)
        actions[0]["button"][0] = ATTACK
        seen = [tables.view.to_act[0].tolist()]
        clocks = []
        for _ in range(2):
            tables.step(actions)
            seen.append(tables.view.to_act[0].tolist())
            clocks.append(int(tables.view.clock[0]))
    assert seen == [[True] * 3 + [False] * 3, [False] * 3 + [True] * 3, [True] * 3 + [False] * 3]
    assert clocks == [0, 3]


def test_what_a_hero_is_told_reaches_the_game(server: Any) -> None:
    _, source = server()
    with closing(source.tables(1)) as tables:
        tables.reset(np.array([0]), np.array([1], np.uint64))
        legal = tables.view.legal[0]
        assert np.flatnonzero(legal["button"][0, 0]).tolist() == [0, 2, 3, 4]
        assert np.flatnonzero(legal["target_attack"][0, 0]).tolist() == [0, 1, 2]
        assert np.flatnonzero(legal["target_heal"][0, 0]).tolist() == [0]  # none is, and one must be
        actions = allocate_actions(tables.spec, 1)
        for head, value in {"button": 4, "skill_x": 7, "skill_z": 9, "target_skill_1": 2, "target_attack": 1}.items():
            actions[0][head][0, 0] = value
        tables.step(actions)
        tables.step(actions)
        echo = tables.view.observation[0]["features"][0, 0]
    assert echo[3:9].tolist() == [4, 0, 0, 7, 9, 2]


def test_the_servers_own_player_can_have_a_camp(server: Any) -> None:
    game, source = server(options={"common_ai": True})
    assert source.spec.num_teams == 1
    assert played(source, ATTACK)[0] == [1.0]
    assert played(source, 2, steps=400)[0] == [-1.0]
    (_, asked), *_ = [one for one in game.asked if one[0] == "newGame"]
    assert asked["simulator_config"]["hero_conf"][1]["request_info"] == {}


def test_a_game_is_stopped_before_the_next_and_at_the_end(server: Any) -> None:
    game, source = server()
    with closing(source.tables(1)) as tables:
        for seed in (1, 2):
            tables.reset(np.array([0]), np.array([seed], np.uint64))
            assert len(game.running()) == 1
    assert game.running() == []


def test_start_says_who_fights_and_where_answers_come_from(server: Any) -> None:
    game, _ = server(refuse=0)
    client = GamecoreClient(game.address)
    heroes = ((Hero(hero_id=190, skill_id=80115, symbol=(1512, 1512)),), (Hero(hero_id=105),))
    camps = (CampAddress(ip="127.0.0.1", port=1), None)
    client.start_game("a", "1v1", heroes, camps, simulator="remote_repeat", max_frames=9, task_id="t")
    call, asked = game.asked[-1]
    assert call == "newGame"
    assert asked == {
        "simulator_type": "remote_repeat",
        "runtime_id": "a",
        "simulator_config": {
            "game_mode": "1v1",
            "max_frame_num": 9,
            "task_id": "t",
            "hero_conf": [
                {
                    "hero_id": 190,
                    "skill_id": 80115,
                    "symbol": [1512, 1512],
                    "request_info": {"ip": "127.0.0.1", "port": 1, "timeout": 30_000},
                },
                {"hero_id": 105, "request_info": {}},
            ],
        },
    }
    assert client.task_list() == ["t"]
    assert client.task_detail("t") == [{"runtime_id": "a"}]
    client.stop_game("a")
    assert not client.exists("a")
    assert client.wait_game("a", 1.0)
    client.task_remove("t")
    client.task_clear()
    assert client.task_list() == []


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        ({"crash_at": 5}, {"time_limit_s": 1.5}, "the bridge .* gave no answer within 1.5 s"),
        ({"refuse": 1}, {}, "answered newGame with 500 .*no licence"),
        ({"features": 9}, {}, "a hero sees 9 numbers; set observation_size=9"),
        ({}, {"python": "no_such_python"}, "bridge .no_such_python. has ended"),
        ({}, {"bridge": "python3 -c 'import hok.missing'"}, "has ended with exit code 1"),
    ],
)
def test_what_goes_wrong_is_said(server: Any, plan: Any, options: Any, message: str) -> None:
    _, source = server(options=options, **plan)
    with pytest.raises(GameError, match=message):
        played(source, 2, 2)


def test_a_server_that_is_not_there_is_named(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = server()
    monkeypatch.setenv("GAMECORE_SERVER_ADDR", "127.0.0.1:9")
    with pytest.raises(GameError, match=r"no gamecore server at 127.0.0.1:9 .*GAMECORE_SERVER_ADDR=HOST:PORT"):
        played(Gamecore(mode="1v1", python=source.python), 2, 2)


def test_the_address_names_the_mode() -> None:
    source = resolve("gamecore:3v3", max_frames=100)
    assert isinstance(source, Gamecore)
    assert source.spec.num_seats == 6
    assert source.spec.kinds[0].observation.arrays["features"].shape == (4586,)
    assert Gamecore(mode="1v1").spec.kinds[0].observation.arrays["features"].shape == (725,)
    with pytest.raises(GameError, match="mode must be 1v1 or 3v3, got '5v5'"):
        resolve("gamecore:5v5")
    with pytest.raises(GameError, match="1v1 has 1 heroes a camp, got 2"):
        Gamecore(mode="1v1", heroes=((Hero(hero_id=1),) * 2, (Hero(hero_id=1),)))
