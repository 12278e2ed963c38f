"""Run folders that somebody has sent: every command, with every part of a run that can name code.

Reading such a run executes nothing. Commands that need code refuse what came with the folder, unless --trust is given.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import TINY, Ludus, exit_code

import ludus as front_door
from ludus.data.records import SettingsChanged
from ludus.data.replay import INDEX, SUFFIX, decode_replay, encode_replay
from ludus.evaluation.play.replays import replay_reader
from ludus.observe.run_list import RunList
from ludus.observe.view import RunView
from ludus.store.files import StoreError
from ludus.store.run_folder import RunFolder

READING = ("league RUN", "league RUN --json", "status RUN", "status RUN --json", "logs RUN", "report RUN",
           "models list RUN", "doctor RUN", "doctor RUN --json")  # fmt: skip
EXECUTING = (
    "eval RUN main random --episodes 2",
    "play RUN --terminal",
    "exploit RUN main",
    "compare RUN RUN",
    "tournament RUN bot:random --into results.jsonl",
    "export RUN main --to agent.json",
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
    "serve RUN",
    "check RUN",
)
NO_RUN = ("clone", "scale", "serve", "check")
"""Commands that refuse this run for another reason: it was not cloned, has a serial runtime, or is no game."""


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


def engine(*command: str, **fields: Any) -> dict[str, Any]:
    return {"type": "Engine", "command": [*command], **fields}


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
    "engine": lambda experiment, evil: experiment.update(game=engine(evil)),
    "inline engine": lambda experiment, evil: experiment.update(
        game=engine("sh", "-c", f"touch {Path(evil).parents[1]}/mark")
    ),
    "folder of programs of an engine": lambda experiment, evil: experiment.update(
        game=engine("evil", environment={"PATH": f"{Path(evil).parent.name}:/usr/bin:/bin"})
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
WAYS = ("absolute", "relative", "link in", "link out", "copied", "odd name", "module", "ledger", "request")
"""How the name leads into the folder; all but the first are tried with one part."""


def plant(trained: Path, folder: Path, part: str, way: str) -> tuple[Path, Path]:
    """A run with a part that leaves a mark when it is executed, and the place of the mark."""
    run, mark = folder / ("a run, @1 (old)" if way == "odd name" else "run"), folder / "mark"
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
        code, _, err = ludus(*(word.replace("RUN", named) for word in command.split()))
        assert (code, mark.exists()) == (0, False), f"{command}: {err}"
    for command in EXECUTING:
        code, out, err = ludus(*(word.replace("RUN", named) for word in command.split()))
        assert (code != 0, mark.exists()) == (True, False), f"{command}: {out}{err}"
        assert "trust" in err or command.startswith(NO_RUN), f"{command}: {err}"
    view = RunView(RunFolder.open(run))
    view.look()
    view.follow()
    for document in ("overview", "league", "history", "top", "matches", "player/main"):
        view.encoded(document)
    runs = RunList(run.parent)
    runs.look()
    while runs.follow():
        pass
    assert json.loads(runs.encoded("runs")[0])["runs"][0]["is_read"]
    runs.encoded_comparison({"run": runs.run_keys(), "of": ["metric"]})
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


def test_a_study_executes_nothing_that_came_with_its_folder(ludus: Ludus, trained: Path, tmp_path: Path) -> None:
    """Code may also lie beside its runs."""
    (tmp_path / "study.yaml").write_text("{experiment: kuhn, seeds: 1, objective: nash_conv, settings: {budget: 500}}")
    assert ludus("study", "study.yaml", "--into", "study", "--quiet")[0] == 0
    run, mark = tmp_path / "study" / "runs" / "as_it_is-seed0", tmp_path / "mark"
    (tmp_path / "study" / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    written = json.loads((run / "run.json").read_text())
    written["experiment"]["game"] = {"type": f"{tmp_path}/study/evil.py:Game"}
    (run / "run.json").write_text(json.dumps(written))
    (tmp_path / "study" / "results" / "as_it_is-seed0.json").unlink()
    for command in ("study show study", "study show study --plot curves.csv", f"league {run}", f"report {run}"):
        assert (ludus(*command.split())[0], mark.exists()) == (0, False), command
    code, out, _ = ludus("study", "study.yaml", "--into", "study")
    assert (code, mark.exists()) == (1, False)
    assert "lies inside a run folder: it would be executed" in out
    assert ludus("study", "study.yaml", "--into", "study", "--trust")[0] == 1
    assert mark.exists(), "it was asked to"


# --- watch, as a command ---


def documents_of(run: Path, *names: str) -> dict[str, int]:
    """Start `ludus watch` as a user does, ask for documents, and end it. Returns the status of each answer."""
    command = [sys.executable, "-m", "ludus.cli.main", "watch", str(run), "--no-open"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=run, env=environment) as watching:
        try:
            assert watching.stdout is not None
            found = re.search(r":(\d+)/", watching.stdout.readline())
            assert found is not None
            return {name: status_of_answer(f"http://127.0.0.1:{found[1]}/{name}") for name in names}
        finally:
            watching.terminate()


def status_of_answer(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("part", "way"), [pytest.param(*one, marks=() if one in QUICK[:1] else pytest.mark.slow) for one in MATRIX]
)
def test_watching_a_run_executes_nothing_that_came_with_it(trained: Path, tmp_path: Path, part: str, way: str) -> None:
    run, mark = plant(trained, tmp_path, part, way)
    hostile_replay(run / "replays", recorded(tmp_path), run, "file")
    found = documents_of(
        run, "data/overview", "data/league", "data/matches", "data/player/main", f"replays/file{SUFFIX}"
    )
    assert [*found.values()][:4] == [200] * 4
    assert [*found.values()][4] != 200
    among = [f"run/{run.name}/{name}" for name in ("", "data/league", "data/player/main")] if way == "absolute" else []
    found = documents_of(run.parent, "data/runs", "data/compare", *among)
    assert {*found.values()} == {200}
    assert not mark.exists()


# --- other files of a folder ---


def test_a_field_of_a_built_in_game_executes_nothing(ludus: Ludus, trained: Path, tmp_path: Path) -> None:
    """Of a run.json that does not say how many seats the game has, so that the game is asked."""
    run, mark = plant(trained, tmp_path, "game", "absolute")
    written = json.loads((run / "run.json").read_text())
    written.pop("game", None)
    written["experiment"]["game"] = {"type": "ConnectFour", "threats": {"$ref": f"{run}/evil.py:anything"}}
    (run / "run.json").write_text(json.dumps(written))
    for command in READING:
        ludus(*(word.replace("RUN", str(run)) for word in command.split()))
        assert not mark.exists(), command
    assert "does not say how many seats" in ludus("league", str(run))[2]


def test_the_settings_of_a_cloning_execute_nothing(ludus: Ludus, trained: Path, tmp_path: Path) -> None:
    run, mark = tmp_path / "run", tmp_path / "mark"
    shutil.copytree(trained, run)
    (run / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    facts = {"recipe": "kuhn", "player": "main", "dataset": "data", "digest": "", "outcome": None, "network": []}
    (run / "cloning.json").write_text(json.dumps({**facts, "settings": {"type": f"{run}/evil.py:Settings"}}))
    code, _, err = ludus("clone", "--run", str(run), "--resume")
    assert (code != 0, mark.exists()) == (True, False)
    assert f"names '{run}/evil.py:Settings' in cloning.json" in err
    ludus("clone", "--run", str(run), "--resume", "--trust")
    assert mark.exists(), "it was asked to"


def test_rows_of_faults_that_are_odd_are_counted(ludus: Ludus, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    odd = [{"time": 1.0, "worker": "x", "class": "killed"}, {}, {"class": [1], "then": 5}, {"class": None, "then": {}}]
    good = {"class": "killed", "then": "started again"}
    text = "".join(f"{json.dumps(row)}\n" for row in (*odd, good))
    (tmp_path / "run" / "metrics" / "faults.jsonl").write_text(text)
    code, out, err = ludus("league", str(tmp_path / "run"), "--json")
    assert code == 0, err
    shown = json.loads(out)
    assert shown["faults"] == {"killed": 2, "unknown": 3}
    assert shown["restarts"] == {"killed": 1}


PIPES = ("run.json", "status.json", "lock.json", "league.fold", "metrics/train.jsonl", "metrics/faults.jsonl",
         "logs/evil.log", "ledger.db", "ledger.db-journal", "run.1.json", "replays/evil.replay")  # fmt: skip


@pytest.fixture
def impatient() -> Iterator[None]:
    """Ends what waits for a pipe."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("file", PIPES)
