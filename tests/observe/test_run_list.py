"""The list of the runs of a folder, and their comparison."""

from __future__ import annotations

import gc
import json
import os
import shutil
import weakref
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from planted_runs import plant, status_of
from planted_studies import plant_study

from ludus.observe import run_list
from ludus.observe.comparison import MOST_LINES, ComparisonRequest
from ludus.observe.documents import MetricsTable, RunLine, RunListing
from ludus.observe.run_list import DAMAGED, RUNS, RunList, has_runs
from ludus.observe.study_results import StudyResults, mean_curve
from ludus.observe.view import RunView, ViewError
from ludus.store.files import seal, unseal
from ludus.store.run_control import write_status


def listing_of(runs: RunList) -> RunListing:
    """With all verdicts."""
    runs.look()
    while runs.follow():
        pass
    found = runs.document(RUNS)
    assert isinstance(found, RunListing)
    return found


def lines_of(path: Path) -> dict[str, RunLine]:
    return {line.key: line for line in listing_of(RunList(path)).runs}


def damage_ledger(run: Path) -> None:
    content = bytearray((run / "ledger.db").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4000] = bytes(4000)
    (run / "ledger.db").write_bytes(content)


def test_runs_of_every_kind_are_listed(tmp_path: Path) -> None:
    for name in ("good", "failed", "unreadable", "torn"):
        plant(tmp_path / name, snapshots=3, matches=40)
    write_status(tmp_path / "failed" / "status.json", status_of("failed"))
    (tmp_path / "unreadable" / "run.json").write_text("{")
    damage_ledger(tmp_path / "torn")
    (tmp_path / "left" / "models").mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    plant(tmp_path / "monday" / "deep", snapshots=3, matches=40)
    found = listing_of(RunList(tmp_path))
    lines = {line.key: line for line in found.runs}
    assert {key: line.state for key, line in lines.items()} == {
        "good": "finished",
        "failed": "failed",
        "unreadable": DAMAGED,
        "torn": DAMAGED,
        "left": DAMAGED,
        "monday/deep": "finished",
    }
    assert [one.name for one in found.others] == ["photos"]
    assert "run.json is damaged" in lines["unreadable"].problem
    assert "ledger" in lines["torn"].problem
    assert "no run.json" in lines["left"].problem
    assert found.unread == 0


def test_a_line_says_what_the_run_itself_says(tmp_path: Path) -> None:
    folder = plant(tmp_path / "runs" / "mine", trial="lr=0.1")
    line = lines_of(tmp_path / "runs")["mine"]
    with closing(RunView(folder)) as view:
        view.refresh()
        overview, strength = (msgspec.to_builtins(view.document(name)) for name in ("overview", "strength"))
    assert line.verdict == strength["verdict"]
    assert (line.best, line.best_rating, line.rating_unit) == (strength["best"], strength["best_elo"], "Elo")
    for name in ("state", "decisions", "budget", "experiment", "trial"):
        assert getattr(line, name) == overview[name]
    assert (line.game, line.is_live, line.is_read) == ("ConnectFour", False, True)


