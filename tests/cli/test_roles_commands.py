"""A league of three teams with roles that differ, by the commands: progress shows, and every seat has a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import exit_code

import ludus

EXPERIMENT = """
from ludus import ActorConfig, BySteps, EvaluationConfig, Experiment, LeagueRules, LearnerConfig, PFSP, Role
from uneven_game import UNEVEN_OF_THREE

def experiment():
    return Experiment(
        name="uneven", game=UNEVEN_OF_THREE, budget=6000, runtime="serial",
        actor=ActorConfig(num_tables=16, matches=2, episodes_per_table=3, unroll_length=4),
        learner=LearnerConfig(batch_size=500, minibatch_size=250, learning_rate=0.03, average_decay=0.5),
        league=LeagueRules(
            roles={"main": Role(matchmaking=PFSP(), promotion=BySteps(every=1500), snapshot_weights="average")},
        ),
        evaluation=EvaluationConfig(opponents=("rests", "works"), episodes=60),
    )
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uneven")
    (folder / "mine.py").write_text(EXPERIMENT)
    assert exit_code("train", f"{folder / 'mine.py'}:experiment", "--run", str(folder / "run"), "--quiet") == 0
    return folder / "run"


def test_the_league_shows_progress_and_scores_by_role(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("league", str(run), "--json") == 0
    league = json.loads(capsys.readouterr().out)
    players = {one["id"]: one for one in league["players"]}
    snapshots = [name for name in players if name.startswith("main.")]
    first, last = players[snapshots[0]], players[snapshots[-1]]
    assert last["elo_interval"][0] > first["elo_interval"][1], "by scores of an episode both win a third of the games"
    assert players["works"]["elo"] > players["rests"]["elo"]
    assert league["tags"]["main"]["best"]["player"] != snapshots[0]
    assert [one["role"] for one in last["roles"]] == ["chief", "hand x2 (team 1)", "hand x2 (team 2)"]
    for one in last["roles"]:
        assert one["lead"] == pytest.approx(one["score"] - one["baseline"])
        assert one["lead_error"] > 0
    assert last["roles"][0]["score"] > 90 > last["roles"][1]["score"]
    assert exit_code("league", str(run)) == 0
    out = capsys.readouterr().out
    assert "as chief" in out
    assert "compare two players in the same role" in " ".join(out.split())
    assert ludus.Run(run).league()["main"].roles[0].role == "chief"


def test_evaluations_name_every_seat(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("eval", str(run), "works", "rests,random", "-n", "60", "--json") == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["players"] == ["works", "rests", "random"]
    assert [one["player"] for one in row["against"]] == ["rests", "random"]
    assert row["against"][0]["win_rate"] == row["win_rate"] == 1.0
    assert 0.5 < row["against"][1]["win_rate"] < 1.0
    assert [one["role"] for one in row["roles"]] == ["chief", "hand x2 (team 1)", "hand x2 (team 2)"]
    assert exit_code("eval", str(run), "works", "rests,random", "random", "-n", "60") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line[:3] for line in lines if line[:1] == ["works"]]
    assert rows == [["works", "rests", "random"], ["works", "random", "rests"], ["works", "random", "random"]]
    assert exit_code("eval", str(run), "works", "rests,random,works", "-n", "60") == 2
    assert "names 3 opponents; in uneven one player meets 2 teams" in capsys.readouterr().err


def test_populations_of_three_teams_are_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("compare", str(run), str(run), "-p", "2", "-n", "60", "--trust", "--json") == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["games"] == [[240.0, 240.0], [240.0, 240.0]], "60 games with two opponents, both ways round"
    assert compared["performance_interval"][0] < 0.0 < compared["performance_interval"][1]