def test_a_pipe_keeps_no_reader_waiting(ludus: Ludus, trained: Path, tmp_path: Path, file: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    view = RunView(RunFolder.open(run))
    (run / file).parent.mkdir(exist_ok=True)
    (run / file).unlink(missing_ok=True)
    os.mkfifo(run / file)
    for command in ("league RUN --json", "status RUN --json", "logs RUN", "doctor RUN", "report RUN"):
        code, _, err = ludus(*(word.replace("RUN", str(run)) for word in command.split()))
        assert code == 0 or (Path(file).name in err and "regular file" in err) or file == "ledger.db", (command, err)
    with suppress(OSError, StoreError):  # the page tells it
        view.look()
        view.follow()
    runs = RunList(tmp_path)
    runs.look()
    runs.follow()
    assert json.loads(runs.encoded("runs")[0])["runs"][0]["key"] == "run"


# --- replays, datasets and models ---

HOSTILE_REPLAYS: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    "file": lambda evil: (f"{evil}/evil.py:Game", {}),
    "module": lambda evil: ("evil_module:Game", {}),
    "module of a library": lambda evil: ("pettingzoo:evil_package.env_v0", {}),
    "address in a library": lambda evil: (f"gymnasium:{evil}/evil.py:Env", {}),
    "program of a game": lambda evil: ("gamecore:1v1", {"bridge": f"sh {evil}/evil"}),
    "interpreter of a game": lambda evil: ("gamecore:1v1", {"python": f"{evil}/evil"}),
    "environment behind another": lambda evil: (
        "gymnasium:GymV26Environment-v0",
        {"options": {"env_id": "evil_module:Env-v0"}},
    ),
    "scenario that is a file": lambda evil: (f"vizdoom:{evil}/evil.cfg", {}),
    "option that is code": lambda evil: ("kuhn", {"cards": {"$ref": f"{evil}/evil.py:cards"}}),
}


