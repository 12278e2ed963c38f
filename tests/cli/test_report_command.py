"""`ludus report` as a user runs it, on runs that nobody trained."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from planted_runs import plant

from ludus.cli.main import ludus
from ludus.config import ConfigError
from ludus.store.run_folder import RunFolder

PICTURES = ("league", "payoff", "ratings", "curves", "spinning_top")


def ran(*words: object) -> str:
    done = CliRunner().invoke(ludus, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("report") / "planted").path


def test_it_is_written_into_the_run_folder(run: Path) -> None:
    said = ran("report", run)
    assert said.startswith(f"{run / 'report.html'} (")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert '"player/main.2"' in page
    assert "without" not in said, "all documents are there"


def test_tables_and_pictures_have_the_numbers_of_the_league(run: Path, tmp_path: Path) -> None:
    said = ran("report", run, "--out", tmp_path / "one.html", "--export", tmp_path / "figures")
    for name in PICTURES:
        for kind in ("csv", "png", "svg"):
            assert f"{name}.{kind}" in said
    assert (tmp_path / "figures" / "payoff.png").read_bytes().startswith(b"\x89PNG")
    assert "main.2" in (tmp_path / "figures" / "league.csv").read_text()
    league = json.loads(ran("league", run, "--json"))
    elo = {player["id"]: player["elo"] for player in league["players"]}
    with (tmp_path / "figures" / "league.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"]: float(row["elo"]) for row in rows if row["elo"]} == pytest.approx(
        {player: value for player, value in elo.items() if value is not None}
    )
    strengths = [float(row["elo"]) for row in rows if row["elo"]]
    assert strengths == sorted(strengths, reverse=True)
    index = {player["id"]: number for number, player in enumerate(league["players"])}
    with (tmp_path / "figures" / "payoff.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            known = league["win_rates"][index[row["player"]]][index[row["opponent"]]]
            assert float(row["win_rate"]) == pytest.approx(known, abs=6e-4), "three digits"


@pytest.mark.slow
def test_the_same_run_gives_the_same_files(run: Path, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        ran("report", run, "--out", tmp_path / "one.html", "--export", tmp_path / folder)
    for name in PICTURES:
        for kind in ("csv", "svg"):
            first, second = (tmp_path / folder / f"{name}.{kind}" for folder in ("first", "second"))
            assert first.read_bytes() == second.read_bytes()


def test_a_run_that_has_not_begun_has_a_report_too(tmp_path: Path, run: Path) -> None:
    experiment = json.loads((run / "run.json").read_text())["experiment"]
    RunFolder.create(tmp_path / "new", experiment, seed=0, command=("ludus", "train"))
    said = ran("report", tmp_path / "new", "--export", tmp_path / "figures")
    assert (tmp_path / "new" / "report.html").exists()
    assert "without league" in said


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path, run: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/x.html: cannot write: Not a directory"):
        ran("report", run, "--out", tmp_path / "file" / "x.html")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_run_folder_that_is_read_only_says_how_to_write_elsewhere(run: Path) -> None:
    run.chmod(0o555)
    try:
        with pytest.raises(ConfigError, match="write it elsewhere with --out"):
            ran("report", run)
    finally:
        run.chmod(0o755)
