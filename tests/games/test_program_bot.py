"""Programs as bots: what they are told, what they may answer, and what becomes of one that fails."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import ctrl_c, is_gone, wait_until

from ludus.data.addresses import load_address
from ludus.data.specs import spec_from_json
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.check import check_game
from ludus.games.game import GameBatch, allocate_actions
from ludus.games.outside_bots import (
    MOST_LOSSES,
    ProgramBot,
    WithBots,
    find_bot,
    fixed_addresses,
    named_address,
    with_bots,
)
from ludus.games.program import CountedTables, ProgramLost
from ludus.system.text import LONGEST_REASON

EXAMPLES = Path(__file__).parents[2] / "examples" / "bots"

HEAD = """
import json, os, subprocess, sys, time
def say(answer): print(json.dumps(answer), flush=True)
hello = json.loads(sys.stdin.readline())
"""
LOOP = """
say({"protocol": 1})
for line in sys.stdin:
    request = json.loads(line)
"""
FIRST = (
    LOOP
    + """
    say({"id": request["id"], "actions": [row["legal"]["move"][0] for row in request["rows"]]})
"""
)


def written(folder: Path, code: str) -> str:
    """The address of a program with this code."""
    file = folder / "bot.py"
    file.write_text(HEAD + code)
    return f"program:{file}"


def playing(address: str, num_tables: int = 2) -> tuple[ProgramBot, CountedTables]:
    source = WithBots(TicTacToe(), {"mine": address})
    tables = source.tables(num_tables)
    tables.reset(np.arange(num_tables), np.arange(num_tables).astype(np.uint64))
    bot = source.bots()["mine"]
    assert isinstance(bot, ProgramBot)
    assert isinstance(tables, CountedTables)
    return bot, tables


def act(bot: ProgramBot, tables: GameBatch, seat: int = 0, rows: int = 2) -> list[int]:
    chosen = bot.act(tables, np.arange(rows), np.full(rows, seat), np.random.default_rng(0))
    moves: list[int] = chosen["move"].tolist()
    return moves


def step(tables: CountedTables, *moves: int) -> None:
    actions = allocate_actions(tables.spec, tables.num_tables)
    for table, move in enumerate(moves):
        actions[0]["move"][table] = move
    tables.step(actions)


def lost(bot: ProgramBot, tables: CountedTables) -> str:
    """Why the tables are lost after the bot was asked to act."""
    act(bot, tables)
    assert set(tables.lost) == {0, 1}
    return tables.lost[0]


@pytest.fixture
def told(tmp_path: Path) -> list[dict[str, Any]]:
    """What a program that takes the first legal move was told over an episode and the start of another."""
    log = tmp_path / "told"
    bot, tables = playing(
        written(
            tmp_path,
            f"log = open({str(log)!r}, 'w', buffering=1)\nlog.write(json.dumps(hello) + '\\n')\n"
            + FIRST.replace("    say", "    log.write(line)\n    say"),
        )
    )
    assert act(bot, tables) == [0, 0]
    step(tables, 0, 0)
    step(tables, 3, 3)
    assert act(bot, tables) == [1, 1]
    step(tables, 1, 1)
    step(tables, 4, 4)
    step(tables, 2, 2)  # three in a row: seat 0 wins
    assert tables.view.over.all()
    tables.reset(np.array([1]), np.array([7], np.uint64))
    chosen = bot.act(tables, np.array([1]), np.array([0]), np.random.default_rng(0))
    assert chosen["move"].tolist() == [0]
    bot.close()
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_program_is_told_the_game_and_what_its_seats_see(told: list[dict[str, Any]]) -> None:
    hello, first, second, _ = told
    assert (hello["type"], hello["protocol"], hello["name"]) == ("hello", 1, "mine")
    assert spec_from_json(hello["game"]) == TicTacToe().spec
    assert (first["type"], first["id"], first["kind"]) == ("act", 1, "player")
    assert [(row["table"], row["seat"], row["new"]) for row in first["rows"]] == [(0, 0, True), (1, 0, True)]
    assert first["rows"][0]["observation"] == {"board": [0.0] * 18}
    assert second["rows"][1]["legal"] == {"move": [1, 2, 4, 5, 6, 7, 8]}
    assert second["rows"][0]["observation"]["board"][0] == 1.0
    assert [row["new"] for row in second["rows"]] == [False, False]
    assert 0 <= first["seed"] < 2**53


def test_a_program_is_told_of_ends_and_new_episodes(told: list[dict[str, Any]]) -> None:
    assert told[1]["ended"] == told[2]["ended"] == []
    assert told[3]["ended"] == [
        {"table": 0, "seat": 0, "score": [1.0, -1.0]},
        {"table": 1, "seat": 0, "score": [1.0, -1.0]},
    ]
    assert [row["new"] for row in told[3]["rows"]] == [True]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (LOOP + "    sys.exit('out of ideas')", "has ended with exit code 1; its last words: out of ideas"),
        (LOOP + "    print('thinking...', flush=True)", "answered 'thinking...', which is no JSON"),
        (LOOP + "    say([1])", "which is no JSON object"),
        (LOOP + "    say({'error': 'no such position'})", "says: no such position"),
        (LOOP + "    say({'id': 99, 'actions': [0, 0]})", "answered request 99 when asked request 1"),
        (LOOP + "    say({'id': 1, 'actions': [0]})", "answered 1 actions for 2 rows"),
        (LOOP + "    say({'id': 1, 'actions': [9, 0]})", "table 0, seat 0: head 'move' takes 9"),
        (LOOP + "    say({'id': 1, 'actions': [0, 'x']})", "answered 'x' for head 'move', which takes a number"),
        (LOOP + "    say({'id': 1, 'actions': [{'go': 1}, 0]})", "heads are move"),
        (LOOP + "    os.close(0); os.close(1); time.sleep(60)", "closed its standard input or output"),
    ],
)
def test_a_program_that_fails_loses_its_tables(tmp_path: Path, code: str, reason: str) -> None:
    bot, tables = playing(written(tmp_path, code))
    why = lost(bot, tables)
    assert why.startswith("bot 'mine' ")
    assert reason in why
    step(tables, 0, 0)
    assert not tables.view.to_act.any()
    assert not (tables.view.over | tables.view.truncated).any()
    tables.reset(np.array([1]), np.array([3], np.uint64))
    assert set(tables.lost) == {0}
    assert tables.view.to_act.tolist() == [[False, False], [True, False]]


def test_a_reason_of_any_length_is_kept_short(tmp_path: Path) -> None:
    bot, tables = playing(written(tmp_path, LOOP + "    say({'error': 'no ' * 10**6 + 'licence'})"))
    why = lost(bot, tables)
    assert len(why) <= LONGEST_REASON + 100
    assert why.startswith("bot 'mine' says: no no")
    assert why.endswith("no licence")


def test_a_program_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    code = LOOP.replace("1}", "1, 'time_limit_s': 0.2}") + "    time.sleep(60)"
    bot, tables = playing(written(tmp_path, code))
    assert "gave no answer within 0.2 s" in lost(bot, tables)


def test_a_lost_program_is_started_again(tmp_path: Path) -> None:
    mark = tmp_path / "was_here"
    bot, tables = playing(
        written(
            tmp_path,
            LOOP.replace("for", f"again = os.path.exists({str(mark)!r})\nopen({str(mark)!r}, 'w')\nfor", 1)
            + "    again or sys.exit(3)\n"
            + FIRST[len(LOOP) :],
        )
    )
    assert "exit code 3" in lost(bot, tables)
    step(tables, 0, 0)
    tables.reset(np.arange(2), np.arange(2).astype(np.uint64))
    assert act(bot, tables) == [0, 0]
    assert not tables.lost
    bot.close()


def test_a_late_answer_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    """Ctrl-C in a notebook, and then the loop goes on with the same bot."""
    slow = (
        LOOP
        + """
    time.sleep(1.0 if request["id"] == 2 else 0.0)
    say({"id": request["id"], "actions": [row["legal"]["move"][-1] for row in request["rows"]]})