def recorded(folder: Path) -> Path:
    """A replay of kuhn."""
    assert exit_code("record", "kuhn", "random", "random", "--out", str(folder / "good"), "--episodes", "1") == 0
    return next((folder / "good").glob(f"*{SUFFIX}"))


def hostile_replay(target: Path, good: Path, evil: Path, kind: str) -> None:
    game, options = HOSTILE_REPLAYS[kind](evil)
    target.mkdir(exist_ok=True)
    replay = msgspec.structs.replace(decode_replay(good.read_bytes()), game=game, options=options)
    (target / f"{kind.replace(' ', '_')}{SUFFIX}").write_bytes(encode_replay(replay))


def evil_folder(folder: Path) -> tuple[Path, Path]:
    """A folder with code and a program that leave a mark, and the place of the mark."""
    evil, mark = folder / "sent", folder / "mark"
    (evil / "evil_package").mkdir(parents=True)
    for file in ("evil.py", "evil_module.py", "evil_package/__init__.py", "evil_package/env_v0.py"):
        (evil / file).write_text(f"open({str(mark)!r}, 'w').close()\n")
    (evil / "evil").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (evil / "evil").chmod(0o755)
    return evil, mark


def test_a_replay_chooses_no_code_and_no_program(
    ludus: Ludus, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil, mark = evil_folder(tmp_path)
    monkeypatch.syspath_prepend(str(evil))
    good = recorded(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    read = replay_reader(RunFolder.open(run))
    for kind in HOSTILE_REPLAYS:
        hostile_replay(run / "replays", good, evil, kind)
        name = f"{kind.replace(' ', '_')}{SUFFIX}"
        code, _, err = ludus("convert", str(run / "replays" / name), "--out", str(tmp_path / "data"))
        assert (code != 0, mark.exists()) == (True, False), f"{kind}: {err}"
        with pytest.raises(ValueError):  # noqa: PT011  the page shows its text
            read(name)
        assert not mark.exists(), kind
    assert ludus("report", str(run))[0] == 0
    assert not mark.exists()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("openspiel:efg_game(filename=PIPE)", {}),
        ("openspiel:repeated_game(stage_game=nfg_game( filename = PIPE),num_repetitions=2)", {}),
        ("openspiel:efg_game", {"options": {"filename": "PIPE"}}),
        ("openspiel:turn_based_simultaneous_game", {"options": {"game": {"name": "nfg_game", "filename": "PIPE"}}}),
        ("openspiel:crossword", {"options": {"puzzles_root": "PIPE"}}),
        ("microrts:PIPE", {}),
        ("gymnasium:Ant-v5", {"options": {"xml_file": "PIPE"}}),
    ],
)
def test_a_replay_chooses_no_file(ludus: Ludus, tmp_path: Path, game: str, options: dict[str, Any]) -> None:
    """A library would open it, and say in an error what is in it."""
    os.mkfifo(tmp_path / "pipe")  # hangs whoever opens it
    good = decode_replay(recorded(tmp_path).read_bytes())
    at = str(tmp_path / "pipe")
    chosen = json.loads(json.dumps(options).replace("PIPE", at))
    bad = msgspec.structs.replace(good, game=game.replace("PIPE", at), options=chosen)
    (tmp_path / f"bad{SUFFIX}").write_bytes(encode_replay(bad))
    code, _, err = ludus("convert", str(tmp_path / f"bad{SUFFIX}"), "--out", str(tmp_path / "data"))
    assert code != 0
    assert "name it with --game if you trust it" in err


