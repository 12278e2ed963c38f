"""The game's process: PySC2 drives a stand-in program that crashes, hangs, and must never be left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pysc2")

from stand_in_sc2 import asked, change_plan, install

from ludus.games.adapters.pysc2 import Computer, PySC2
from ludus.games.adapters.pysc2_actions import FunctionCodec
from ludus.games.adapters.pysc2_history import BUILD_ORDER, NUM_FACTS, NUM_TYPES, UNIT_TYPES
from ludus.games.game import GameBatch, allocate_actions
from ludus.games.seat_rows import GameError
from ludus.games.strategies import WithStrategies

pytestmark = pytest.mark.slow  # PySC2 waits a second between two attempts to reach a process

SMALL: dict[str, Any] = {"screen": 16, "minimap": 16, "time_limit_s": 30}
MINI_GAME = PySC2(map_name="MoveToBeacon", **SMALL)
MELEE = PySC2(map_name="Simple64", **SMALL)


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the stand-in. In the end none of its processes may be left."""
    folder = install(tmp_path / "StarCraftII", ends_at=48)
    monkeypatch.setenv("SC2PATH", str(folder))
    yield folder
    wait_until(lambda: not running(folder))


def running(folder: Path) -> list[int]:
    return [line["pid"] for line in asked(folder, "start") if Path(f"/proc/{line['pid']}").exists()]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def reset(batch: GameBatch, seed: int = 1) -> None:
    batch.reset(np.arange(batch.num_tables), np.full(batch.num_tables, seed, np.uint64))


def play(source: PySC2, batch: GameBatch) -> int:
    """Steps until the only table has ended."""
    actions = allocate_actions(source.spec, batch.num_tables)
    steps = 0
    while not (batch.view.over | batch.view.truncated).all():
        batch.step(actions)
        steps += 1
    return steps


def test_episodes_have_seeds_of_their_own_in_one_process(game: Path) -> None:
    with closing(MINI_GAME.tables(1)) as batch:
        for seed in (5, 6):
            reset(batch, seed)
            assert play(MINI_GAME, batch) == 6
            assert batch.view.over[0]
            assert batch.view.score[0, 0] == 3  # the stand-in scores one every 16 game steps
    assert [line["seed"] for line in asked(game, "create_game")] == [5, 6]
    assert len(asked(game, "start")) == 1


def test_actions_reach_the_game(game: Path) -> None:
    with closing(MINI_GAME.tables(1)) as batch:
        reset(batch)
        actions = allocate_actions(MINI_GAME.spec, 1)
        assert batch.view.legal[0]["function"][0, 0, 7]  # select_army
        actions[0]["function"][0, 0] = 7
        actions[0]["select_add"][0, 0] = 1
        batch.step(actions)
    (line,) = asked(game, "action")
    assert "select_army" in line["text"]
    assert "selection_add: true" in line["text"]


def test_a_mini_game_may_start_again_without_being_made_anew(game: Path) -> None:
    source = PySC2(map_name="MoveToBeacon", fast_restart=True, **SMALL)
    with closing(source.tables(1)) as batch:
        for seed in (5, 6):
            reset(batch, seed)
            play(source, batch)
    assert len(asked(game, "create_game")) == len(asked(game, "restart_game")) == 1


def test_a_process_is_replaced_after_so_many_episodes(game: Path) -> None:
    source = PySC2(map_name="MoveToBeacon", episodes_per_process=2, **SMALL)
    with closing(source.tables(1)) as batch:
        for seed in range(3):
            reset(batch, seed)
            play(source, batch)
    assert len(asked(game, "start")) == 2


def test_a_crash_makes_the_episode_void_and_the_next_one_is_played(game: Path) -> None:
    change_plan(game, crash_at=20)
    with closing(MINI_GAME.tables(1)) as batch:
        reset(batch)
        assert play(MINI_GAME, batch) == 3
        assert batch.view.truncated[0]
        assert np.isnan(batch.view.score[0, 0])
        assert not batch.view.to_act.any()
        seen = {name: array.copy() for name, array in batch.view.observation[0].items()}
        assert all(np.isfinite(array).all() for array in seen.values())
        assert batch.lost_games == 1  # type: ignore[attr-defined]
        change_plan(game, ends_at=48)
        reset(batch, 2)
        assert play(MINI_GAME, batch) == 6
        assert batch.view.score[0, 0] == 3
    assert len(asked(game, "start")) == 2