def test_what_changes_is_read_again(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run", snapshots=3, matches=40)
    runs = RunList(tmp_path)
    assert listing_of(runs).runs[0].state == "finished"
    runs.encoded(RUNS)
    runs.look()
    assert runs.due() == []
    write_status(folder.status, status_of("training", decisions=70))
    with folder.lock():
        runs.look()
        assert runs.due() == [RUNS]
        line = listing_of(runs).runs[0]
    assert (line.state, line.is_live, line.decisions) == ("training", True, 70)
    runs.look()
    assert listing_of(runs).runs[0].state == "dead"  # its lock is free
    (folder.path / "run.json").write_text("{")
    line = listing_of(runs).runs[0]
    assert (line.state, line.is_live) == (DAMAGED, False)
    shutil.rmtree(folder.path)
    assert listing_of(runs).runs == []
    with pytest.raises(ViewError, match="no run 'run'"):
        runs.folder("run")


def test_a_study_is_the_table_of_study_show(tmp_path: Path) -> None:
    study = plant_study(tmp_path / "studies" / "magnet")
    expected = StudyResults(study)
    key = "magnet"
    for path in (tmp_path / "studies", study):
        found = listing_of(RunList(path))
        assert [one.key for one in found.studies] == [key]
        assert found.study == (key if path == study else None)
        [line] = found.studies
        best = expected.settings[0]
        assert best.mean is not None
        assert (line.best, line.mean, line.interval) == (best.setting, best.mean.value, best.mean.interval)
        assert (line.done, line.planned, line.failed) == (6, 6, 0)
        assert {(one.study, one.setting, one.seed) for one in found.runs if one.seed == 3} == {
            (key, one.setting, 3) for one in expected.settings
        }
        page = msgspec.to_builtins(looked_at(path).document(f"study/{key}"))
        assert page["results"] == {**msgspec.to_builtins(expected.to_dict()), "study": str(study)}


def looked_at(path: Path) -> RunList:
    runs = RunList(path)
    runs.look()
    return runs


def test_a_study_is_a_band_for_each_setting(tmp_path: Path) -> None:
    study = plant_study(tmp_path / "magnet")
    runs = looked_at(tmp_path)
    found = runs.comparison(ComparisonRequest(study=["magnet"], of="metric", name="main/nash_conv"))
    for line, (setting, curves) in zip(found.lines, StudyResults(study).curves("main/nash_conv").items(), strict=True):
        x, mean, low, high = mean_curve([*curves.values()])
        assert (line.name, line.seeds) == (setting, 3)
        for shown, expected in ((line.x, x), (line.y, mean), (line.low, low), (line.high, high)):
            assert shown == pytest.approx(expected, rel=1e-4)
    over_time = runs.comparison(ComparisonRequest(study=["magnet"], of="nash_conv", over="time"))
    assert over_time.x_unit == "seconds of training"
    assert over_time.lines[0].x[-1] == pytest.approx(2.0 * 29)  # 30 rows, two seconds apart
    assert over_time.lines[0].y == pytest.approx(found.lines[0].y, rel=0.05)


def test_metrics_of_compared_runs_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        plant(tmp_path / name, snapshots=2, matches=8)
    asked = ComparisonRequest(run=["a", "b", "c"], of="metric", name="main/entropy")
    whole = looked_at(tmp_path).comparison(asked)
    tables: list[MetricsTable] = []
    monkeypatch.setattr(run_list, "MOST_METRICS", 0)
    monkeypatch.setattr(run_list, "MetricsTable", lambda path: tables.append(MetricsTable(path)) or tables[-1])
    runs = looked_at(tmp_path)
    assert runs.comparison(asked) == whole
    assert runs.comparison(asked) == whole
    alive = [weakref.ref(table) for table in tables]
    tables.clear()
    gc.collect()
    assert sum(table() is not None for table in alive) == 1


def test_any_runs_are_compared(tmp_path: Path) -> None:
    folders = [plant(tmp_path / name, snapshots=4, matches=80) for name in ("a", "b")]
    runs = looked_at(tmp_path)
    with closing(RunView(folders[0])) as view:
        view.refresh()
        strength = msgspec.to_builtins(view.document("strength"))
    rating = runs.comparison(ComparisonRequest(run=["b", "a"]))
    assert [line.name for line in rating.lines] == ["b", "a"]
    known = next(line for line in strength["ratings"] if line["name"] == strength["player"])
    assert (rating.lines[1].x, rating.lines[1].y) == (known["x"], known["y"])
    assert rating.lines[1].low == pytest.approx(
        [y - e for y, e in zip(known["y"], known["error"], strict=True)], abs=0.1
    )
    assert rating.bots == [line["name"] for line in strength["win_rates"]]
    for bot in rating.bots:
        rates = runs.comparison(ComparisonRequest(run=["a"], of="win_rate", name=bot))
        measured = next(line for line in strength["win_rates"] if line["name"] == bot)
        pairs = [(x, y) for x, y in zip(measured["x"], measured["y"], strict=True) if y is not None]
        assert [*zip(rates.lines[0].x, rates.lines[0].y, strict=True)] == pairs
    entropy = runs.comparison(ComparisonRequest(run=["a"], of="metric", name="main/entropy"))
    rows = [json.loads(line) for line in (folders[0].metrics / "train.jsonl").read_text().splitlines()]
    assert entropy.unit == "nats"
    assert entropy.lines[0].y == pytest.approx([row["main/entropy"] for row in rows], rel=1e-4)
    assert runs.comparison(ComparisonRequest(run=["a", "gone"], of="nash_conv")).notes[-1] == "Not measured by a."


def test_studies_of_one_name_keep_their_settings_apart(tmp_path: Path) -> None:
    for place in ("monday", "tuesday"):
        plant_study(tmp_path / place / "magnet", seeds=1)
    keys = ["monday/magnet", "tuesday/magnet"]
    found = looked_at(tmp_path).comparison(ComparisonRequest(study=keys, of="nash_conv"))
    assert {line.name for line in found.lines} == {
        f"{key}: magnet_weight={value}" for key in keys for value in ("0.2", "0.05")
    }


def test_a_run_whose_time_is_not_known_is_named(tmp_path: Path) -> None:
    folder = plant(tmp_path / "a", snapshots=4, matches=80)
    rows = [json.loads(line) for line in (folder.metrics / "train.jsonl").read_text().splitlines()]
    timeless = [{name: value for name, value in row.items() if name != "time"} for row in rows]
    (folder.metrics / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in timeless))
    found = looked_at(tmp_path).comparison(ComparisonRequest(run=["a"], over="time"))
    assert (found.lines, found.notes[-1]) == ([], "Not measured by a.")


