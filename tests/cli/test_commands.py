"""The command line as a person uses it: in this process where that is enough, else as a program."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command_line import LUDUS, TINY, Ludus, rows, settings

from ludus.cli.main import COMMANDS
from ludus.games.catalog import list_games
from ludus.lookup import recipe_names


def test_train_then_league_then_eval_then_resume(ludus: Ludus) -> None:
    code, out, _ = ludus("train", "kuhn", "--run", "mine", *TINY)
    assert code == 0
    assert "finished after" in out
    for what in ("live weights", "averaged weights", "equilibrium mixture"):
        assert what in out

    code, out, _ = ludus("league", "mine", "--json")
    league = json.loads(out)
    ids = [player["id"] for player in league["players"]]
    assert code == 0
    assert {"main", "main.1", "main.2", "random", "equilibrium"} <= set(ids)
    counts = league["matches"]
    assert counts["issued"] == counts["finished"] + counts["void"] + counts["open"]
    main_player = league["players"][ids.index("main")]
    assert main_player["decisions"] >= 6000
    assert main_player["opponents"] == {"main": 1.0}
    mean, deviation = league["players"][ids.index("main.2")]["openskill"]
    assert deviation < 25 / 3, "its matches have made its skill more certain"
    assert 0 < mean < 50

    code, out, _ = ludus("eval", "mine", "main", "main.1", "random", "--episodes", "40", "--json")
    measured = rows(out)
    assert code == 0
    assert [row["players"] for row in measured] == [["main", "main.1"], ["main", "random"]]
    for row in measured:
        assert row["episodes"] >= 40
        assert row["wins"] + row["draws"] + row["losses"] == row["episodes"]
        low, high = row["win_rate_interval"]
        assert low <= row["win_rate"] <= high
    assert measured[0]["models"][0].startswith("main:")
    assert [row["weights"] for row in measured] == [["average", "average"], ["average", None]]

    code, out, _ = ludus("train", "--run", "mine", "--resume", "--set", "budget=9000", "--json")
    assert code == 0
    assert rows(out)[-1]["end"] == "finished"
    _, out, _ = ludus("league", "mine", "--json")
    assert json.loads(out)["players"][0]["decisions"] >= 9000


def test_the_tables_show_the_players(ludus: Ludus, trained_rps: Path) -> None:
    shutil.copytree(trained_rps, "mine")
    code, out, _ = ludus("league", "mine")
    assert code == 0
    assert "main.1" in out
    assert "matches issued" in out
    code, out, _ = ludus("eval", "mine", "--episodes", "32")
    assert code == 0
    assert "Played with average weights." in out
    assert "scissors" in out
    _, out, _ = ludus("eval", "mine", "main", "main.1", "--episodes", "32", "--weights", "live")
    assert "main (live)" in out
    assert "main.1 (average)" in out


def test_a_game_with_one_seat_is_ranked_by_score(ludus: Ludus) -> None:
    code, out, _ = ludus("train", "cartpole", "--run", "pole", *settings(evaluation__episodes="8"))
    assert code == 0
    assert "mean score" in out
    _, out, _ = ludus("league", "pole", "--json")
    scores = [player["score"] for player in json.loads(out)["players"] if player["role"] == "frozen"]
    assert scores
    assert scores[0] is not None
    assert scores[0][0] >= 8
    code, out, _ = ludus("eval", "pole", "main", "--episodes", "8", "--json")
    assert rows(out)[0]["score"] >= 8


def test_an_experiment_in_yaml_overrides_its_recipe(ludus: Ludus, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("recipe: rps\nname: mine\nlearner:\n  epochs: 1\nmodel.hidden: [8]\n")
    code, _, _ = ludus("train", "mine.yaml", "--run", "mine", *settings(), "--quiet")
    assert code == 0
    experiment = json.loads((tmp_path / "mine" / "run.json").read_text())["experiment"]
    assert experiment["name"] == "mine"
    assert experiment["learner"]["epochs"] == 1
    assert experiment["model"]["hidden"] == [8]
    assert experiment["learner"]["batch_size"] == 1000


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["train", "kuhnn"], 2, "kuhn"),
        (["train", "kuhn", "--set", "learner.bach_size=3"], 2, "learner.batch_size"),
        (["train", "kuhn", "--set", "learner.batch_size=many"], 2, "many"),
        (["train", "kuhn", "--set", "learner.batch_size=0"], 2, "batch_size"),
        (["train", "kuhn", "--set", "learner.batch_size"], 2, "PATH=VALUE"),
        (["train", "kuhn", "--set", "actor.episodes_per_table=3"], 2, "multiple"),
        (["train", "kuhn", "--set", "league.bots=randm"], 2, "randm"),
        (["train", "kuhn", "--set", "league.roles.main.promotion.every=0"], 2, "every"),
        (["train", "nowhere.py:experiment"], 2, "nowhere.py"),
        (["train", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["train", "--resume", "--run", "nowhere"], 1, "nowhere"),
        (["train", "kuhn", "--resume"], 2, "kuhn"),
        (["league", "nowhere"], 1, "nowhere"),
        (["league"], 1, "runs/"),
        (["check", "kuhnn"], 2, "kuhn"),
        (["chek"], 2, "'check'"),
        (["train", "mine.py"], 2, "mine.py:experiment"),
        (["check", "mine.py"], 2, "mine.py:CLASS"),
        (["train", "kuhn", "--set", "budget=9", "--set", "seed=-1"], 2, "error: seed must be from 0"),
        (["train", "kuhn", "--run", "/proc/mine"], 1, "error: /proc/mine: "),
        (["eval", "--episodes", "some"], 2, "some"),
        (["check", "kuhn", "--episodes", "0"], 2, "'--episodes': 0 is not in the range x>=1"),
        (["eval", "nowhere", "--tables", "0"], 2, "'--tables': 0 is not in the range x>=1"),
    ],
)
def test_bad_input_names_the_thing(ludus: Ludus, arguments: list[str], code: int, named: str) -> None:
    got, _, err = ludus(*arguments)
    assert (got, named in err) == (code, True), err


def test_a_run_folder_is_not_written_over(ludus: Ludus, trained_rps: Path) -> None:
    shutil.copytree(trained_rps, "mine")
    before = Path("mine/run.json").read_bytes()
    code, _, err = ludus("train", "kuhn", "--run", "mine", *TINY)
    assert code == 2
    assert "--resume" in err
    assert Path("mine/run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("def experiment(:\n", "invalid syntax"),
        ("import nowhere\n", "No module named 'nowhere'"),
        ("def experiment():\n    raise KeyError('ouch')\n", "KeyError: 'ouch'"),
        ("from ludus.experiment import Experiment\ndef experiment():\n    Experiment(nme='x')\n", "'nme'"),
    ],
)
def test_an_error_in_the_file_of_an_experiment_is_one_line_with_its_place(
    ludus: Ludus, tmp_path: Path, source: str, named: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    code, _, err = ludus("train", "mine.py:experiment")
    assert code == 2
    assert named in err
    assert f"mine.py, line {len(source.splitlines())}" in err
    assert err.count("\n") == 1


def test_a_game_that_breaks_its_spec_ends_training_with_one_line(ludus: Ludus, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector\n"
        "from ludus.experiment import Experiment\n"
        "from ludus.games.lift import Lifted\n"
        "class Mine:\n"
        "    spec = GameSpec.symmetric(name='mine', num_seats=2, max_length=1,\n"
        "        observation=ObservationSpec(parts={'all': Vector(size=2)}),\n"
        "        action=ActionSpec(heads={'move': Choice(num=2)}))\n"
        "    def reset(self, seed):\n"
        "        return None\n"
        "def experiment():\n"
        "    return Experiment(name='mine', game=Lifted(Mine), budget=100)\n"
    )
    code, _, err = ludus("train", "mine.py:experiment", "--runtime", "serial")
    assert code == 1
    assert err == "error: mine, table 0: reset and step give a Turn, got None\n"


@pytest.mark.parametrize("setting", ["model.hidden=8", "league.roles.main.count=2", "game=Kuhn"])
def test_what_a_run_has_learned_decides_what_a_resume_can_change(ludus: Ludus, trained_rps: Path, setting: str) -> None:
    shutil.copytree(trained_rps, "mine")
    before = Path("mine/run.json").read_bytes()
    code, _, err = ludus("train", "--run", "mine", "--resume", "--set", setting, "--set", "league.bots=random")
    assert code == 2
    assert setting.partition("=")[0].replace("+", "") in err
    assert Path("mine/run.json").read_bytes() == before


def test_a_narrow_terminal_keeps_the_names(ludus: Ludus, trained_rps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(trained_rps, "mine")
    monkeypatch.setenv("COLUMNS", "50")
    for command in (["league", "mine"], ["eval", "mine", "--episodes", "32"]):
        code, out, _ = ludus(*command)
        assert code == 0
        assert "scissors" in out
        assert "…" not in out
        assert max(map(len, out.splitlines())) <= 50


def test_eval_names_the_nearest_player(ludus: Ludus, trained_rps: Path) -> None:
    shutil.copytree(trained_rps, "mine")
    code, _, err = ludus("eval", "mine", "main", "rok")
    assert code == 2
    assert "'rock'" in err


def test_check_passes_and_fails_with_exit_codes(ludus: Ludus, tmp_path: Path) -> None:
    assert ludus("check", "rock_paper_scissors", "--episodes", "8")[0] == 0
    (tmp_path / "broken.py").write_text(
        "from ludus.games.builtin.rock_paper_scissors import RockPaperScissors\n"
        "class Broken(RockPaperScissors):\n"
        "    def bots(self):\n"
        "        return {}\n"
    )
    code, out, _ = ludus("check", "broken.py:Broken", "--episodes", "8")
    assert code == 1
    assert "FAIL" in out
    assert "bots" in out


def test_the_lists_are_complete(ludus: Ludus) -> None:
    code, out, _ = ludus("recipes", "--json")
    assert code == 0
    assert [row["recipe"] for row in json.loads(out)] == recipe_names()
    assert all(row["what it does"] for row in json.loads(out))
    code, out, _ = ludus("recipes", "kuhn", "--json")
    settings = {row["path"]: row["meaning"] for row in json.loads(out)}
    for path in ("learner.batch_size", "actor.unroll_length", "learner.buffer_size", "league.roles.main.count"):
        assert settings[path]
    code, out, _ = ludus("games", "--json")
    assert "connect_four" in {entry["address"] for entry in json.loads(out)}
    code, out, _ = ludus("doctor")
    assert code == 0
    assert "cores" in out
    code, out, _ = ludus("--help")
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize(
    "command", ["", *COMMANDS, "launch slurm", "launch kubernetes", "launch hosts", "league r add"]
)
def test_help_fits_a_terminal_of_80_columns(ludus: Ludus, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = ludus(*command.split(), "--help")
    assert code == 0
    lines = out.splitlines()[1:]  # after the usage, whose "..." means that an argument may be repeated
    assert [line for line in lines if len(line) > 80 or line.endswith("...")] == []


def test_the_games_fit_a_terminal_of_80_columns(ludus: Ludus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = ludus("games")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert all(f"\n{entry.address} " in out for entry in list_games()), "addresses are whole, to be copied"


def test_interrupting_saves_and_a_second_start_is_refused(ludus: Ludus) -> None:
    start = [*LUDUS, "train", "kuhn", "--run", "mine", "--json", "--set", "actor.num_tables=64"]
    start += ["--runtime", "serial"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    training = subprocess.Popen(start, env=environment, stdout=subprocess.PIPE, text=True)
    assert training.stdout is not None
    assert "decisions" in json.loads(training.stdout.readline())
    second = ludus("train", "--run", "mine", "--resume")
    assert second.code == 1
    assert str(training.pid) in second.err
    training.send_signal(signal.SIGINT)
    out, _ = training.communicate(timeout=60)
    assert training.returncode == 130
    end = rows(out)[-1]
    assert end["end"] == "interrupted"
    deadline = time.monotonic() + 60
    resume = [*LUDUS, "train", "--run", "mine", "--resume", "--json"]
    again = subprocess.Popen(resume, env=environment, stdout=subprocess.PIPE, text=True)
    assert again.stdout is not None
    first = json.loads(again.stdout.readline())
    assert first["decisions"] > 0
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=max(1.0, deadline - time.monotonic()))
    assert again.returncode == 130


def test_a_teacher_with_fresh_weights_is_pointed_out(ludus: Ludus) -> None:
    taught = "algorithm={type: PPO, teacher: {weight: 0.01}}"
    code, out, _ = ludus("train", "kuhn", "--run", "first", *TINY, "--set", taught, "--set", "budget=1000")
    assert code == 0
    assert "players of role main start from fresh weights, which teach nothing" in out
    start = ["--set", "league.roles.main.start=first#main@latest"]
    code, out, _ = ludus("train", "kuhn", "--run", "second", *TINY, "--set", taught, *start)
    assert code == 0
    assert "teach nothing" not in out


ODD_STATISTIC = """
from dataclasses import dataclass, replace

import torch

from ludus import PPO


@dataclass(frozen=True)
class Odd(PPO):
    def loss(self, policy, batch):
        loss = super().loss(policy, batch)
        return replace(loss, statistics={**loss.statistics, "odd": torch.tensor(float("nan"))})
"""


def test_a_statistic_that_is_no_number_is_valid_json(ludus: Ludus, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD_STATISTIC)
    odd = ("--set", f"algorithm={tmp_path / 'odd.py'}:Odd", "--set", "budget=20000")
    code, out, _ = ludus("train", "tic_tac_toe", "--run", "mine", "--runtime", "serial", *odd, "--json")
    assert code == 0
    told = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert any("main/odd" in row and row["main/odd"] is None for row in told)