def test_a_game_that_hangs_is_replaced_after_the_time_limit(game: Path) -> None:
    change_plan(game, hang_at=20)
    tables: Any = MINI_GAME.tables(1)
    with closing(tables) as batch:
        reset(batch)
        (controller,) = tables._tables[0].session._env._controllers
        assert controller._client._sock.gettimeout() == MINI_GAME.time_limit_s
        controller._client._sock.settimeout(0.5)  # nobody wants to wait for so long here
        assert play(MINI_GAME, batch) == 3
        assert np.isnan(batch.view.score[0, 0])
        assert running(game) == []


def test_a_game_that_does_not_start_is_explained(game: Path) -> None:
    change_plan(game, refuse_to_start=True)
    with (
        closing(MINI_GAME.tables(1)) as batch,
        pytest.raises(GameError, match=r"could not be started in 3 attempts[\s\S]*cannot open display"),
    ):
        reset(batch)


def test_no_game_installed_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SC2PATH", str(tmp_path / "nowhere"))
    with closing(MINI_GAME.tables(1)) as batch, pytest.raises(GameError, match=r"nowhere \(SC2PATH\)\. On Linux"):
        reset(batch)


def test_a_missing_map_and_an_unknown_version_are_explained(game: Path) -> None:
    (game / "Maps/mini_games/MoveToBeacon.SC2Map").unlink()
    with closing(MINI_GAME.tables(1)) as batch, pytest.raises(GameError, match="The map is at https://"):
        reset(batch)
    old = PySC2(map_name="MoveToBeacon", version="1.2.3", **SMALL)
    with closing(old.tables(1)) as batch, pytest.raises(GameError, match=r"Unknown game version: 1\.2\.3"):
        reset(batch)


def test_a_computer_opponent_is_asked_of_the_game(game: Path) -> None:
    source = PySC2(map_name="Simple64", opponent=Computer(difficulty="very_hard"), **SMALL)
    with closing(source.tables(1)) as batch:
        reset(batch)
        play(source, batch)
        assert batch.view.score[0].tolist() == [1.0]
    (line,) = asked(game, "create_game")
    assert line["computers"] == ["VeryHard"]


@pytest.mark.parametrize("winner", [1, 2])
def test_two_seats_swapped_against_a_built_in_bot_keep_their_process(game: Path, winner: int) -> None:
    change_plan(game, ends_at=48, result=winner)
    bot = MELEE.bots()["builtin_zerg_easy"]
    with closing(MELEE.tables(1)) as batch:
        for seat in (1, 0):
            reset(batch)
            actions = allocate_actions(MELEE.spec, 1)
            chosen = bot.act(batch, np.array([0]), np.array([seat]), np.random.default_rng(0))
            for head, value in chosen.items():
                actions[0][head][0, seat] = value[0]
            batch.step(actions)
            play(MELEE, batch)
            own = 1.0 if winner == 1 else -1.0  # the agent is the game's first player on either seat
            assert batch.view.score[0, 1 - seat] == own
            assert batch.view.score[0, seat] == -own
    assert len(asked(game, "start")) == 1
    assert [line["computers"] for line in asked(game, "create_game")] == [["Easy"]] * 2


def test_two_agents_have_a_process_each(game: Path) -> None:
    source = PySC2(map_name="Simple64", builtin_bots=False, **SMALL)
    with closing(source.tables(1)) as batch:
        reset(batch)
        play(source, batch)
        assert sorted(batch.view.score[0].tolist()) == [-1.0, 1.0]
        assert len(running(game)) == 2


PUBLISHED: dict[str, Any] = {"interface": "raw", "inputs": "published", "max_units": 16, "raw_resolution": 64, **SMALL}
MARINE, BARRACKS, SCV, ZERGLING = 48, 21, 45, 105
TRAIN_MARINE, STOP, STIM_MARINE = 560, 3665, 380


