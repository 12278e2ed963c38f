"""`ludus train --resume-or-start`: what a job runs, however often it is started."""

from __future__ import annotations

import json

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
