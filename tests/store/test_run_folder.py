"""Run folders: made whole, opened by any command, trained by one process at a time."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ludus.data.records import ModelId, RunStarted
from ludus.store.files import BadName, locked
from ludus.store.run_control import Holder, RunLocked, read_holder
from ludus.store.run_folder import FORMAT, NewRun, RunFolder, RunFolderError, UntrustedCode

LOCKER = (
    "import sys; from ludus.store.run_folder import RunFolder\n"
    "with RunFolder.open(sys.argv[1]).lock(): print('locked', flush=True); sys.stdin.read()\n"
)


@dataclass(frozen=True)
class Experiment:
    game: str = "connect_four"
    rate: float = 0.1


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", Experiment(), seed=2**64 - 1, command=["ludus", "train"])


def start_locker(run: RunFolder) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOCKER, str(run.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_run_opens_as_it_was_made(run: RunFolder) -> None:
    opened = RunFolder.open(run.path)
    assert opened == run
    assert opened.facts.seed == 2**64 - 1
    assert opened.facts.command == ("ludus", "train")
    assert msgspec.json.decode(opened.facts.experiment, type=Experiment) == Experiment()
    assert sorted(os.listdir(run.path)) == ["checkpoints", "ledger.db", "logs", "metrics", "models", "run.json"]


def test_its_parts_lie_inside(run: RunFolder) -> None:
    with run.ledger() as ledger, run.ledger(read_only=True) as reader:
        ledger.append([RunStarted(0)])
        assert reader.counts() == {"run_started": 1}
    run.models.publish(ModelId("main", 0, 0), {"w": np.ones(2)}, parent=None, facts={})
    file = run.checkpoints("../main").save(1, {}, {})
    assert file.resolve().is_relative_to(run.path.resolve() / "checkpoints")
    assert sorted(os.listdir(run.path)) == [
        "checkpoints", "ledger.db", "logs", "metrics", "models", "run.json"
    ]  # fmt: skip
    assert run.metrics.is_dir()
    assert run.logs.is_dir()


def test_experiments_are_json(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "a", b'{"rate": 0.10}', seed=0)
    assert msgspec.json.decode(RunFolder.open(run.path).facts.experiment) == {"rate": 0.1}
    assert run.facts.command == tuple(sys.argv)
    with pytest.raises(ValueError, match="the experiment is not JSON"):
        RunFolder.create(tmp_path / "b", b"{rate: 1}", seed=0)
    with pytest.raises(ValueError, match="not JSON compliant"):
        RunFolder.create(tmp_path / "b", Experiment(rate=float("inf")), seed=0)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(tmp_path: Path, seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed {seed}"):
        RunFolder.create(tmp_path / "run", Experiment(), seed=seed)


def test_nothing_is_overwritten(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is a run already; resume it"):
        RunFolder.create(run.path, Experiment(), seed=0)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("")
    with pytest.raises(RunFolderError, match=r"holds other things \(thesis\.tex\)"):
        RunFolder.create(tmp_path / "home", Experiment(), seed=0)
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.create(tmp_path / "home" / "thesis.tex", Experiment(), seed=0)
    (tmp_path / "half" / "models").mkdir(parents=True)  # a creation that was killed
    assert RunFolder.create(tmp_path / "half", Experiment(), seed=0).path.is_dir()


def test_what_is_not_a_run_is_named_with_what_to_do(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=rf"no run folder {tmp_path}/rum; runs there are {run.path}"):
        RunFolder.open(tmp_path / "rum")
    with pytest.raises(RunFolderError, match=rf"{tmp_path} is not a run folder.*runs there are {run.path}"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match=r"no run folder .*; start one with `ludus train`"):
        RunFolder.open(tmp_path / "no" / "where")
    (run.path / "run.json").write_text('{"format": 1}')
    with pytest.raises(RunFolderError, match=r"run\.json is damaged"):
        RunFolder.open(run.path)


@pytest.mark.parametrize(("number", "end"), [(4, "r3$"), (5, "r3 and 1 more$"), (16, "r3 and 12 more$")])
def test_of_many_runs_a_few_are_named_and_the_others_counted(tmp_path: Path, number: int, end: str) -> None:
    for index in range(number):
        RunFolder.create(tmp_path / "runs" / f"r{index:x}", Experiment(), seed=0)
    with pytest.raises(RunFolderError, match=end):
        RunFolder.open(tmp_path / "runs" / "gone")


def test_a_newer_format_is_refused_with_both_versions(run: RunFolder) -> None:
    (run.path / "run.json").write_text(f'{{"format": {FORMAT + 4}, "ludus": "9.0", "novelty": []}}')
    with pytest.raises(RunFolderError, match=rf"format {FORMAT + 4} \(ludus 9\.0\).*reads format {FORMAT}: update"):
        RunFolder.open(run.path)


def made(name: str, root: Path) -> Path:
    new = NewRun(None, name, root=root)
    with new.build() as path:
        RunFolder.create(path, Experiment(), seed=0)
    return new.folder.path


def test_new_names_are_the_first_free(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "runs"
    names = [made("connect_four", root) for _ in range(3)]
    assert names == [root / f"connect_four-{number:03d}" for number in (1, 2, 3)]
    shutil.rmtree(names[1])
    names[1].mkdir()  # of a start that never was
    assert made("connect_four", root) == names[1]
    (root / "connect_four-004").write_text("a file")
    assert made("connect_four", root) == root / "connect_four-005"
    assert made("../../x", root).resolve().parent == root.resolve()
    with pytest.raises(BadName, match="recipe"):
        made("a\nb", root)


def test_a_run_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    new = NewRun(tmp_path / "runs" / "mine", "any")

    def fail() -> None:
        with new.build() as path:
            RunFolder.create(path, Experiment(), seed=0)
            assert not (tmp_path / "runs" / "mine").exists()
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        fail()
    assert list((tmp_path / "runs").iterdir()) == []
    with new.build() as path:
        RunFolder.create(path, Experiment(), seed=0)
    assert list((tmp_path / "runs").iterdir()) == [new.folder.path]
    with new.folder.ledger(read_only=True) as ledger:
        assert ledger.position[0] == 0


def test_what_a_dead_creation_left_is_taken_over_or_removed(run: RunFolder, tmp_path: Path) -> None:
    stages = [tmp_path / f".{digit * 16}.new" for digit in "ab"]
    for stage in stages:
        (stage / "models").mkdir(parents=True)
    with locked(stages[1]):  # its process lives
        made("x", tmp_path)
    assert [stage.exists() for stage in stages] == [False, True]
    (run.path / "run.json").unlink()
    assert RunFolder.create(run.path, Experiment(), seed=0).path == run.path
    (run.path / "run.json").unlink()
    with run.ledger() as ledger:
        ledger.append([RunStarted(0)])
    with pytest.raises(RunFolderError, match=r"holds other things \(ledger\.db\)"):
        RunFolder.create(run.path, Experiment(), seed=0)


def test_a_folder_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    """Also if it has files that look like our temporary ones."""
    (tmp_path / "deep").mkdir()
    for file in (tmp_path / "letter.txt", tmp_path / "deep" / ".0123456789abcdef.tmp"):
        file.write_text("mine")
    with pytest.raises(RunFolderError, match="holds other things"):
        RunFolder.require_free(tmp_path)
    assert (tmp_path / "deep" / ".0123456789abcdef.tmp").exists()


@pytest.mark.parametrize("name", ["run", "my run", "runs, old", "10:30", "it's", "(1)"])
@pytest.mark.parametrize(
    "text",
    [
        "RUN/evil.py:Game",
        "RUN/not there yet.py:Game",
        "program:QUOTED/evil now",
        "program:sh QUOTED/evil",
        "program:QUOTED/ev\\il",
        "program:QUOTED/ev''il",
        "program:perl -IQUOTED -Mevil",
        "program:node --require=QUOTED/evil.js",
        "program:python -m evil",
        "program:python -mevil",
        "program:python logs",
        "logs:Game",
        "logs.more:Game",
        "evil",
        "evil.sub",
        "program:sh -c reboot",
        "program:python -c'import os'",
        "program:python -cimport\\ os",
        "program:perl -e'unlink(shift)'",
        "program:awk 'BEGIN{system(1)}'",
        "program:node --eval=1",
        "program:sh 'unfinished",
    ],
)
def test_no_way_to_name_code_in_a_run_folder_goes_without_trust(
    text: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    named = text.replace("RUN", str(path)).replace("QUOTED", shlex.quote(str(path)))
    run = RunFolder.create(path, Experiment(game=named), seed=0, command=())
    for file in ("evil", "evil.py", "logs/__init__.py"):
        (path / file).touch()
    monkeypatch.chdir(path)
    monkeypatch.syspath_prepend("")
    run.require_own_code()
    with pytest.raises(UntrustedCode, match="add --trust"):
        RunFolder.open(path).require_own_code()


@pytest.mark.parametrize(
    "text",
    [
        "connect_four",
        "openspiel:hex",
        "main:0:12",
        "logs",
        "models.patience_s",
        "run",
        "runs/other#main",
        "program:node bot.js --depth 5 -p 300",
        "program:python -m http.server",
        "redis://host:6379/0",
        "#  #\n" * 100,
    ],
)
def test_a_run_that_names_nothing_of_its_own_needs_no_trust(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunFolder.create(tmp_path / "run", Experiment(game=text), seed=0, command=())
    monkeypatch.syspath_prepend("")
    for folder in (tmp_path, tmp_path / "run"):
        monkeypatch.chdir(folder)
        RunFolder.open(tmp_path / "run").require_own_code()


def test_a_run_is_trained_by_one_process(run: RunFolder) -> None:
    process = start_locker(run)
    with pytest.raises(RunLocked, match=f"process {process.pid} on host {socket.gethostname()}"), run.lock():
        pass
    holder = run.holder()
    assert holder is not None
    assert holder.pid == process.pid
    process.communicate(timeout=10)  # leaves in good order
    assert run.holder() is None
    with run.lock() as own:
        assert own.pid == os.getpid()
        assert run.holder() == own
        with pytest.raises(RunLocked, match=f"process {os.getpid()}"), run.lock():
            pass
        assert run.holder() == own
    assert run.holder() is None


def test_a_killed_holder_never_keeps_the_lock(run: RunFolder) -> None:
    process = start_locker(run)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
    try:
        named = read_holder(run.path / "lock.json")
        assert named is not None
        assert named.pid == process.pid
        assert run.holder() is None
        with run.lock() as own:
            assert own.pid == os.getpid()
    finally:
        end(process)


def test_a_reused_process_number_is_not_the_holder(run: RunFolder) -> None:
    process = start_locker(run)
    named = run.holder()
    assert named is not None
    impostor = msgspec.structs.replace(named, started="an earlier process")
    end(process)
    living = msgspec.structs.replace(impostor, pid=os.getppid())
    (run.path / "lock.json").write_bytes(msgspec.json.encode(living))
    assert run.holder() is None
    with run.lock() as own:
        assert run.holder() == own


def test_a_living_holder_is_respected_where_the_kernel_forgot_it(run: RunFolder) -> None:
    process = start_locker(run)
    try:
        text = (run.path / "lock.json").read_bytes()
        (run.path / "lock.json").unlink()
        (run.path / "lock.json").write_bytes(text)  # another file: nobody has locked this one
        with pytest.raises(RunLocked, match=f"process {process.pid}"), run.lock():
            pass
    finally:
        end(process)


def test_a_copy_of_a_run_that_trains_is_held_by_nobody(run: RunFolder, tmp_path: Path) -> None:
    process = start_locker(run)
    try:
        copy = RunFolder.open(shutil.copytree(run.path, tmp_path / "copy"))
        assert copy.holder() is None
        with copy.lock() as own:
            assert copy.holder() == own
        moved = RunFolder.open(run.path.rename(tmp_path / "moved"))
        with pytest.raises(RunLocked, match=f"process {process.pid}"), moved.lock():
            pass
    finally:
        end(process)


def test_a_holder_elsewhere_is_shown_but_the_kernel_decides(run: RunFolder) -> None:
    elsewhere = Holder(7, "some-other-host", "then")
    (run.path / "lock.json").write_bytes(msgspec.json.encode(elsewhere))
    assert run.holder() == elsewhere
    with run.lock() as own:
        assert run.holder() == own


def test_a_lock_file_that_is_removed_lets_nobody_in(run: RunFolder) -> None:
    process = start_locker(run)
    try:
        (run.path / "lock.json").unlink()
        with pytest.raises(RunLocked, match=f"run {run.path} is being trained by another process"), run.lock():
            pass
        assert not (run.path / "lock.json").exists()
    finally:
        end(process)
    with run.lock() as own:
        assert run.holder() == own


def test_a_forked_child_does_not_keep_the_lock(run: RunFolder) -> None:
    code = (
        "import os, sys, time; from ludus.store.run_folder import RunFolder\n"
        "with RunFolder.open(sys.argv[1]).lock():\n"
        "    child = os.fork()\n"
        "    if child == 0: os.close(1); time.sleep(60); os._exit(0)\n"
        "    print(child, flush=True); os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", code, str(run.path)]
    orphan = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout)
    try:
        with run.lock():
            pass
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_taking_the_lock_clears_what_the_dead_left(run: RunFolder) -> None:
    aside = run.path / "models" / f".{'a' * 16}.tmp"
    aside.write_bytes(b"half")
    with run.lock():
        assert not aside.exists()
