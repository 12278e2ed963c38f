"""`ludus record` and `ludus convert`, as a person uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from command_line import Ludus

from ludus.data.replay import Replay, decode_replay, encode_replay
from ludus.replays import conversion as replay_conversion
from ludus.replays.dataset import ReplayDataset
from ludus.store.files import locked

OWN_GAME = '''
from ludus.games.builtin.tic_tac_toe import TicTacToe


class Mine(TicTacToe):
    """Tic-tac-toe of somebody."""
'''

CHANCE = """
from dataclasses import dataclass

import numpy as np

from ludus.games.builtin.kuhn import Kuhn

dealt = []


@dataclass(frozen=True, kw_only=True)
class Chance(Kuhn):
    def tables(self, num_tables):
        tables = super().tables(num_tables)
        reset = tables.reset

        def shuffled(at, seeds):
            dealt.append(1)
            reset(at, seeds + np.uint64(len(dealt)))

        tables.reset = shuffled
        return tables
"""

OWN_REPLAYS = """
from dataclasses import replace

from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.replays.conversion import ReplayEpisodes


class Mine(TicTacToe):
    replay_suffix = ".replay"

    def replay_episodes(self, files, no_op):
        return Theirs(files, lambda replay: TicTacToe(), game="mine", source=TicTacToe(), no_op=no_op)


class Theirs(ReplayEpisodes):
    def decode(self, names, wanted):
        for number, one in enumerate(super().decode(names, wanted)):
            yield replace(one, left_out={"nobody knows it": 2, f"of replay {number}": 1})
