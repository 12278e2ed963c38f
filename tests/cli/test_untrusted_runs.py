"""Run folders that somebody has sent: every command, with every part of a run that can name code.

Reading such a run executes nothing. Commands that need code refuse what came with the folder, unless --trust is given.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Ludus, exit_code

import ludus as front_door
from ludus.data.records import SettingsChanged
from ludus.evaluation.play.replays import replay_reader
from ludus.observe.view import RunView
from ludus.store.files import StoreError
from ludus.store.run_folder import RunFolder

READING = ("league RUN", "league RUN --json", "status RUN", "status RUN --json", "logs RUN", "report RUN",
           "models list RUN")  # fmt: skip
EXECUTING = (
    "eval RUN main random --episodes 2",
    "play RUN --terminal",
    "exploit RUN main",
    "compare RUN RUN",
    "train --run RUN --resume",
    "train kuhn --run RUN --resume-or-start",
    "record RUN main random --out replays --episodes 2",
    "convert RUN/replays --game RUN --out dataset",
    "clone --run RUN --resume",
    "models import RUN file.safetensors",
    "models pull RUN file.safetensors",
    "set RUN learner.learning_rate=0.1",
    "scale RUN actors=2",
    "league RUN add other --role main",
    "launch slurm kuhn --run RUN --dry-run",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    assert exit_code("train", "kuhn", "--run", str(path), "--quiet", *TINY) == 0
    return path


Experiment = dict[str, Any]
Part = Callable[[Experiment, str], None]


def main_role(experiment: Experiment) -> dict[str, Any]:
    role: dict[str, Any] = experiment["league"]["roles"]["main"]
    return role


def isolated(**fields: Any) -> dict[str, Any]:
    return {"type": "Isolated", "game": "kuhn", "options": {}, **fields}


PARTS: dict[str, Part] = {
    "game": lambda experiment, evil: experiment.update(game={"type": f"{evil}.py:Game"}),
    "isolated game": lambda experiment, evil: experiment.update(game=isolated(game=f"{evil}.py:Game")),
    "interpreter of a game": lambda experiment, evil: experiment.update(game=isolated(python=evil)),
    "folder of a game": lambda experiment, evil: experiment.update(game=isolated(logs=str(Path(evil).parent / "more"))),
    "network": lambda experiment, evil: experiment.update(model={"type": f"{evil}.py:Net"}),
    "algorithm": lambda experiment, evil: experiment.update(algorithm={"type": f"{evil}.py:Loss"}),
    "bot": lambda experiment, evil: experiment.update(bots={"evil": f"{evil}.py:Bot"}),
    "bot program": lambda experiment, evil: experiment.update(bots={"evil": f"program:sh '{evil}'"}),
    "inline program": lambda experiment, evil: experiment.update(
        bots={"evil": f"program:sh -c 'touch {Path(evil).parents[1]}/mark'"}
    ),
    "service": lambda experiment, evil: experiment.update(
        services={"evil": {"type": "UserService", "address": f"{evil}.py:Service"}}
    ),
    "matchmaking": lambda experiment, evil: main_role(experiment).update(matchmaking={"type": f"{evil}.py:Rule"}),
    "function": lambda experiment, evil: main_role(experiment).update(promotion={"$ref": f"{evil}.py:function"}),
    "file of an enumeration": lambda experiment, evil: main_role(experiment).update(
        restart={"$enum": f"{evil}.py:Kind", "name": "A"}
    ),
}
WAYS = ("absolute", "relative", "link in", "link out", "copied", "module", "ledger", "request")
"""How the name leads into the folder; all but the first are tried with one part."""


def plant(trained: Path, folder: Path, part: str, way: str) -> tuple[Path, Path]:
    """A run with a part that leaves a mark when it is executed, and the place of the mark."""
    run, mark = folder / "run", folder / "mark"
    shutil.copytree(trained, run)
    for file, text in {
        "evil.py": f"open({str(mark)!r}, 'w').close()\n",
        "evil": f"#!/bin/sh\ntouch {mark}\n",
        "evil_module.py": f"open({str(mark)!r}, 'w').close()\n",
    }.items():
        (run / file).write_text(text)
        (run / file).chmod(0o755)
    (run / "more").mkdir()
    written = json.loads((run / "run.json").read_text())
    evil = str(run / "evil")
    if way == "relative":
        evil = "run/evil"
    elif way == "link in":  # the link is elsewhere, what it leads to is inside
        (folder / "harmless.py").symlink_to(run / "evil.py")
        evil = str(folder / "harmless")
    elif way == "link out":  # the link is inside, what it leads to is elsewhere
        (run / "evil.py").rename(folder / "elsewhere.py")
        (run / "evil.py").symlink_to(folder / "elsewhere.py")
    elif way == "copied":  # names the folder that it is a copy of
        shutil.copytree(run, folder / "copy")
        run = folder / "copy"
    if way == "ledger":
        changed = {"league.roles.main.matchmaking": {"type": f"{evil}.py:Rule"}}
        with closing(RunFolder.open(run).ledger()) as ledger:
            ledger.append([SettingsChanged(settings=changed)])
    elif way == "request":
        (run / "requests").mkdir()
        asked = {"edit": "change_settings", "settings": {"league.roles.main.matchmaking": f"{evil}.py:Rule"}}
        (run / "requests" / "1.asked").write_text(json.dumps(asked))
    elif way == "module":
        written["experiment"]["game"] = {"type": "evil_module:Game"}
    else:
        PARTS[part](written["experiment"], evil)
    (run / "run.json").write_text(json.dumps(written))
    return run, mark


QUICK = (("interpreter of a game", "absolute"), ("game", "link in"))
"""Those that `make test` tries."""
MATRIX = [*((part, "absolute") for part in PARTS), *(("game", way) for way in WAYS[1:])]


@pytest.mark.parametrize(
    ("part", "way"), [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in MATRIX]
)
def test_a_run_executes_nothing_that_came_with_it(
    ludus: Ludus, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, way: str
) -> None:
    run, mark = plant(trained, tmp_path, part, way)
    if way == "module":
        monkeypatch.syspath_prepend(str(run))
    (tmp_path / "file.safetensors").write_bytes(b"")
    named = "run" if way == "relative" else str(run)
    for command in READING:
        code, _, err = ludus(*command.replace("RUN", named).split())
        assert (code, mark.exists()) == (0, False), f"{command}: {err}"
    for command in EXECUTING:
        code, out, err = ludus(*command.replace("RUN", named).split())
        assert (code != 0, mark.exists()) == (True, False), f"{command}: {out}{err}"
        assert "trust" in err or command.startswith(("clone", "scale")), f"{command}: {err}"
    view = RunView(RunFolder.open(run))
    view.look()
    view.follow()
    for document in ("overview", "league", "history", "top", "matches", "player/main"):
        view.encoded(document)
    with pytest.raises((ValueError, OSError)):
        replay_reader(view.folder)("none.replay")
    for use in (front_door.Run(run).experiment, front_door.Run(run).load_agent, lambda: front_door.load_agent(run)):
        with pytest.raises(StoreError, match="trust=True"):
            use()
    assert not mark.exists()


def test_with_trust_it_does(ludus: Ludus, trained: Path, tmp_path: Path) -> None:
    run, mark = plant(trained, tmp_path, "game", "absolute")
    code, _, err = ludus("eval", str(run), "main", "random", "--episodes", "2", "--trust")
    assert (code, mark.exists()) == (2, True), err  # it has no game, but it was asked
    mark.unlink()
    code, _, err = ludus("eval", str(run), "main", "random", "--episodes", "2")
    assert not mark.exists()  # trust is for one command
    assert f"names '{run}/evil.py:Game' in run.json" in err


def test_a_run_without_code_of_its_own_needs_no_trust(ludus: Ludus, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    code, _, err = ludus("eval", str(tmp_path / "copy"), "main", "random", "--episodes", "2")
    assert code == 0, err
