"""`ludus train --resume-or-start`: what a job runs, however often it is started."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import TINY, Ludus, rows


def test_a_run_is_begun_and_then_gone_on_with(ludus: Ludus) -> None:
    job = ("train", "rps", "--run", "mine", "--resume-or-start", *TINY, "--json")
    code, out, _ = ludus(*job)
    assert (code, rows(out)[-1]["end"]) == (0, "finished")

    # What was changed since is not taken back by the settings that the run began with.
    assert ludus("set", "mine", "learner.learning_rate=1e-4", "budget=8000")[0] == 0
    code, out, _ = ludus(*job)
    assert (code, rows(out)[-1]["end"]) == (0, "finished")
    settings = json.loads(ludus("league", "mine", "--json")[1])["settings"]
    assert settings == {"learner.learning_rate": 1e-4, "budget": 8000}
    assert rows(ludus("train", "--run", "mine", "--resume", "--json")[1])[-1]["end"] == "finished"


def test_the_folder_must_be_named(ludus: Ludus) -> None:
    code, _, errors = ludus("train", "rps", "--resume-or-start")
    assert code == 2
    assert "--resume-or-start needs --run" in errors


def test_a_run_with_other_settings_is_refused_with_the_difference(ludus: Ludus, tmp_path: Path) -> None:
    job = ("train", "rps", "--run", "mine", "--resume-or-start", *TINY, "--json")
    assert ludus(*job, "--set", "learner.learning_rate=1e-3")[0] == 0
    before = (tmp_path / "mine" / "run.json").read_bytes()
    code, _, errors = ludus(*job, "--set", "learner.learning_rate=1e-4")
    assert code == 2
    assert "learner.learning_rate: 0.001 in the run, 0.0001 asked for" in errors
    assert "ludus train --run mine --resume" in errors
    code, _, errors = ludus("train", "kuhn", "--run", "mine", "--resume-or-start")
    assert code == 2
    assert "name: rps in the run, kuhn asked for" in errors
    assert (tmp_path / "mine" / "run.json").read_bytes() == before
    # Where it computes may differ from one start to the next, and a changed value may be named as it is now.
    assert ludus("set", "mine", "learner.learning_rate=1e-4")[0] == 0
    assert ludus(*job, "--set", "learner.learning_rate=1e-4", "--runtime", "serial")[0] == 0


def test_the_start_of_a_schedule_is_a_setting_like_others(ludus: Ludus) -> None:
    job = ("train", "rps", "--run", "mine", "--resume-or-start", *TINY, "--json", "--set")
    falling = 'learner.learning_rate={{"type": "Linear", "start": {}, "end": 0.001}}'
    assert ludus(*job, falling.format(0.01))[0] == 0
    code, _, errors = ludus(*job, falling.format(0.02))
    assert (code, "learner.learning_rate.start: 0.01 in the run, 0.02 asked for" in errors) == (2, True)