def test_a_dataset_chooses_no_code_and_no_file(ludus: Ludus, tmp_path: Path) -> None:
    evil, mark = evil_folder(tmp_path)
    good, data = recorded(tmp_path), tmp_path / "data"
    assert exit_code("convert", str(good), "--out", str(data), "--quiet") == 0
    index = json.loads((data / INDEX).read_text())
    code_address = f"{evil}/evil.py:Part"
    changes: list[dict[str, Any]] = [
        {"kind": {**index["kind"], "observation": {"x": {"type": code_address, "$ref": code_address}}}},
        {"kind": {"type": code_address}},
        {"columns": [{**index["columns"][0], "file": "../sent/evil.py"}, *index["columns"][1:]]},
        {"columns": [{**index["columns"][0], "stored": "O"}, *index["columns"][1:]]},
        {"game": code_address, "settings": {"$ref": code_address}, "format": -1},
    ]
    for change in changes:
        (data / INDEX).write_text(json.dumps({**index, **change}))
        code, _, err = ludus("clone", str(data), "kuhn", "--run", str(tmp_path / "cloned"), "--steps", "1")
        assert (code != 0, mark.exists(), "Traceback" in err) == (True, False, False), f"{change}: {err}"


class Opens:
    """Executes when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._path), "w")


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.bin", "model.ckpt", "model.safetensors", "model.npz"])
def test_a_model_file_executes_nothing(ludus: Ludus, trained: Path, tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    (tmp_path / name).write_bytes(pickle.dumps({"weights": Opens(mark)}))
    for command in ("import", "pull"):
        code, _, err = ludus("models", command, str(trained), str(tmp_path / name))
        assert (code != 0, mark.exists()) == (True, False), err
    pickle.loads((tmp_path / name).read_bytes())["weights"].close()
    assert mark.exists(), "it would have"