"""
    )
    bot, tables = playing(written(tmp_path, slow))
    assert act(bot, tables) == [8, 8]
    with ctrl_c(0.3):
        act(bot, tables)
    assert lost(bot, tables).startswith("bot 'mine' was asked before it had answered")
    tables.reset(np.arange(2), np.arange(2, dtype=np.uint64))
    assert act(bot, tables) == [8, 8]
    assert not tables.lost
    bot.close()


def test_a_program_that_always_fails_is_an_error(tmp_path: Path) -> None:
    bot, tables = playing(written(tmp_path, "sys.exit('no licence')"))
    for _ in range(MOST_LOSSES - 1):
        act(bot, tables)
        step(tables, 0, 0)
        tables.reset(np.arange(2), np.arange(2).astype(np.uint64))
    with pytest.raises(ProgramLost, match=r"bot 'mine' has ended with exit code 1; .*no licence"):
        act(bot, tables)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("say({'protocol': 7})", "speaks protocol 7, and this is protocol 1"),
        ("say({'protocol': 1, 'time_limit_s': 'long'})", "time_limit_s of 'long'"),
        ("say({'protocol': 1, 'time_limit_s': 1e300})", "from 0 to 3600"),
    ],
)
def test_a_program_that_can_never_play_is_an_error_at_once(tmp_path: Path, code: str, message: str) -> None:
    bot, tables = playing(written(tmp_path, code))
    with pytest.raises(ProgramLost, match=message):
        act(bot, tables)


def test_at_tables_that_cannot_be_lost_it_is_an_error_at_once(tmp_path: Path) -> None:
    bot, tables = playing(written(tmp_path, LOOP + "    sys.exit(4)"))
    with pytest.raises(ProgramLost, match="exit code 4"):
        act(bot, tables.game)


def test_a_command_that_is_not_there_is_an_error_at_once() -> None:
    bot, tables = playing("program:no_such_program_anywhere")
    with pytest.raises(ProgramLost, match="no_such_program_anywhere"):
        act(bot, tables)


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_nothing_of_a_program_is_left_behind(tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids"
    child = "child = subprocess.Popen(['sleep', '300'], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)"
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if how == "closed" else ""
    bot, tables = playing(
        written(
            tmp_path, f"{stubborn}{child}\nopen({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n" + FIRST
        )
    )
    act(bot, tables)
    both = [int(pid) for pid in pids.read_text().split()]
    assert not any(map(is_gone, both))
    if how == "closed":
        bot.close()
    else:
        del bot
        gc.collect()
    wait_until(lambda: all(map(is_gone, both)), "the program and its child to end", 20)


def test_a_long_request_and_a_long_answer_do_not_block_each_other(tmp_path: Path) -> None:
    # Both are larger than a pipe, and the program writes much of its answer before it reads.
    code = LOOP.replace("1}", "1, 'padding': 'x' * 300_000}") + FIRST[len(LOOP) :]
    bot, tables = playing(written(tmp_path, code), num_tables=2_000)
    assert act(bot, tables, rows=2_000) == [0] * 2_000
    bot.close()


def test_what_only_a_critic_sees_is_not_told(tmp_path: Path) -> None:
    log = tmp_path / "told"
    code = f"log = open({str(log)!r}, 'w')\n" + LOOP + "    log.write(line)\n    log.flush()\n    sys.exit(0)\n"
    source = WithBots(Skirmish(), {"mine": written(tmp_path, code)})
    kind = source.spec.kinds[0]
    assert kind.observation.critic
    tables = source.tables(1)
    tables.reset(np.array([0]), np.array([1], np.uint64))
    source.bots()["mine"].act(tables, np.array([0]), np.array([0]), np.random.default_rng(0))
    (row,) = json.loads(log.read_text())["rows"]
    assert set(row["observation"]) == {name for name in kind.observation.arrays if "critic." not in name}


@pytest.mark.parametrize("file", ["centre.py", "mirror.js"])
def test_the_examples_play_legally(file: str, tmp_path: Path) -> None:
    if file.endswith(".js") and shutil.which("node") is None:
        pytest.skip("node is not installed")
    run_by = "node " if file.endswith(".js") else ""
    source = with_bots(TicTacToe(), {"mine": f"program:{run_by}{EXAMPLES / file}"})
    report = check_game(source, episodes=4, max_steps=50, bot_seconds=0.5)
    assert report.ok, str(report)


def test_counted_tables_keep_the_promises_of_the_game() -> None:
    report = check_game(WithBots(Kuhn(), {}), episodes=8, bot_seconds=0.1)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("main", None),
        ("main:0:12", None),
        ("main@best", None),
        ("bots/my_bots.py:Greedy", ("Greedy", "bots/my_bots.py:Greedy")),
        ("mine=my_bots.py:Greedy", ("mine", "my_bots.py:Greedy")),
        ("mine=package.module:Greedy", ("mine", "package.module:Greedy")),
        ("program:./my_bot.py --depth 3", ("my_bot", "program:./my_bot.py --depth 3")),
        ("fast=program:node b.js", ("fast", "program:node b.js")),
        ("program:./a b=1", ("a", "program:./a b=1")),
    ],
)
def test_bots_are_told_from_players(text: str, found: tuple[str, str] | None) -> None:
    assert named_address(text) == found


def test_addresses_are_fixed_when_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bot.py").touch()
    fixed = fixed_addresses({"a": "program:bot.py --depth 3", "b": "bot.py:Greedy", "c": "package.module:Bot"})
    assert fixed == {
        "a": f"program:{tmp_path / 'bot.py'} --depth 3",
        "b": f"{tmp_path / 'bot.py'}:Greedy",
        "c": "package.module:Bot",
    }


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("program:./missing.py", r"bots.mine: there is no file './missing.py'"),
        ("program:missing_program x", r"bots.mine: there is no program 'missing_program'"),
        ("program:", r"bots.mine: name a program after 'program:'"),
        ("program:'open", r"bots.mine: \"'open\" is no command: No closing quotation"),
    ],
)
def test_what_is_not_there_is_refused_when_a_run_begins(address: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fixed_addresses({"mine": address})


def test_a_file_that_may_not_be_executed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bot"
    file.touch()
    os.chmod(file, 0o600)
    with pytest.raises(ValueError, match="may not be executed"):
        fixed_addresses({"mine": f"program:{file}"})


def test_a_class_that_is_no_bot_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bots.py"
    file.write_text("class Greedy: ...\n")
    with pytest.raises(ValueError, match=r"bots.mine: .*which is no Bot: it has no method act"):
        find_bot("mine", f"{file}:Greedy")
    with pytest.raises(ValueError, match=r"bots.mine: .*has no 'Greedi'; did you mean 'Greedy'"):
        find_bot("mine", f"{file}:Greedi")


def test_a_bot_may_not_take_the_name_of_the_games_own() -> None:
    with pytest.raises(ValueError, match="tic_tac_toe has a bot 'random' of its own"):
        WithBots(TicTacToe(), {"random": "program:x"})


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    address = written(tmp_path, f"open({str(pids)!r}, 'w').write(str(os.getpid()))\n" + FIRST)
    code = f"""
import time
import numpy as np
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.outside_bots import find_bot
tables = TicTacToe().tables(1)
tables.reset(np.arange(1), np.arange(1, dtype=np.uint64))
bot = find_bot("mine", {address!r})
bot.act(tables, np.arange(1), np.arange(1), np.random.default_rng(0))
print("acted", flush=True)
time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"acted\n"
        program = int(pids.read_text())
        assert not is_gone(program)
        owner.kill()
    wait_until(lambda: is_gone(program), "the program to end", 20)


def test_the_class_of_the_example_plays_legally() -> None:
    experiment = load_address(f"{EXAMPLES.parent / 'my_bots.py'}:experiment")()
    assert {"blocker", "centre"} <= set(experiment.grouped_game.bots())
    own = WithBots(TicTacToe(), {"blocker": experiment.bots["blocker"]})
    report = check_game(own, episodes=1, max_steps=20, bot_seconds=0.2)
    assert report.ok, str(report)
