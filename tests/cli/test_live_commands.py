"""`ludus set` and `ludus league RUN add|remove|freeze|reset` as a person types them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import LUDUS, TINY, Ludus, rows

from ludus.store.run_folder import RunFolder


@pytest.fixture
def run(ludus: Ludus, trained_rps: Path) -> Ludus:
    """Commands in a folder with a finished run `mine`."""
    shutil.copytree(trained_rps, "mine")
    return ludus


def test_a_stopped_run_is_changed_and_goes_on(run: Ludus) -> None:
    code, out, _ = run("set", "mine", "learner.learning_rate=1e-4", "budget=8000")
    assert code == 0
    assert "learner.learning_rate=0.0001, budget=8000" in out
    assert "ludus train --run mine --resume" in out
    code, out, _ = run(
        "league", "mine", "add", "second", "--role", "main", "--from", "main", "--set", "learner.epochs=1"
    )
    assert (code, "second joined as main with main:0:" in out) == (0, True)
    code, out, _ = run("league", "mine", "freeze", "main", "--json")
    assert code == 0
    assert json.loads(out)["refused"] is None
    assert run("league", "mine", "add", "champion", "--role", "frozen", "--model", "main.1")[0] == 0
    assert run("league", "mine", "remove", "champion", "--reason", "too strong")[0] == 0
    assert run("league", "mine", "reset", "main", "--from", "main.1")[0] == 0

    code, out, _ = run("train", "--run", "mine", "--resume", "--json")
    assert code == 0
    assert rows(out)[-1]["end"] == "finished"
    code, out, _ = run("league", "mine", "--json")
    players = {player["id"]: player for player in json.loads(out)["players"]}
    assert json.loads(out)["settings"] == {"learner.learning_rate": 1e-4, "budget": 8000}
    assert players["second"]["decisions"] > 0
    assert "champion" not in players
    code, out, _ = run("eval", "mine", "second", "main", "--episodes", "8", "--json")
    assert code == 0


def test_resume_changes_live_settings_by_an_event_and_others_in_the_experiment(run: Ludus) -> None:
    before = Path("mine/run.json").read_bytes()
    assert run("train", "--run", "mine", "--resume", "--set", "budget=7000", "--quiet")[0] == 0
    assert Path("mine/run.json").read_bytes() == before
    code, _, err = run("train", "--run", "mine", "--resume", "--set", "budget=0")
    assert (code, "budget must be at least 1" in err) == (2, True)
    more = ("--set", "actor.unroll_length=5", "--set", "budget=8000")
    assert run("train", "--run", "mine", "--resume", *more, "--quiet")[0] == 0
    written = json.loads(Path("mine/run.json").read_text())["experiment"]
    assert (written["actor"]["unroll_length"], written["budget"]) == (5, 6000)
    _, out, _ = run("league", "mine", "--json")
    decisions = {player["id"]: player["decisions"] for player in json.loads(out)["players"]}
    assert decisions["main"] >= 8000


def test_a_resume_cannot_take_away_what_was_changed(run: Ludus) -> None:
    assert run("set", "mine", "league.roles.main.promotion.every=3000")[0] == 0
    before = Path("mine/run.json").read_bytes()
    rules = "league={type: LeagueRules, roles: {main: {promotion: Never}}, bots: [rock]}"
    code, _, err = run("train", "--run", "mine", "--resume", "--set", rules)
    assert (code, "does not go with what the run has changed" in err) == (2, True), err
    assert Path("mine/run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["set", "mine"], 2, "PATH=VALUE"),
        (["set", "mine", "budget"], 2, "PATH=VALUE"),
        (["set", "nowhere", "budget=9"], 1, "nowhere"),
        (["set", "mine", "learner.batch_size=9"], 1, "learner.batch_size cannot change while a run trains"),
        (["set", "mine", "learner.epochs=2", "--player", "mian"], 1, "'main'"),
        (["league", "mine", "add", "x"], 2, "--role"),
        (["league", "mine", "add", "x", "--role", "mian"], 1, "'main'"),
        (["league", "mine", "remove", "main"], 1, "last learning player"),
        (["league", "mine", "freeze", "mian"], 1, "'main'"),
        (["league", "mine", "reset", "main", "--from", "main@bst"], 1, "'best'"),
        (["league", "freeze", "main"], 2, "ludus league RUN freeze main"),
        (["league", "mine", "melt", "main"], 2, "melt"),
    ],
)
def test_bad_input_names_the_thing_and_changes_nothing(run: Ludus, arguments: list[str], code: int, named: str) -> None:
    before = Path("mine/ledger.db").read_bytes()
    got, _, err = run(*arguments)
    assert (got, named in err) == (code, True), err
    assert Path("mine/ledger.db").read_bytes() == before


def test_help_names_the_changes(ludus: Ludus) -> None:
    code, out, _ = ludus("league", "--help")
    assert code == 0
    assert all(word in out for word in ("add", "remove", "freeze", "reset"))
    code, out, _ = ludus("league", "mine", "add", "--help")
    assert (code, "--role" in out) == (0, True)


def test_the_listing_of_a_recipe_marks_what_is_live(ludus: Ludus) -> None:
    _, out, _ = ludus("recipes", "kuhn", "--json")
    live = {row["path"]: row["live"] for row in json.loads(out)}
    assert (live["learner.learning_rate"], live["learner.batch_size"]) == (True, False)
    _, out, _ = ludus("recipes", "kuhn")
    assert any(line.startswith("learner.epochs=") and "(live)" in line for line in out.splitlines())


def test_a_run_that_trains_is_changed_by_another_process(ludus: Ludus) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = [*LUDUS, "train", "rps", "--run", "mine", "--json", *TINY, "--set", "budget=1000000000"]
    with subprocess.Popen(start, env=environment, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        assert "decisions" in json.loads(training.stdout.readline())
        for arguments, code, said in (
            (["set", "mine", "learner.learning_rate=0.5"], 0, "learner.learning_rate=0.5"),
            (["set", "mine", "learner.batch_size=5"], 1, "cannot change while a run trains"),
            (["league", "mine", "freeze", "main"], 0, "main was frozen as main."),
        ):
            done = ludus(*arguments)
            assert (done.code, said in done.out + done.err) == (code, True), done
            assert "not training" not in done.out
        training.send_signal(signal.SIGTERM)
        training.communicate(timeout=60)
    assert training.returncode == 130


def test_a_run_that_does_not_answer_loses_the_request(run: Ludus) -> None:
    with RunFolder.open("mine").lock():  # a holder that never looks
        code, _, err = run("set", "mine", "budget=9000", "--wait", "0.2")
    assert code == 1
    assert f"process {os.getpid()}" in err
    assert "nothing has changed" in err
    assert not list(Path("mine/requests").iterdir())
