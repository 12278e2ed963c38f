"""`ludus study` and `ludus.Study`: settings x seeds, killed and resumed, and what they say together."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from command_line import LUDUS, SMALL, Ludus
from processes import descendants, is_gone, wait_until
from scipy.stats import trim_mean

import ludus as front
from ludus.config import ConfigError
from ludus.league.population import LogUniform, OneOf, Uniform
from ludus.observe.study_results import StudyResults, after_resumes, aggregate, interquartile_mean, mean_curve
from ludus.store.files import seal
from ludus.store.run_folder import RunFolderError
from ludus.study import Study

QUICK = {name: value for name, value in SMALL.items() if name != "runtime"}


def study(**more: object) -> Study:
    return Study(**{"experiment": "kuhn", "objective": "nash_conv", **more})  # type: ignore[arg-type]


def test_the_interquartile_mean_is_that_of_the_middle_half() -> None:
    values = np.random.default_rng(0).normal(size=(5, 8))
    assert interquartile_mean(values) == pytest.approx(trim_mean(values, 0.25, axis=-1))
    assert interquartile_mean(np.array([1.0, 2.0, 9.0])) == pytest.approx((0.25 * 1 + 2 + 0.25 * 9) / 1.5)


def test_the_bootstrap_draws_the_runs_of_every_task_anew() -> None:
    # Within a task all runs are equal, so that drawing runs within tasks changes nothing: the interval is a point.
    scores = np.array([[0.0, 1.0]] * 6)
    assert aggregate(scores, interquartile_mean).interval == pytest.approx((0.5, 0.5))
    spread = np.random.default_rng(0).normal(3.0, 1.0, size=(40, 1))
    found = aggregate(spread, lambda values: values.mean(-1))
    assert found.interval is not None
    half = 1.96 * spread.std() / np.sqrt(40)
    assert found.interval == pytest.approx((found.value - half, found.value + half), abs=0.05)
    assert aggregate(spread[:1], interquartile_mean).interval is None


def test_curves_are_averaged_where_all_runs_have_values() -> None:
    steps, mean, low, high = mean_curve(
        [(np.array([0.0, 10.0]), np.array([0.0, 10.0])), (np.array([5.0, 20.0]), np.array([1.0, 1.0]))]
    )
    assert (steps[0], steps[-1]) == (5.0, 10.0)
    assert (mean[0], mean[-1]) == (3.0, 5.5)
    assert (low <= mean).all()
    assert (mean <= high).all()


def test_a_curve_has_one_value_for_each_number_of_decisions() -> None:
    """The rows of a run that fell back to a checkpoint at 10, and wrote its last row again after it was stopped."""
    steps, values = after_resumes(np.array([5.0, 10.0, 15.0, 12.0, 20.0, 20.0]), np.arange(6.0))
    assert steps.tolist() == [5.0, 10.0, 12.0, 20.0]
    assert values.tolist() == [0.0, 1.0, 3.0, 5.0]


def test_a_study_plans_every_combination_with_every_seed() -> None:
    planned = study(
        seeds=(3, 5), grid={"learner.learning_rate": (1e-3, 3e-3), "algorithm.magnet_weight": (0.1, 0.2)}
    ).planned()
    assert len(planned) == 8
    assert len({run.name for run in planned}) == 8
    assert planned[0].name == "learning_rate=0.001_magnet_weight=0.1-seed3"
    assert [run.seed for run in planned] == [3] * 4 + [5] * 4  # every setting has a result early


def test_random_settings_are_drawn_from_the_seed_of_the_study() -> None:
    space = LogUniform(path="learner.learning_rate", low=1e-4, high=1e-2)
    rates = [run.settings["learner.learning_rate"] for run in study(seeds=1, search=(space,), draws=3).planned()]
    assert len(set(rates)) == 3
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    again = study(seeds=1, search=(space,), draws=4).planned()
    assert [run.settings["learner.learning_rate"] for run in again][:3] == rates  # more draws keep those before
    other = study(seeds=1, search=(space,), draws=3, seed=1).planned()
    assert other[0].settings["learner.learning_rate"] != rates[0]


def test_drawn_settings_are_values_of_their_spaces() -> None:
    near_one = Uniform(path="algorithm.lambda_", low=0.9997, high=0.99999)
    precise = OneOf(path="algorithm.gamma", options=(0.99995, 0.9999, 0.99))
    planned = study(seeds=1, search=(near_one, precise), draws=10, optimiser="tpe").planned()
    assert {run.settings["algorithm.gamma"] for run in planned} == {*precise.options}
    assert {run.settings["algorithm.lambda_"] for run in planned} == {0.9997, 0.9998, 0.9999, 0.99999}  # never 1


RATES = (LogUniform(path="learner.learning_rate", low=1e-4, high=1e-2), OneOf(path="model.hidden", options=(8, 16)))


def test_an_optimiser_draws_from_what_it_has_seen() -> None:
    pytest.importorskip("optuna", reason="pip install -e '.[optuna]' adds optuna")
    tried = study(seeds=2, search=RATES, draws=17, optimiser="tpe", draws_at_once=3)
    first = tried.planned()
    assert len(first) == 2 * 10
    assert first == study(seeds=2, search=RATES, draws=10).planned()  # which begins as chance does

    def settings(results: list[float | None]) -> list[dict[str, Any]]:
        return [run.settings for run in tried.planned(results) if run.seed == 0]

    def rate(one: dict[str, Any]) -> float:
        return float(np.log(one["learner.learning_rate"]))

    high = [-rate(one) for one in settings([])]  # lower is better: a high rate
    assert settings(high)[:10] == settings([])
    assert len(settings(high)) == 13
    assert settings(high) == settings(high)
    further = settings([*high, None, *high[:2]])  # one that failed
    assert further[:13] == settings(high)
    assert len(further) == 16
    low = settings([-value for value in high])
    assert np.mean([rate(one) for one in further[10:]]) > np.mean([rate(one) for one in low[10:]]) + 1.0
    assert len(settings([0.5] * 16)) <= 17
    precise = (OneOf(path="algorithm.gamma", options=(0.99995, 0.9999)),)
    many = study(seeds=1, search=(*RATES, *precise), draws=12, optimiser="tpe").planned([0.5] * 10)
    assert {run.settings["algorithm.gamma"] for run in many} == {0.99995, 0.9999}


def test_what_does_not_fit_is_refused_before_anything_trains(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="named more than once"):
        study(settings={"budget": 1}, grid={"budget": (1, 2)})
    with pytest.raises(ValueError, match="search and draws go together"):
        study(draws=3)
    with pytest.raises(ValueError, match="chooses from search alone"):
        study(optimiser="tpe", grid={"learner.learning_rate": (1e-3,)})
    with pytest.raises(ConfigError, match=r"did you mean 'learner.learning_rate'"):
        study(grid={"learner.learning_rat": (1e-3,)}).run(tmp_path / "study")
    with pytest.raises(ConfigError, match="tree of connect_four cannot be walked"):
        study(experiment="connect_four").run(tmp_path / "study")
    with pytest.raises(ConfigError, match="has one team: use 'score'"):
        study(experiment="beacon", objective="rating").run(tmp_path / "study")
    with pytest.raises(ConfigError, match="did you mean 'random'"):
        study(objective="score", opponents=("randon",)).run(tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_file_has_the_fields_of_a_study(tmp_path: Path, ludus: Ludus) -> None:
    file = tmp_path / "rates.yaml"
    (tmp_path / "mine.py").write_text("from ludus.recipes.kuhn import experiment\n")
    file.write_text("experiment: mine.py:experiment\nseeds: [1, 2]\ngrid: {learner.learning_rate: [0.001, 0.002]}\n")
    loaded = Study.load(file)
    assert loaded.experiment == f"{tmp_path / 'mine.py'}:experiment"
    assert (loaded.seeds, loaded.grid) == ((1, 2), {"learner.learning_rate": (0.001, 0.002)})
    file.write_text("experiment: kuhn\nobjectve: score\n")
    code, _, errors = ludus("study", str(file))
    assert code == 2
    assert "did you mean 'objective'" in errors
    assert ludus("study", "show", str(tmp_path))[0] == 1
    assert front.Study is Study


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "low", "high"), [("score", -1, 1), ("win_rate", 0, 1), ("rating", -2000, 2000)])
def test_a_run_is_measured_against_fixed_opponents(tmp_path: Path, objective: str, low: float, high: float) -> None:
    measured = study(
        experiment="rps", seeds=1, settings=QUICK, objective=objective, opponents=("random", "rock"), episodes=100
    ).run(tmp_path / "study", quiet=True)
    assert measured.is_complete, str(measured)
    (one,) = measured.settings
    assert low < one.values[0] < high
    result = json.loads((tmp_path / "study/results/as_it_is-seed0.json").read_text())
    assert [*result["values"]] == (["rating"] if objective == "rating" else ["random", "rock"])


@pytest.mark.slow
def test_the_objective_may_be_what_a_trained_opponent_wins(tmp_path: Path) -> None:
    tried = study(
        experiment="rps", seeds=2, settings=QUICK, objective="exploiter_score", exploiter_budget=3_000, episodes=200
    )
    measured = tried.run(tmp_path / "study", quiet=True)
    assert measured.is_complete, str(measured)
    assert tried.lower_is_better
    assert all(-1.0 <= value <= 1.0 for value in measured.settings[0].values.values())
    assert [*json.loads((tmp_path / "study/results/as_it_is-seed0.json").read_text())["values"]] == ["exploiter"]
    (tmp_path / "study/results/as_it_is-seed0.json").unlink()  # measured again, it is the same
    assert tried.run(tmp_path / "study", quiet=True).to_dict() == measured.to_dict()
    assert not [*(tmp_path / "study/runs").glob("*/exploits/*/run.json")]


@pytest.mark.slow
def test_an_optimised_study_goes_on_with_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="pip install -e '.[optuna]' adds optuna")
    monkeypatch.setattr("ludus.study.FIRST_DRAWS", 2)
    tried = study(seeds=1, settings={**QUICK, "budget": 500}, search=RATES, draws=4, optimiser="tpe", draws_at_once=1)
    whole = tried.run(tmp_path / "study", quiet=True)
    assert whole.is_complete
    assert len(whole.settings) == len(whole.runs) == 4
    newest = max((tmp_path / "study/results").glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    newest.unlink()  # as if it had been killed there
    assert tried.run(tmp_path / "study", quiet=True).to_dict() == whole.to_dict()


@pytest.mark.slow
def test_a_failed_run_is_not_tried_again_in_every_round_of_an_optimiser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="pip install -e '.[optuna]' adds optuna")
    monkeypatch.setattr("ludus.study.FIRST_DRAWS", 1)
    (tmp_path / "fails.py").write_text(
        "import sys\n"
        "from ludus.recipes import kuhn\n"
        "def experiment():\n"
        "    if 'train' in sys.argv:\n"
        "        raise ValueError('the moon is in the way')\n"
        "    return kuhn.experiment()\n"
    )
    tried = study(
        experiment=f"{tmp_path / 'fails.py'}:experiment",
        seeds=1, search=RATES[:1], draws=3, optimiser="tpe", draws_at_once=1,
    )  # fmt: skip
    assert len(tried.run(tmp_path / "study", quiet=True).failures) == 3
    logs = [path.read_text() for path in (tmp_path / "study/logs").iterdir()]
    assert [log.count("$ ludus train") for log in logs] == [1, 1, 1]


@pytest.mark.slow
def test_failures_are_named_with_their_logs_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import os\n"
        "from ludus.recipes import kuhn\n"
        "def experiment():\n"
        f"    if 'train' in __import__('sys').argv and not os.path.exists({str(tmp_path / 'fixed')!r}):\n"
        "        raise ValueError('the moon is in the way')\n"
        "    return kuhn.experiment()\n"
    )
    tried = study(experiment=f"{tmp_path / 'fails.py'}:experiment", seeds=1, settings=QUICK)
    results = tried.run(tmp_path / "study", quiet=True)
    (failure,) = results.failures
    assert "ended with exit code 2: " in failure
    assert "the moon is in the way" in failure
    assert "logs/as_it_is-seed0.log" in failure
    assert failure in str(results)
    assert not results.is_complete
    (tmp_path / "fixed").touch()
    results = tried.run(tmp_path / "study", quiet=True)
    assert results.is_complete
    assert not results.failures
    written = (tmp_path / "study" / "results" / "as_it_is-seed0.json").stat().st_mtime_ns
    tried.run(tmp_path / "study", quiet=True)  # nothing is left to do
    assert (tmp_path / "study" / "results" / "as_it_is-seed0.json").stat().st_mtime_ns == written


def test_what_a_disk_has_changed_is_measured_again(tmp_path: Path, ludus: Ludus) -> None:
    tried = study(experiment="kuhn", seeds=2, settings={**QUICK, "budget": 500}, objective="nash_conv", grid={})
    whole = tried.run(tmp_path / "study", quiet=True).to_dict()
    result, facts = tmp_path / "study/results/as_it_is-seed0.json", tmp_path / "study/study.json"
    content, chance = result.read_bytes(), random.Random(5)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged) - 1)] ^= 1 << chance.randrange(8)
        result.write_bytes(damaged)
        shown = StudyResults(tmp_path / "study")
        assert [*shown.settings[0].values] == [1], bytes(damaged)
        assert "does not read: damaged" in shown.settings[0].failed[0]
    assert tried.run(tmp_path / "study", quiet=True).to_dict() == whole
    assert result.read_bytes() == content
    described = facts.read_bytes()
    facts.write_bytes(described.replace(b'"lower_is_better": true', b'"lower_is_better":false'))
    code, _, err = ludus("study", "show", str(tmp_path / "study"))
    assert (code, "study.json cannot be read: damaged: it does not have its digest" in err) == (1, True), err
    assert tried.run(tmp_path / "study", quiet=True).to_dict() == whole


def test_a_full_disk_is_named(tmp_path: Path, ludus: Ludus) -> None:
    (tmp_path / "study.yaml").write_text("{experiment: kuhn, seeds: 1, objective: nash_conv, settings: {budget: 500}}")
    (tmp_path / "study" / "logs").mkdir(parents=True)
    (tmp_path / "study" / "logs" / "as_it_is-seed0.log").symlink_to("/dev/full")
    code, _, err = ludus("study", "study.yaml", "--into", "study")
    assert (code, err) == (1, "error: study/logs/as_it_is-seed0.log: cannot write: No space left on device\n")


def test_a_study_under_other_settings_does_not_show_old_results(tmp_path: Path) -> None:
    """Until they are measured again: a table never mixes results of different commands."""
    for number in range(2):
        tried = study(
            experiment="kuhn", seeds=1, settings={**QUICK, "budget": 500 + number}, objective="nash_conv", grid={}
        )
        shown = tried.run(tmp_path / str(number), quiet=True)
        assert shown.is_complete
    shutil.copy(tmp_path / "0/results/as_it_is-seed0.json", tmp_path / "1/results/as_it_is-seed0.json")
    assert not StudyResults(tmp_path / "1").is_complete


def test_a_strange_study_is_refused_in_a_sentence(tmp_path: Path) -> None:
    run = {"name": "a", "setting": "x", "seed": 0, "settings": {}, "measured_by": []}
    facts = {"format": 1, "objective": "score", "lower_is_better": False, "player": "main", "runs": [run]}

    def written(**changed: Any) -> StudyResults:
        (tmp_path / "study.json").write_bytes(msgspec.json.encode(seal({**facts, **changed})))
        return StudyResults(tmp_path)

    with pytest.raises(RunFolderError, match="names a run that is not in it"):
        written(runs=[{**run, "name": "../a"}])
    with pytest.raises(RunFolderError, match=r"study\.json cannot be read"):
        written(runs=7)
    (tmp_path / "results").mkdir()
    strange: list[dict[str, Any]] = [
        {"value": "x"},
        {"value": 1.0, "values": [1]},
        {"value": 1.0},
        {"measured_by": None},
        {"value": [1], "values": {}},
    ]
    for one in strange:
        (tmp_path / "results/a.json").write_bytes(msgspec.json.encode(seal({"measured_by": [], **one})))
        assert len(written().failures) == 1, one
    (tmp_path / "results/a.json").unlink()
    os.mkfifo(tmp_path / "results/a.json")
    assert "not a regular file" in written().failures[0]
    metrics = tmp_path / "runs/a/metrics"
    metrics.mkdir(parents=True)
    (metrics / "train.jsonl").write_text(
        '{"decisions": [1], "x": 2}\n{"decisions": 1, "x": {}}\n{"decisions": 1, "x": 2}\n'
    )
    assert written().curves("x")["x"][0][1].tolist() == [2.0]


FILE = f"""
experiment: kuhn
seeds: 3
settings: {json.dumps({**QUICK, "budget": 30_000, "model.hidden": "16"})}
grid: {{learner.learning_rate: [0.001, 0.003]}}
objective: nash_conv
"""


def start(folder: Path, into: str) -> subprocess.Popen[bytes]:
    command = [*LUDUS, "study", "study.yaml", "--into", into, "--parallel", "2"]
    with (folder / f"{into}.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def trained_on(folder: Path) -> int:
    """Decisions of the runs of a study that are under way or done."""
    files = folder.glob("runs/*/metrics/train.jsonl")
    return sum(len(file.read_bytes().splitlines()) for file in files)


@pytest.mark.slow
def test_a_study_that_was_killed_and_resumed_ends_with_the_same_table(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(FILE)
    assert start(tmp_path, "whole").wait(600) == 0

    broken = start(tmp_path, "broken")
    wait_until(lambda: trained_on(tmp_path / "broken") > 10, "two runs that train")
    children = descendants(broken.pid)
    broken.kill()  # without a chance to save anything
    broken.wait()
    wait_until(lambda: all(map(is_gone, children)), "the runs to end with the study")

    broken = start(tmp_path, "broken")
    wait_until(lambda: len([*(tmp_path / "broken/results").glob("*.json")]) >= 2, "two results", 300)
    before = trained_on(tmp_path / "broken")
    wait_until(lambda: trained_on(tmp_path / "broken") > before + 4, "further runs")
    os.kill(broken.pid, signal.SIGTERM)
    assert broken.wait(120) == 130

    assert start(tmp_path, "broken").wait(600) == 0
    assert "begins again" in (tmp_path / "broken.log").read_text()  # what was killed; what was stopped goes on
    whole, again = (StudyResults(tmp_path / name) for name in ("whole", "broken"))
    assert whole.is_complete
    assert len(whole.settings) == 2
    assert len({value for one in whole.settings for value in one.values.values()}) == 6  # not all the same
    assert again.to_dict()["settings"] == whole.to_dict()["settings"]
    assert str(again) == str(whole)

    shown = subprocess.run(
        [*LUDUS, "study", "show", "broken", "--json", "--plot", "curves.csv", "--metric", "main/entropy"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert json.loads(shown.stdout)["settings"] == whole.to_dict()["settings"]
    with (tmp_path / "curves.csv").open() as file:
        points = [*csv.DictReader(file)]
    assert {(row["setting"], row["seed"]) for row in points} == {
        (f"learning_rate={rate}", seed) for rate in ("0.001", "0.003") for seed in "012"
    }
    for seed in "012":
        steps = [float(row["decisions"]) for row in points if row["seed"] == seed and row["setting"].endswith("0.001")]
        assert steps == sorted(set(steps))
        assert steps[-1] >= 30_000
    with pytest.raises(ConfigError, match=r"no run has a metric 'main/entropi'; did you mean 'main/entropy'"):
        again.curves("main/entropi")
    pytest.importorskip("matplotlib")
    for kind, sign in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("html", b"<!doctype html>")):
        again.plot(tmp_path / f"curves.{kind}", "main/entropy")
        assert (tmp_path / f"curves.{kind}").read_bytes().startswith(sign)