def test_too_many_lines_are_refused_by_name(tmp_path: Path) -> None:
    plant(tmp_path / "run0", snapshots=4, matches=80)
    for number in range(1, MOST_LINES + 4):
        shutil.copytree(tmp_path / "run0", tmp_path / f"run{number}")
    runs = looked_at(tmp_path)
    found = runs.comparison(ComparisonRequest(run=[f"run{number}" for number in range(MOST_LINES + 4)]))
    assert len(found.lines) == MOST_LINES
    assert found.notes[-1] == f"Only the first {MOST_LINES} of {MOST_LINES + 4} lines are drawn."
    with pytest.raises(ValueError, match="of"):
        runs.encoded_comparison({"of": ["everything"]})
    with pytest.raises(ValueError, match="unknown field"):
        runs.encoded_comparison({"path": ["/etc"]})


def test_names_that_are_odd_stay_names(tmp_path: Path) -> None:
    plant(tmp_path / "run", snapshots=4, matches=80)
    for name in (b"a b&c=%2F#<i>", b"\xff\xfe"):
        shutil.copytree(tmp_path / "run", Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)))
    found = listing_of(RunList(tmp_path))
    assert {line.key for line in found.runs} == {"run", "a b&c=%2F#<i>", "��"}
    assert all(line.best for line in found.runs)
    json.loads(looked_at(tmp_path).encoded(RUNS)[0])


def test_a_study_names_no_folder_outside_of_itself(tmp_path: Path) -> None:
    plant(tmp_path / "secret", snapshots=4, matches=80)
    study = plant_study(tmp_path / "all" / "magnet", seeds=1)
    facts = unseal((study / "study.json").read_bytes())
    facts["runs"][0]["name"] = "../../../secret"
    (study / "study.json").write_bytes(msgspec.json.encode(seal(facts)))
    assert "names a run that is not in it" in listing_of(RunList(tmp_path / "all")).others[0].why
    assert all("secret" not in line.key for line in listing_of(RunList(tmp_path / "all")).runs)
    (study / "study.json").write_text("[")
    found = listing_of(RunList(tmp_path / "all"))
    assert "study.json cannot be read: damaged" in found.others[0].why
    assert len(found.runs) == 2  # they are runs all the same


def test_a_folder_has_runs_or_not(tmp_path: Path) -> None:
    assert not has_runs(tmp_path)
    assert not has_runs(tmp_path / "none")
    (tmp_path / "photos").mkdir()
    assert not has_runs(tmp_path)
    run = plant(tmp_path / "run", snapshots=4, matches=80)
    assert has_runs(tmp_path)
    assert not has_runs(run.path)
