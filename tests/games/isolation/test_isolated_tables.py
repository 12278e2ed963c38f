"""A game in processes of its own plays as it does here, and whatever it does there costs its tables only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from isolated_play import HOSTILE, descendants, first_legal, hostile, is_alive, play, reset, seeds, wait_until_gone
from processes import ctrl_c

from ludus.data.trees import put
from ludus.games.bots import HostedBot, RandomBot
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import HasPicture, HasStrategy, allocate_actions, lost_tables
from ludus.games.isolation import isolated as isolated_batch
from ludus.games.isolation.isolated import Isolated, Isolation, isolate
from ludus.games.isolation.protocol import SharedTables
from ludus.games.lift import Lifted
from ludus.games.seat_rows import GameError


@pytest.mark.parametrize("address", ["kuhn", "connect_four", "hills"])
def test_episodes_are_those_of_the_game_itself(address: str) -> None:
    here, there = resolve(address).tables(5), Isolated(address, processes=2).tables(5)
    try:
        for batch in (here, there):
            reset(batch, [0, 1, 2, 3, 4])
        for step in range(30):
            actions = first_legal(here)
            here.step(actions)
            there.step(actions)
            ended = np.flatnonzero(here.view.over | here.view.truncated)
            for batch in (here, there):
                batch.reset(ended, seeds(len(ended), step))
            for name, array in here.view.named().items():
                np.testing.assert_array_equal(there.view.named()[name], array, err_msg=name)
    finally:
        there.close()


def test_the_game_is_described_by_its_process() -> None:
    game, own = Isolated("connect_four"), ConnectFour()
    assert game.spec == own.spec
    assert list(game.bots()) == list(own.bots())
    assert game.bots()["rules"] == HostedBot("rules")
    assert game.tree() is None


def test_pictures_and_what_seats_build_are_those_of_the_game() -> None:
    here, there = resolve("connect_four").tables(2), Isolated("connect_four").tables(2)
    try:
        assert isinstance(here, HasPicture)
        assert isinstance(there, HasPicture)
        assert not isinstance(there, HasStrategy)
        for batch in (here, there):
            reset(batch, [0, 1])
            batch.step(first_legal(here))
        np.testing.assert_array_equal(there.render(1), here.render(1))
    finally:
        there.close()


def test_what_seats_build_is_shown() -> None:
    here, there = resolve("skirmish").tables(3), Isolated("skirmish", processes=2).tables(3)
    try:
        assert isinstance(here, HasStrategy)
        assert isinstance(there, HasStrategy)
        for batch in (here, there):
            reset(batch, [0, 1, 2])
        actions, rng = allocate_actions(here.spec, 3), np.random.default_rng(0)
        for _ in range(20):
            tables, seats = np.nonzero(here.view.to_act)
            put(actions[0], (tables, seats), RandomBot().act(here, tables, seats, rng))
            here.step(actions)
            there.step(actions)
        assert (here.strategy.build_order >= 0).any()
        np.testing.assert_array_equal(there.strategy.build_order, here.strategy.build_order)
        np.testing.assert_array_equal(there.strategy.built, here.strategy.built)
    finally:
        there.close()


def test_places_of_a_build_order_are_shared_where_a_game_reports_them() -> None:
    whole = SharedTables.allocate(resolve("kuhn").spec, 4, (3, 2, True))
    part = whole.part(1, 3)
    assert part.strategy is not None
    assert part.strategy.build_place is not None
    assert part.strategy.sizes == (3, 2, True)
    part.strategy.build_place[:] = 7
    assert whole.strategy is not None
    assert whole.strategy.build_place is not None
    assert whole.strategy.build_place[:, 0, 0].tolist() == [0, 7, 7, 0]
    without = SharedTables.allocate(resolve("kuhn").spec, 4, (3, 2, False)).part(1, 3)
    assert without.strategy is not None
    assert without.strategy.sizes == (3, 2, False)


def test_isolated_games_keep_their_promises() -> None:
    report = check_game(Isolated("kuhn", processes=2), episodes=16, tables=3, bot_seconds=0.2)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("act", "after", "seen"),
    [
        ("segfault", 3, "the game crashed: SIGSEGV (File"),
        ("segfault", 12, "the game crashed: SIGSEGV (File"),
        ("raise", 3, "the game raised: OSError: no licence for this game"),
    ],
)
def test_a_check_tells_of_a_crash_once_and_of_nothing_that_came_with_it(
    tmp_path: Path, act: str, after: int, seen: str
) -> None:
    game = hostile(act, tmp_path, after=after, times=100)
    report = check_game(game, episodes=16, tables=4, bot_seconds=0.2)
    (failure,) = report.failures
    assert (failure.promise, failure.where) == ("calls", f"random play, table {failure.where[-1]}")
    assert failure.seen.startswith(seen)
    assert failure.step > 0


LOSSES = {
    "raise": "raised: OSError: no licence for this game (hostile_games.py, line",
    "segfault": "crashed: SIGSEGV (File",
    "exit": "crashed: exit code 3 (the game server said good-bye)",
    "hang": "hung: no answer to step within 0.5 s",
    "hang deeply": "hung: no answer to step within 0.5 s",
    "show NaN": "garbage: ",
    "pay infinity": "garbage: reward of table 0 is [inf",
    "forbid all": "garbage: seat ",
    "end twice": "garbage: table 1 is both over and truncated",
    "let nobody act": "garbage: table 1 has not ended, but nobody is to act",
}


@pytest.mark.parametrize("act", LOSSES)
def test_what_a_game_does_costs_the_tables_of_its_process(act: str, tmp_path: Path) -> None:
    before = descendants()
    game = hostile(act, tmp_path, processes=2, step_seconds=0.5 if act.startswith("hang") else 10.0)
    batch = game.tables(5)
    try:
        reset(batch, [0, 1, 2, 3, 4])
        first = descendants() - before
        play(batch, 20)
        lost = dict(lost_tables(batch))
        # Both processes count their steps alike; whoever comes first leaves the mark.
        assert [*lost] in ([0, 1], [2, 3, 4])
        [reason] = set(lost.values())
        assert reason.startswith(LOSSES[act])
        tables = [*lost]
        assert not batch.view.to_act[tables].any()
        assert not (batch.view.over | batch.view.truncated)[tables].any()
        assert not batch.view.reward[tables].any()
        others = np.setdiff1d(np.arange(5), tables)
        assert (batch.view.to_act.any(1) | batch.view.over)[others].all()
        reset(batch, tables, first_seed=7)
        assert lost_tables(batch) == {}
        assert batch.view.to_act[tables].any(1).all()
        play(batch, 10)
        assert lost_tables(batch) == {}
        assert len(descendants() - before) == len(first)
    finally:
        batch.close()
    assert descendants() == before


def test_tables_that_were_not_reset_stay_lost(tmp_path: Path) -> None:
    batch = hostile("exit", tmp_path).tables(3)
    try:
        reset(batch, [0, 1, 2])
        play(batch, 20)
        assert [*lost_tables(batch)] == [0, 1, 2]
        reset(batch, [1], first_seed=5)
        assert [*lost_tables(batch)] == [0, 2]
        play(batch, 1)
        assert not batch.view.to_act[[0, 2]].any()
        assert batch.view.to_act[1].any()
    finally:
        batch.close()


def test_a_process_that_takes_too_much_memory_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_batch, "_LOOK_EVERY_S", 0.0)
    batch = hostile("leak", tmp_path, memory_mb=300).tables(2)
    try:
        reset(batch, [0, 1])
        play(batch, 20)
        assert lost_tables(batch)[0].startswith("leaked: it takes ")
        reset(batch, [0, 1])
        play(batch, 10)
        assert lost_tables(batch) == {}
    finally:
        batch.close()


def test_a_game_that_is_lost_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_batch, "_BACK_OFF_S", 0.0)
    monkeypatch.setattr(isolated_batch, "MOST_LOSSES", 3)
    batch = hostile("exit", tmp_path, times=100, after=1).tables(1)
    try:
        reset(batch, [0])
        for _ in range(3):
            play(batch, 1)
            assert lost_tables(batch)
            if len([*tmp_path.glob("done-*")]) < 3:
                reset(batch, [0])
        with pytest.raises(GameError, match="was lost 3 times without finishing an episode, at last: crashed"):
            reset(batch, [0])
    finally:
        batch.close()


def test_a_game_that_does_not_start_says_why(tmp_path: Path) -> None:
    before = descendants()
    with pytest.raises(GameError, match="no licence for this game"):
        hostile("raise", tmp_path, at_start=True).tables(2)
    with pytest.raises(GameError, match=r"cannot be started .*no game 'kuhm'; did you mean 'kuhn'"):
        _ = Isolated("kuhm").spec
    with pytest.raises(GameError, match=r"within 0\.01 s"):
        _ = Isolated("kuhn", start_seconds=0.01).spec
    assert descendants() == before


def test_a_bot_that_fails_costs_the_tables_it_plays_at(tmp_path: Path) -> None:
    game = hostile("raise", tmp_path, times=0, processes=2)
    batch = game.tables(4)
    try:
        reset(batch, [0, 1, 2, 3])
        bot, rng = game.bots()["hostile"], np.random.default_rng(0)
        bot.act(batch, np.array([1]), np.array([0]), rng)
        assert [*lost_tables(batch)] == [0, 1]
        assert lost_tables(batch)[1].startswith("raised: RuntimeError: this bot has lost its temper")
    finally:
        batch.close()


def test_hosted_bots_choose_by_the_seed() -> None:
    batch = Isolated("kuhn", processes=2).tables(6)
    try:
        reset(batch, [0, 1, 2, 3, 4, 5])
        where = (np.arange(6), np.zeros(6, np.int64))
        assert isinstance(batch, isolated_batch.IsolatedBatch)
        [head] = batch.spec.kinds[0].action.heads
        drawn = [batch.bot_act("random", *where, seed)[head].tolist() for seed in (1, 1, 2, 3, 4)]
        assert drawn[0] == drawn[1]
        assert len({*map(tuple, drawn)}) > 1
    finally:
        batch.close()


def test_what_a_game_has_started_ends_with_it(tmp_path: Path) -> None:
    batch = hostile("start a daemon", tmp_path).tables(1)
    try:
        reset(batch, [0])
        play(batch, 8)
        daemon = int((tmp_path / "daemon").read_text())
        assert is_alive(daemon)
    finally:
        batch.close()
    wait_until_gone({daemon})


def test_nothing_is_left_behind_by_a_trainer_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from isolated_play import hostile, play, reset\n"
        "batch = hostile('start a daemon', Path(sys.argv[2]), processes=2).tables(2)\n"
        "reset(batch, [0, 1]); play(batch, 8)\n"
        "print('playing', flush=True); input()"
    )
    tests = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", script, tests, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"playing\n"
        below = descendants(trainer.pid)
        assert len(below) >= 5  # two guards, two hosts, a daemon
        assert int((tmp_path / "daemon").read_text()) in below
        os.kill(trainer.pid, signal.SIGKILL)
    wait_until_gone(below)


def test_what_a_game_prints_is_kept_where_it_is_wanted(tmp_path: Path) -> None:
    batch = hostile("exit", tmp_path, logs=str(tmp_path / "logs")).tables(1)
    try:
        reset(batch, [0])
        play(batch, 8)
    finally:
        batch.close()
    [log] = (tmp_path / "logs").iterdir()
    assert "good-bye" in log.read_text()


def test_a_source_is_isolated_by_its_address() -> None:
    made = isolate(Kuhn(), Isolation(processes=3))
    assert made == Isolated("ludus.games.builtin.kuhn:Kuhn", {"seats": 2, "critic_state": False}, processes=3)
    assert isolate(made, Isolation(step_seconds=5.0)) == Isolated(
        "ludus.games.builtin.kuhn:Kuhn", {"seats": 2, "critic_state": False}, step_seconds=5.0
    )
    assert made.spec == Kuhn().spec
    assert HOSTILE.endswith("hostile_games.py:Hostile")


def test_what_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be isolated: its 'extra_bots'"):
        isolate(Lifted(_Silly, extra_bots={"one": HostedBot("one")}), Isolation())


class _Silly:
    """Never played."""

    spec = Kuhn().spec


@pytest.mark.parametrize(("setting", "value"), [("processes", 0), ("step_seconds", 0.0), ("memory_mb", -1.0)])
def test_limits_are_checked(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"Isolation\.{setting} must be .* got {value}"):
        Isolation(**{setting: value})


def test_a_late_answer_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    batch = hostile("wait", tmp_path, after=2).tables(2)
    try:
        reset(batch, [0, 1])
        with ctrl_c(0.3):
            play(batch, 3)
        assert lost_tables(batch)[0].startswith("interrupted: nobody waited for its answer to")
        reset(batch, [0, 1])
        assert lost_tables(batch) == {}
        play(batch, 3)
        assert lost_tables(batch) == {}
    finally:
        batch.close()


def test_an_answer_that_was_read_in_part_is_not_taken_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = hostile("wait", tmp_path, after=100).tables(2)
    try:
        reset(batch, [0, 1])
        with monkeypatch.context() as patch:
            patch.setattr("ludus.games.isolation.protocol.os.read", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                play(batch, 1)
        assert lost_tables(batch)[0].startswith("interrupted: nobody waited for its answer to")
        reset(batch, [0, 1])
        play(batch, 3)
        assert lost_tables(batch) == {}
    finally:
        batch.close()


def _interrupted(*_: object) -> bytes:
    raise KeyboardInterrupt