"""


def replays(folder: str) -> list[Replay]:
    return [decode_replay(path.read_bytes()) for path in sorted(Path(folder).glob("*.replay"))]


def last(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_record_swaps_seats_and_goes_on(ludus: Ludus) -> None:
    record = ("record", "tic_tac_toe", "random", "rules", "--out", "games", "--tables", "3")
    code, out, _ = ludus(*record, "-n", "6")
    assert code == 0
    assert "6 replays written to games" in out
    assert "next:  ludus convert games" in out
    seated = Counter(tuple(seat.name for seat in one.seats) for one in replays("games"))
    assert seated == {("random", "rules"): 3, ("rules", "random"): 3}
    code, out, _ = ludus(*record, "-n", "6")
    assert code == 0
    assert "0 replays written to games (6 were there before)" in out
    code, out, _ = ludus(*record, "-n", "15", "--json")
    assert last(out)["pairs"] == [{"players": ["random", "rules"], "replays": 15}]
    all_of = replays("games")
    assert len({one.seed for one in all_of}) == len(all_of) == 15
    assert {one.game for one in all_of} == {"tic_tac_toe"}


def test_pairs(ludus: Ludus) -> None:
    ludus("record", "rock_paper_scissors", "rock", "paper", "scissors", "-n", "3", "--out", "some", "--quiet")
    assert Counter(frozenset(one.matchup) for one in replays("some")) == {
        frozenset(("rock", "paper")): 3,
        frozenset(("rock", "scissors")): 3,
    }
    code, out, err = ludus(
        "record", "rock_paper_scissors", "rock", "paper", "scissors", "-n", "2", "--out", "all",
        "--all-pairs", "--quiet",
    )  # fmt: skip
    assert (code, out, err) == (0, "", "")
    assert len({frozenset(one.matchup) for one in replays("all")}) == 3
    for one in replays("all"):
        beats = {("paper", "rock"), ("rock", "scissors"), ("scissors", "paper")}
        assert one.outcome(0) == ("win" if one.matchup in beats else "loss")


def test_a_game_of_one_seat_with_an_option(ludus: Ludus) -> None:
    code, _, _ = ludus("record", "beacon", "oracle", "random", "--set", "decisions=12", "-n", "2", "--out", "b")
    assert code == 0
    assert [one.options for one in replays("b")] == [{"decisions": 12}] * 4
    code, out, _ = ludus("convert", "b", "--out", "set")
    assert code == 0
    dataset = ReplayDataset.open("set")
    assert dataset.num_episodes == 4
    assert dataset.num_decisions < (dataset.episodes.length == 12).sum() * 12 == 48
    assert f"no-ops (order = 0) left out: {48 - dataset.num_decisions}" in out
    ludus("convert", "b", "--out", "whole", "--keep-no-ops", "--quiet")
    assert ReplayDataset.open("whole").num_decisions == 48
    code, _, err = ludus("convert", "b", "--out", "set", "--no-op", "2")
    assert code == 2
    assert "head 'order' has the values 0 to 1, got 2" in err


def test_convert_tells_which_actions_have_no_place(ludus: Ludus) -> None:
    """As of StarCraft II, whose players can do more than its interface for programs has words for."""
    Path("mine.py").write_text(OWN_REPLAYS)
    ludus("record", "tic_tac_toe", "random", "rules", "-n", "12", "--out", "games", "--quiet")
    first, *others = sorted(str(path) for path in Path("games").iterdir())
    ludus("convert", first, "--game", "mine.py:Mine", "--out", "all", "--quiet")
    code, out, _ = ludus("convert", first, *others, "--game", "mine.py:Mine", "--out", "all")
    assert code == 0
    assert "left out: 24 actions (nobody knows it)" in out, "those of the call before too"
    assert "left out: 2 actions (of replay 0)" in out
    assert "left out: 2 actions for 2 more reasons: see all/replays.jsonl" in out
    _, out, _ = ludus("convert", "games", "--game", "mine.py:Mine", "--out", "all", "--json")
    assert last(out)["left_out"]["nobody knows it"] == 24


def test_convert_chooses_counts_and_goes_on(ludus: Ludus) -> None:
    ludus("record", "tic_tac_toe", "random", "rules", "-n", "12", "--out", "games", "--quiet")
    code, out, _ = ludus("convert", "games", "--out", "all")
    assert code == 0
    assert "24 episodes (seats) of 12 replays" in out
    assert "no-ops" not in out, "with a single head, every option does something"
    dataset = ReplayDataset.open("all")
    assert dataset.game == "tic_tac_toe"
    names = [dataset.names[player] for player in dataset.episodes.player]
    assert Counter(names) == {"random": 12, "rules": 12}

    code, out, _ = ludus("convert", "games", "--out", "wins", "--player", "rules", "--outcome", "win", "--json")
    facts = last(out)
    wins = sum(dataset.episodes.outcome[[name == "rules" for name in names]] > 0)
    assert facts["episodes"] == wins
    assert facts["dropped"] == {"player": 12, "outcome": 12 - wins}
    code, _, err = ludus("convert", "games", "--out", "wins")
    assert code == 1
    assert "wins was begun with other settings: player was ['rules'] and is []" in err

    ludus("convert", *(str(path) for path in sorted(Path("games").iterdir())[:5]), "--out", "parts", "--quiet")
    ludus("convert", "games", "--out", "parts", "--quiet")
    assert contents("parts") == contents("all")
    for one in dataset.windows(np.random.default_rng(0), 4, 3).valid.T:
        assert one.any()


def test_what_is_damaged_is_skipped_and_named(ludus: Ludus) -> None:
    ludus("record", "tic_tac_toe", "random", "rules", "-n", "4", "--out", "games", "--quiet")
    files = sorted(Path("games").iterdir())
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-5])
    changed = decode_replay(files[2].read_bytes())
    files[2].write_bytes(encode_replay(type(changed)(**{
        name: getattr(changed, name) for name in changed.__struct_fields__ if name not in ("seen", "version")
    }, seen=1, version="older")))  # fmt: skip
    code, out, err = ludus("convert", "games", "--out", "set")
    assert code == 0
    assert f"skipped games/{files[1].name}: cut short" in err
    assert f"skipped games/{files[2].name}: does not play as recorded" in err
    assert "recorded with version older, this is code-" in err
    assert "4 episodes (seats) of 2 replays" in out
    assert "skipped: 2 replays" in out
    files[1].write_bytes(whole)
    assert "skipped: 2 replays" in ludus("convert", "games", "--out", "set")[1]
    _, out, err = ludus("convert", "games", "--out", "set", "--retry-skipped")
    assert "6 episodes (seats) of 3 replays" in out
    assert "skipped: 1 replays" in out
    assert files[1].name not in err
    assert ReplayDataset.open(Path("set")).episodes.replay.max() == 4
    for file in files:
        file.write_bytes(b"nothing")
    code, _, err = ludus("convert", "games", "--out", "none")
    assert code == 2
    assert "none of the 4 replays can be used" in err
    code, _, err = ludus("convert", "games", "--out", "set", "--outcome", "win")
    assert code == 2


def test_nothing_left_is_a_failure(ludus: Ludus) -> None:
    ludus("record", "tic_tac_toe", "random", "rules", "-n", "2", "--out", "games", "--quiet")
    code, out, err = ludus("convert", "games", "--out", "set", "--min-length", "50")
    assert code == 1
    assert "nothing is left of 2 replays" in err
    assert "left out by min length: 4 seats" in out
    code, _, err = ludus("convert", "games", "--out", "other", "--map", "lost_temple")
    assert code == 2
    assert "unknown map 'lost_temple'" in err


def test_a_disk_that_will_not_do_is_said_early(ludus: Ludus, monkeypatch: pytest.MonkeyPatch) -> None:
    ludus("record", "tic_tac_toe", "random", "rules", "-n", "2", "--out", "games", "--quiet")
    monkeypatch.setattr(replay_conversion, "SPARE_BYTES", 1 << 60)
    code, _, err = ludus("convert", "games", "--out", "set")
    assert code == 1
    assert "by the replays so far, the dataset needs about" in err
    for number in range(4):
        Path(f"games/a{number}.replay").write_bytes(b"")
    monkeypatch.setattr(replay_conversion, "SAMPLE_REPLAYS", 1)
    monkeypatch.setattr(replay_conversion, "_require_room", lambda writer, estimate: estimates.append(estimate))
    estimates: list[int] = []
    ludus("convert", "games", "--out", "other", "--quiet")
    assert estimates[0] > 500, "what was skipped says nothing about the others"


def test_players_of_a_run(ludus: Ludus) -> None:
    small = {"runtime": "serial", "budget": "2000", "actor.num_tables": "16", "actor.matches": "1",
             "learner.batch_size": "500", "model.hidden": "8", "evaluation.episodes": "8",
             "league.roles.main.promotion.every": "1000"}  # fmt: skip
    settings = [part for name, value in small.items() for part in ("--set", f"{name}={value}")]
    assert ludus("train", "kuhn", "--run", "mine", *settings, "--quiet")[0] == 0
    code, _, _ = ludus("record", "mine", "main", "random", "-n", "4", "--out", "games", "--quiet")
    assert code == 0
    for one in replays("games"):
        assert {seat.name: seat.model.partition(":")[0] for seat in one.seats} == {"main": "main", "random": ""}
    assert ludus("convert", "games", "--out", "set", "--player", "main", "--quiet")[0] == 0
    assert ReplayDataset.open("set").num_episodes == 4
    code, _, err = ludus("record", "mine", "main", "random", "--set", "x=1", "--out", "games")
    assert code == 2
    assert "--set is for a GAME" in err


def test_a_replay_does_not_choose_what_code_is_run(ludus: Ludus) -> None:
    Path("own.py").write_text(OWN_GAME)
    assert ludus("record", "own.py:Mine", "random", "random", "-n", "2", "--out", "games")[0] == 0
    assert {one.game for one in replays("games")} == {"own.py:Mine"}, "and no folder is named"
    code, _, err = ludus("convert", "games", "--out", "set")
    assert code == 2
    assert "it is of own.py:Mine, which did not come with ludus: name it with --game" in err
    assert ludus("convert", "games", "--out", "set", "--game", "own.py:Mine")[0] == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"game": "gymnasium:harm.py:Env"},
            "it is of gymnasium:harm.py:Env, which names code, a program, a server or a file",
        ),
        ({"options": {"env_id": "harm.py:Env"}}, "its options name another game than gymnasium:CartPole-v1"),
        ({"game": "gymnasium:CartPole-v99"}, "its game cannot be made"),
    ],
)
def test_nor_what_a_library_runs(ludus: Ludus, changed: dict[str, Any], message: str) -> None:
    pytest.importorskip("gymnasium")
    Path("harm.py").write_text("open('harm', 'w').close()")
    ludus("record", "gymnasium:CartPole-v1", "random", "-n", "2", "--out", "games", "--quiet")
    one = replays("games")[0]
    assert (one.game, "env_id" in one.options) == ("gymnasium:CartPole-v1", False)
    Path("games/bad.replay").write_bytes(encode_replay(msgspec.structs.replace(one, **changed)))
    code, _, err = ludus("convert", "games", "--out", "set", "--quiet")
    assert code == 0
    assert f"skipped games/bad.replay: {message}" in err
    assert not Path("harm").exists()
    assert ReplayDataset.open("set").num_episodes == 2


def test_the_game_that_is_named_is_the_one_that_is_converted(ludus: Ludus) -> None:
    Path("own.py").write_text(OWN_GAME)
    ludus("record", "kuhn", "random", "random", "-n", "2", "--out", "games", "--quiet")
    ludus("record", "own.py:Mine", "random", "random", "-n", "2", "--out", "games", "--quiet")
    code, _, err = ludus("convert", "games", "--out", "set", "--game", "own.py:Mine", "--quiet")
    assert (code, "skipped games/kuhn-" in err) == (0, True)
    dataset = ReplayDataset.open("set")
    assert (dataset.game, dataset.num_episodes) == ("own.py:Mine", 4)
    code, _, err = ludus("convert", "games", "--out", "none", "--game", "leduc")
    assert (code, "it is of kuhn, not of leduc" in err) == (2, True)


def test_a_replay_that_cannot_be_opened_is_skipped_and_named(ludus: Ludus) -> None:
    ludus("record", "tic_tac_toe", "random", "rules", "-n", "2", "--out", "games", "--quiet")
    Path("games/a.replay").mkdir()
    code, _, err = ludus("convert", "games", "--out", "set", "--quiet")
    assert (code, "skipped games/a.replay: cannot be read: Is a directory" in err) == (0, True)


def test_what_is_in_the_folder_counts_only_if_it_is_the_same(ludus: Ludus) -> None:
    record = ("record", "beacon", "oracle", "-n", "2", "--out", "games", "--quiet")
    assert ludus(*record, "--set", "decisions=12")[0] == 0
    code, _, err = ludus(*record, "--set", "decisions=16")
    assert code == 2
    assert "was recorded with decisions=12, not 16; choose another folder" in err
    with locked(Path("games")):
        code, _, err = ludus(*record, "--set", "decisions=12")
    assert (code, "games is being written by another process" in err) == (1, True)


def test_no_game_is_recorded_twice(ludus: Ludus) -> None:
    record = ("record", "rock_paper_scissors", "--out", "games", "--quiet")
    for players, episodes in (("rock scissors", "4"), ("rock paper scissors", "4"), ("rock paper", "8")):
        assert ludus(*record, *players.split(), "-n", episodes)[0] == 0
    seeds = [one.seed for one in replays("games")]
    assert len(set(seeds)) == len(seeds) == 12


def test_a_game_that_cannot_be_replayed_is_refused(ludus: Ludus) -> None:
    Path("chance.py").write_text(CHANCE)
    code, _, err = ludus("record", "chance.py:Chance", "random", "random", "-n", "20", "--out", "games")
    assert code == 1
    assert "cannot be recorded: with the same seed and the same actions" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("record", "tic_tac_toe", "random", "perfct"), "did you mean 'perfect'?"),
        (("record", "tic_tac_to", "random", "random"), "did you mean 'tic_tac_toe'?"),
        (("record", "tic_tac_toe", "random"), "name at least two players"),
        (("record", "beacon", "oracle", "--set", "decision=3"), "did you mean 'decisions'?"),
        (("record", "runs/none", "main", "random"), "runs/none"),
        (("convert", "nowhere"), "there is no file or folder nowhere"),
        (("convert", "."), "holds no replays"),
    ],
)
def test_mistakes_are_named(ludus: Ludus, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = ludus(*arguments, "--out", "out")
    assert code == 2
    assert message in err
    assert "Traceback" not in err


KILLED = """
import os, sys
from ludus.cli.main import main
from ludus.replays import dataset_writer

dataset_writer.COMMIT_REPLAYS = 2
stop, count, fsync = int(sys.argv[1]), 0, os.fsync

def counted(descriptor):
    global count
    count += 1
    if count == stop:
        os.kill(os.getpid(), 9)
    fsync(descriptor)

os.fsync = counted
main(["convert", "games", "--out", "set", "--quiet"])
"""


def test_convert_goes_on_after_a_kill(ludus: Ludus) -> None:
    ludus("record", "tic_tac_toe", "random", "rules", "-n", "8", "--out", "games", "--quiet")
    ludus("convert", "games", "--out", "whole", "--quiet")
    for stop, code in ((30, -signal.SIGKILL), (45, -signal.SIGKILL), (0, 0)):
        ended = subprocess.run([sys.executable, "-c", KILLED, str(stop)], env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert ended.returncode == code
    assert contents("set") == contents("whole")
