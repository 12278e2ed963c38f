"""`ludus play --terminal` as a person types it, and through a pipe."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
from command_line import LUDUS, Ludus
from played_runs import opponents_of, small, trained

from ludus.cli.control import ask
from ludus.evaluation.play.house import Kept, PlayHost
from ludus.evaluation.play.terminal import play_in_terminal
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.seat_rows import GameError
from ludus.recipes import connect_four, kuhn
from ludus.store.run_folder import RunFolder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    trained(folder / "board", small(connect_four.experiment(), TicTacToe()))
    trained(folder / "cards", small(kuhn.experiment()))
    return folder


@pytest.fixture(autouse=True)
def copies(ludus: Ludus, runs: Path) -> None:
    """Each test has its own."""
    shutil.copytree(runs, ".", dirs_exist_ok=True)


def test_a_whole_game_against_a_bot(ludus: Ludus) -> None:
    """`rules` answers the centre by a corner, and a threat by stopping it."""
    before = json.loads(ludus("league", "board", "--json")[1])["matches"]
    moves = "\n".join(map(str, (5, 1, 2, 3, 4, 6, 7, 8, 9, 1, 2, 3, 4, 6, 7, 8, 9)))
    code, out, err = ludus("play", "board", "rules", "--terminal", "--seat", "0", typed=moves)
    assert code == 0, err
    assert "tic_tac_toe: you are X and begin, against rules\n" in out
    assert "\n1 2 3\n4 5 6\n7 8 9\nyou [" in out
    assert "\nyour move (1, 2, 3, 4, 5, 6, 7, 8, 9):" in out
    assert re.search(r"^(You lose \(score -1\)|A draw \(score 0\)|You win \(score 1\))$", out, re.MULTILINE)
    assert re.search(r"what main.2 expected for you, turn by turn: [▁▂▃▄▅▆▇█]+\n", out), "a bot has no values"
    assert out.splitlines()[-1].startswith("recorded as match ")
    [replay] = Path("board/replays").iterdir()
    assert replay.name.startswith("human-rules-")
    code, out, _ = ludus("league", "board", "--json")
    assert code == 0
    after = json.loads(out)["matches"]
    assert (after["issued"], after["finished"]) == (before["issued"] + 1, before["finished"] + 1)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("x\nq\n", "error: 'x' is not a move that you can make now; legal are 1, 2, 3"),
        ("17\nq\n", "error: '17' is not a move that you can make now; legal are 1, 2, 3"),
        ("5\n5\nq\n", "error: '5' is not a move that you can make now; legal are"),
    ],
)
def test_a_wrong_move_is_named_and_asked_for_again(ludus: Ludus, typed: str, said: str) -> None:
    code, _, err = ludus("play", "board", "rules", "--terminal", "--seat", "0", typed=typed)
    assert code == 0
    assert said in err


def test_a_name_is_understood_and_the_nearest_offered(ludus: Ludus) -> None:
    code, out, err = ludus("play", "cards", "main", "--terminal", "--seat", "0", typed="chek\nbet\nbet\n")
    assert code == 0
    assert "error: 'chek' is not a move that you can make now; did you mean 'check'?" in err
    assert "main: ?" in out
    assert out.rindex("main: ?") < out.rindex("main: "), "at the end its card is shown"


def test_thoughts_on_request(ludus: Ludus) -> None:
    code, out, _ = ludus("play", "cards", "main", "--terminal", "--seat", "0", typed="?\nbet\n")
    assert code == 0
    assert "it would play " in out
    assert "expects a score" not in out, "its critic sees both cards"
    assert "%" in out
    _, out, _ = ludus("play", "board", "main", "--terminal", "--seat", "0", typed="?\nq\n")
    assert re.search(r"it expects a score of -?[\d.]+ for you; it would play ", out)
    _, out, _ = ludus("play", "cards", "rules", "--terminal", "--seat", "0", "--thoughts", typed="bet\n")
    assert "rules is a bot: it says neither values nor probabilities" in out


def test_a_move_is_taken_back(ludus: Ludus) -> None:
    code, out, err = ludus("play", "board", "rules", "--terminal", "--seat", "0", typed="u\n5\nu\nq\n")
    assert code == 0
    assert "error: there is no move of yours to take back" in err
    assert out.count("your move (1, 2, 3, 4, 5, 6, 7, 8, 9):") == 2
    _, _, err = ludus("play", "cards", "rules", "--terminal", "--seat", "0", typed="u\nq\n")
    assert "error: no undo: a move would be taken back with what it has revealed" in err


def test_who_leaves_makes_the_game_void(ludus: Ludus) -> None:
    code, out, _ = ludus("play", "board", "rules", "--terminal", "--seat", "0", typed="5\nq\n")
    assert (code, ", void: the person left" in out) == (0, True)


def test_input_that_ends_too_soon_is_an_error(ludus: Ludus) -> None:
    code, out, err = ludus("play", "board", "rules", "--terminal", "--seat", "0", typed="5\n")
    assert (code, ", void: the input ended" in out) == (1, True)
    assert "error: the input ended before the game did: the game is void" in err


def test_several_games_change_seats(ludus: Ludus) -> None:
    arguments = ("play", "cards", "rules", "--terminal", "--games", "2")
    code, out, _ = ludus(*arguments, typed="bet\nbet\ncall\nbet\ncall\n" * 3)
    assert code == 0
    assert ("you are first to act" in out, "you are second to act" in out) == (True, True)
    assert out.count("recorded as match ") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("board", "mian"), 2, "unknown player 'mian'; did you mean 'main'?"),
        (("board", "main", "--seat", "7"), 2, "tic_tac_toe has seats 0 to 1, not 7"),
        (("board", "main", "--as", "main"), 2, "'main' is a player of the run or a bot; take another name"),
        (("board", "main", "--as", "a b"), 2, "player id 'a b' is refused"),
        (("nowhere",), 1, "no run folder nowhere"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_played(
    ludus: Ludus, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended, out, err = ludus("play", *arguments, "--terminal")
    assert (ended, out) == (code, "")
    assert said in err


def test_a_page_for_other_machines_needs_a_token(ludus: Ludus) -> None:
    code, _, err = ludus("play", "board", "main", "--host", "0.0.0.0")
    assert (code, "--token-file" in err) == (2, True)


def test_a_game_in_real_time_is_not_for_the_terminal(ludus: Ludus) -> None:
    def keep(*_: object) -> Kept:
        raise AssertionError("nothing was played")

    def read() -> str:
        raise AssertionError("nothing is asked")

    house = PlayHost(Skirmish(), opponents_of(RunFolder.open("board")), person="ann", keep=keep)
    with pytest.raises(GameError, match="skirmish is played by mouse: leave out --terminal"):
        play_in_terminal(house, "rush", 0, read=read, say=print, complain=print, thoughts=False)


def test_a_finished_game_that_is_lost_is_an_error(ludus: Ludus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.cli.play.ask", partial(ask, patience_s=0.1))
    moves = "\n".join(map(str, [*range(1, 10)] * 2))
    with RunFolder.open("board").lock():  # this process trains it, and never answers
        code, out, err = ludus("play", "board", "random", "--terminal", "--seat", "0", typed=moves)
    assert code == 1
    assert "not recorded: " in out
    assert "finished games that are not recorded: 1" in err


@pytest.mark.slow
def test_on_a_read_only_folder_it_plays_and_records_nothing(ludus: Ludus) -> None:
    path = Path("board").resolve()
    subprocess.run(["mount", "--bind", "-o", "ro", str(path), str(path)], check=True)
    try:
        done = subprocess.run(
            [*LUDUS, "play", str(path), "main", "--terminal", "--seat", "0"],
            input="\n".join(map(str, [*range(1, 10)] * 2)),
            capture_output=True,
            text=True,
        )
    finally:
        subprocess.run(["umount", str(path)], check=True)
    assert done.returncode == 0, done.stderr
    assert f"not recorded: {path} is read-only" in done.stdout
    assert not (path / "replays").exists()
