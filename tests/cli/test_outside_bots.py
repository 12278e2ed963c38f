"""Bots from outside on the command line: a league that holds them, and every command that names one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import exit_code

from ludus.data.records import MatchFinished, MatchVoid
from ludus.store.run_folder import RunFolder

MINE = """
import numpy as np
from ludus.experiment import Experiment
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.league.matchmaking import PFSP
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.workers.actor import ActorConfig
from ludus.league.rules import EvaluationConfig
from ludus.workers.config import LearnerConfig


class First:
    def act(self, game, tables, seats, rng):
        legal = game.view.legal[0]["move"][tables, np.asarray(game.spec.column_of_seat)[seats]]
        return {"move": legal.argmax(axis=1).astype(np.int32)}


def experiment():
    main = Role(matchmaking=PFSP(include_scripted=True), promotion=BySteps(every=1_000))
    return Experiment(
        name="mine",
        game=TicTacToe(),
        budget=2_000,
        bots={"first": "mine.py:First", "last": "program:last.py"},
        model=ActorCritic(hidden=(16,)),
        actor=ActorConfig(num_tables=16, matches=2, episodes_per_table=4),
        learner=LearnerConfig(batch_size=500),
        league=LeagueRules(roles={"main": main}, bots=("random", "first", "last")),
        evaluation=EvaluationConfig(opponents=("random", "first", "last"), episodes=16),
        runtime="serial",
    )
"""
LAST = """
import json, os, sys
hello = json.loads(sys.stdin.readline())
print(json.dumps({"protocol": 1}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["id"] == int(os.environ.get("CRASH_AT", 0)):
        sys.exit("out of memory")
    moves = [row["legal"]["move"][-1] for row in request["rows"]]
    print(json.dumps({"id": request["id"], "actions": moves}), flush=True)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bots and a run that knows them, trained from within it."""
    folder = tmp_path_factory.mktemp("outside_bots")
    (folder / "mine.py").write_text(MINE)
    (folder / "last.py").write_text(LAST)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("CRASH_AT", "10")  # in the training and in the recorder of its games, each once
        assert exit_code("train", "mine.py:experiment", "--run", "run", "--quiet") == 0
    return folder


def test_a_league_plays_and_rates_them(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("league", str(trained / "run"), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    by_name = {player["id"]: player for player in shown["players"]}
    for name in ("first", "last"):
        assert by_name[name]["role"] == "scripted"
        assert by_name[name]["games"] > 0
    written = json.loads((trained / "run" / "run.json").read_text())
    found = written["experiment"]["bots"]
    assert found == {"first": f"{trained / 'mine.py'}:First", "last": f"program:{trained / 'last.py'}"}


def test_a_crash_voids_the_match_and_nothing_else(trained: Path) -> None:
    with RunFolder.open(trained / "run").ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
    voids = [event.reason for event in events if isinstance(event, MatchVoid)]
    crashes = [reason for reason in voids if "bot 'last'" in reason]
    assert len(crashes) == 1
    assert crashes[0].endswith("has ended with exit code 1; its last words: out of memory")
    lost = next(place for place, event in enumerate(events) if isinstance(event, MatchVoid))
    assert any(isinstance(event, MatchFinished) for event in events[lost:])


def test_they_meet_players_and_each_other(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # the run knows its own by address, wherever one is
    other = f"other=program:{trained / 'last.py'}"
    words = ("first", "last", other, f"{trained / 'mine.py'}:First", "-n", "4", "--tables", "2", "--json")
    assert exit_code("eval", str(trained / "run"), *words) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["players"] for row in rows] == [["first", "last"], ["first", "other"], ["first", "First"]]
    assert rows[0]["score"] == rows[1]["score"]


def test_replays_of_them_are_recorded(trained: Path, tmp_path: Path) -> None:
    bots = (f"a={trained / 'mine.py'}:First", f"program:{trained / 'last.py'}")
    out = tmp_path / "replays"
    assert exit_code("record", "tic_tac_toe", *bots, "-n", "4", "--tables", "2", "--out", str(out), "--quiet") == 0
    assert len(list(out.glob("tic_tac_toe-a-last-*"))) == 4


def test_a_best_response_to_a_program_is_trained(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ("exploit", str(trained / "run"), f"late=program:{trained / 'last.py'}", "--train")
    assert exit_code(*run, "--budget", "1000", "-n", "16", "--discard", "--json") == 0
    assert json.loads(capsys.readouterr().out)["target"] == "late"


def test_one_is_checked_beside_the_game(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", "tic_tac_toe", "--episodes", "2", "--bot", f"program:{trained / 'last.py'}") == 0
    (trained / "bad.py").write_text(LAST.replace("[-1]", "[0] + 9"))
    assert exit_code("check", "tic_tac_toe", "--episodes", "2", "--bot", f"program:{trained / 'bad.py'}") == 1
    assert "bot 'bad' answered an action that is not legal" in capsys.readouterr().out


def test_one_that_fails_is_blamed_and_not_the_game(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lost.py").write_text("class Lost:\n    def act(self, *asked):\n        return [][0]\n")
    assert exit_code("check", "tic_tac_toe", "--episodes", "2", "--bot", f"{tmp_path / 'lost.py'}:Lost") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tic_tac_toe: keeps its promises, but bot 'Lost' fails"
    assert [line.split()[1] for line in lines if line.startswith("  FAIL")] == ["bots"]
    what = "IndexError: list index out of range, raised in act"
    assert lines[-1] == f"  bots: bot 'Lost', step 0: {what} ({tmp_path / 'lost.py'}:3)"


def test_a_program_that_always_fails_ends_the_command_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bad.py"
    program.write_text("raise SystemExit('no licence')")
    words = ("record", "tic_tac_toe", "rules", f"program:{program}", "--out", str(tmp_path / "replays"))
    assert exit_code(*words, "-n", "2", "--tables", "1", "--quiet") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "error: bot 'bad' has ended with exit code 1; its last words: no licence"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval", "RUN", "main", "program:./gone.py"), "bots.gone: there is no file './gone.py'"),
        (("eval", "RUN", "main", "last=program:node"), "'last' is somebody else here"),
        (("eval", "RUN", "main", "gone.py:Bot"), "gone.py'; did you mean"),
        (("check", "tic_tac_toe", "--bot", "random"), "'random' is no address of a bot"),
        (("check", "tic_tac_toe", "--bot", "mine.py:Fist"), "bots.Fist: 'WHERE/mine.py' has no 'Fist'"),
        (("check", "tic_tac_toe", "--bot", "mien.py:First"), "no Python file 'WHERE/mien.py'; did you mean"),
        (("record", "tic_tac_toe", "rules", "mine.py:Fist", "--out", "new"), "did you mean 'First'?"),
        (("train", "mine.py:experiment", "--set", "bots.+a=program:gone"), "there is no program 'gone'"),
        (("train", "mine.py:experiment", "--set", "bots.+a b=program:ls"), "player id 'a b' is refused"),
        (("train", "mine.py:experiment", "--set", "bots.+random=x:y"), "has a bot 'random' of its own"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(trained)
    assert exit_code(*("run" if word == "RUN" else word for word in words)) == 2
    shown = capsys.readouterr()
    assert message.replace("WHERE", str(trained)) in shown.err
    assert shown.out == ""
