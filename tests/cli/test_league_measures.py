"""What the league commands say about a run as a whole, and the tags that `ludus eval` knows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import exit_code

from ludus.cli.compare import pairings, spread

SETTINGS = (
    "runtime=serial",
    "budget=6000",
    "actor.num_tables=32",
    "actor.matches=2",
    "actor.episodes_per_table=4",
    "learner.batch_size=1000",
    "model.hidden=16",
    "league={type: psro, period: 1500}",
    "evaluation.opponents=random,rock",
    "evaluation.episodes=32",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small PSRO league on rock-paper-scissors."""
    path = tmp_path_factory.mktemp("runs") / "mine"
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    assert exit_code("train", "rps", "--run", str(path), "--quiet", *settings) == 0
    return path


def test_psro_measures_every_pair_of_snapshots(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("league", str(run), "--json") == 0
    league = json.loads(capsys.readouterr().out)
    frozen = [index for index, player in enumerate(league["players"]) if player["role"] == "frozen"]
    assert len(frozen) > 3
    assert all(league["games"][a][b] > 0 for a in frozen for b in frozen if a != b)
    pairs, bots, ladder = len(frozen) * (len(frozen) - 1) // 2, 2 * len(frozen), len(frozen) - 1
    assert league["matches"]["evaluations"] == pairs + bots + ladder


def test_the_json_has_all_measures(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("league", str(run), "--json")
    league = json.loads(capsys.readouterr().out)
    frozen = [player["id"] for player in league["players"] if player["role"] == "frozen"]
    measures = league["measures"]
    assert measures["unidentified"] is None
    assert measures["pairs_met"] == 1.0
    assert [player["player"] for player in measures["players"]] == frozen
    for name in ("nash_share", "alpha_rank"):
        assert sum(player[name]["value"] for player in measures["players"]) == pytest.approx(1.0)
    assert sorted(player for layer in measures["layers"] for player in layer["players"]) == sorted(frozen)
    for name in ("transitive_share", "effective_diversity", "effective_players"):
        assert measures[name]["low"] <= measures[name]["value"] <= measures[name]["high"]


def test_the_table_shows_the_layers_and_the_tags(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("league", str(run)) == 0
    out = capsys.readouterr().out
    for shown in ("layer", "Who beats whom is", "The equilibrium needs", "main@best is", "main@latest is"):
        assert shown in out


def test_every_evaluation_is_kept_with_its_models_and_best_is_tagged(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code("league", str(run), "--json")
    league = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in (run / "metrics" / "evaluations.jsonl").read_text().splitlines()]
    own = [row for row in rows if row["source"] == "train"]
    assert len(own) == len({row["match"] for row in own}) == league["matches"]["evaluations"]
    models = {player["id"]: player["model"] or "" for player in league["players"]}
    for row in own:
        assert row["models"] == [models[player] for player in row["players"]]
        low, high = row["win_rate_interval"]
        assert low <= row["win_rate"] <= high
    assert exit_code("eval", str(run), "main@best", "main@latest", "main:0:0", "-n", "8", "--json") == 0
    played = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["source"] for row in played] == ["eval", "eval"]
    assert played[0]["models"] == [league["tags"]["main"][tag]["model"] for tag in ("best", "latest")]
    assert played[1]["models"][1] == "main:0:0"


def test_a_misspelt_tag_is_bad_usage(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("eval", str(run), "main@bst", "random") == 2
    assert "did you mean 'best'" in capsys.readouterr().err


def test_a_league_is_shown_without_torch(run: Path) -> None:
    program = f"""
import sys
from ludus.cli.main import main
try:
    main(["league", {str(run)!r}])
finally:
    assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL).returncode == 0


def test_populations_meet_at_tables_of_any_size() -> None:
    assert pairings(["a", "b"], ["c"], 2) == [("a", "c"), ("b", "c")]
    assert pairings(["a"], ["c"], 3) == [("a", "c", "c"), ("c", "a", "a")], "one against two, both ways round"


def test_a_run_compared_with_itself_is_even(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("compare", str(run), str(run), "--players", "2", "-n", "64", "--json") == 0
    compared = json.loads(capsys.readouterr().out)
    assert [len(one["players"]) for one in compared["runs"]] == [2, 2]
    assert {weights for one in compared["runs"] for weights in one["weights"]} <= {"live", "average"}
    low, high = compared["performance_interval"]
    assert low <= 0 <= high
    assert (low, high) != (0, 0)
    assert exit_code("compare", str(run), str(run), "--players", "2", "-n", "16") == 0
    assert "Relative population performance of A" in capsys.readouterr().out


def test_runs_of_different_games_are_not_compared(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [part for setting in SETTINGS for part in ("--set", setting.replace("rock", "random"))]
    settings += ["--set", "evaluation.opponents=random", "--set", "budget=1000"]
    assert exit_code("train", "kuhn", "--run", str(tmp_path / "kuhn"), "--quiet", *settings) == 0
    capsys.readouterr()
    assert exit_code("compare", str(run), str(tmp_path / "kuhn")) == 2
    assert "cannot meet" in capsys.readouterr().err


def test_players_are_spread_over_the_history() -> None:
    names = tuple(f"p{index}" for index in range(10))
    assert spread(names, 20) == names
    assert spread(names, 1) == ("p9",)
    chosen = spread(names, 4)
    assert len(set(chosen)) == 4
    assert chosen[-1] == "p9"
    assert list(chosen) == sorted(chosen)