def a_base(**more: Any) -> dict[str, Any]:
    """A plan in which the player has a barracks, two SCVs, later a depot and a marine, and sees a zergling."""
    units = [
        {"tag": 1, "unit_type": BARRACKS, "alliance": 1, "at": (10, 10)},
        {"tag": 2, "unit_type": SCV, "alliance": 1, "at": (12, 10)},
        {"tag": 3, "unit_type": SCV, "alliance": 1, "at": (13, 10)},
        {"tag": 4, "unit_type": ZERGLING, "alliance": 4, "at": (40, 40), "attack": 1},
        {"tag": 5, "unit_type": 19, "alliance": 1, "at": (32, 48), "since": 12},
        {"tag": 6, "unit_type": MARINE, "alliance": 1, "at": (11, 10), "since": 20},
    ]
    abilities = {BARRACKS: [TRAIN_MARINE], SCV: [STOP], MARINE: [STIM_MARINE]}
    return {"units": units, "abilities": {str(kind): found for kind, found in abilities.items()}, **more}


def test_functions_are_those_that_the_units_of_a_seat_can_perform(game: Path) -> None:
    change_plan(game, ends_at=48, **a_base())
    source = PySC2(map_name="Simple64", opponent=Computer(), **PUBLISHED)
    names = [function.name for function in FunctionCodec(source).functions]

    def legal() -> set[str]:
        return {names[place] for place in batch.view.legal[0]["function"][0, 0].nonzero()[0]}

    with closing(source.tables(1)) as batch:
        reset(batch)
        always = {"no_op", "raw_move_camera"}
        assert legal() == {*always, "Train_Marine_quick", "Stop_quick"}
        np.testing.assert_array_equal(batch.view.observation[0]["available_actions"], batch.view.legal[0]["function"])
        actions = allocate_actions(source.spec, 1)
        for _ in range(3):
            batch.step(actions)
        # The marine's own ability stands for the general one, which is what may be chosen.
        assert legal() == {*always, "Train_Marine_quick", "Stop_quick", "Effect_Stim_quick"}
        assert batch.view.observation[0]["enemy_upgrades"][0, 0].sum() == 1
    assert asked(game, "query")[0]["tags"] == [1, 2]  # one unit of each kind is asked for


def test_rewards_for_following_a_strategy_in_the_game(game: Path, tmp_path: Path) -> None:
    change_plan(game, ends_at=48, **a_base(upgrades=[15]))
    source = PySC2(map_name="Simple64", opponent=Computer(), **PUBLISHED)
    depot, marine = (UNIT_TYPES.index(kind) + 1 for kind in (19, MARINE))
    order = np.full((1, BUILD_ORDER), -1, np.int16)
    order[0, :2] = depot, marine
    place = np.full_like(order, -1)
    place[0, :2] = (64 - 48) * 2 * 128 + 32 * 2, (64 - 10) * 2 * 128 + 11 * 2 + 3
    built = np.zeros((1, NUM_FACTS), np.bool_)
    built[0, [depot, marine, -1]] = True
    np.savez(tmp_path / "z.npz", build_order=order, built=built, build_place=place)
    wrapped = WithStrategies(
        game=source,
        strategies=str(tmp_path / "z.npz"),
        types=NUM_TYPES,
        groups=source.strategy_groups,
        separate=True,
        shown=1.0,
        active=1.0,
    )
    assert wrapped.spec.kinds[0].rewards == ("build_order", "built_units", "effects", "upgrades")
    with closing(wrapped.tables(1)) as batch:
        reset(batch)
        assert batch.view.observation[0]["z_build_order_length"][0, 0] == 2
        actions = allocate_actions(wrapped.spec, 1)
        gained = []
        for _ in range(3):
            batch.step(actions)
            gained.append(batch.view.rewards[0][0, 0].tolist())
    built_units = 1 / NUM_TYPES
    # The depot stands two steps later and the marine three, three cells from its place.
    np.testing.assert_allclose([row[1] for row in gained], [0, built_units, built_units], atol=1e-6)
    misplaced = -0.8 * 3**2 / 5**2 / BUILD_ORDER
    np.testing.assert_allclose([row[0] for row in gained], [0, 0, misplaced], atol=1e-6)
    assert all(row[2] == 0 for row in gained)


PLAYS_ON = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has it ignored
import numpy as np
from ludus.games.adapters.pysc2 import PySC2
batch = PySC2(map_name="MoveToBeacon", screen=16, minimap=16, time_limit_s=30).tables(2)
batch.reset(np.arange(2), np.arange(2, dtype=np.uint64))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_games_end_with_the_worker_however_it_ends(game: Path, how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PLAYS_ON], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"started\n"
            assert len(running(game)) == 2
            worker.send_signal(how)
            worker.wait(30)
        finally:
            worker.kill()
    wait_until(lambda: not running(game))
