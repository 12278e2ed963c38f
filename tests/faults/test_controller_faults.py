"""Rows of the fault reference that befall the controller, or everything at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from invariants import check_nothing_left, check_run
from processes import descendants, wait_until, workers
from tiny_runs import BATCH, LOCAL, QUICK, RAY, create, faults_of, kill, kill_all, local, started, stop, tiny

from ludus.data.records import MatchFinished, PlayerAdded, PlayerReset
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.runtime import launcher
from ludus.runtime.assemble import load_experiment
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.system.process import BadMessage, PeerGone, control_pair, receive, send
from ludus.workers.messages import CODE, OTHER_CODE, FromActor, Launch, NextMatch
from ludus.workers.worker import TrainingFailed

HERE = Path(__file__).parent


def die(path: Path, place: str) -> list[int]:
    """A serial run in a process that is killed at a place; the matches whose results it had acknowledged."""
    done = subprocess.run([sys.executable, str(HERE / "dying_runs.py"), str(path), place], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    noted = path.with_suffix(".acknowledged")
    return [int(line) for line in noted.read_text().split()] if noted.exists() else []


def go_on(path: Path) -> None:
    folder = RunFolder.open(path)
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        assert training.run() == FINISHED
        check_run(path, live=training.league, open_matches=True)


@pytest.mark.parametrize("place", ["before the write", "between write and sync", "after the sync", "after the answer"])
def test_row_06_kill_the_controller_around_the_commit_of_a_result(tmp_path: Path, place: str) -> None:
    path = tmp_path / "run"
    create(path, tiny(runtime="serial", budget=8 * BATCH))
    acknowledged = die(path, place)
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        finished = [e.result.match_id for _, e in ledger.replay() if isinstance(e, MatchFinished)]
    in_doubt = 1 if place == "after the sync" else 0
    assert len(acknowledged) == 6 if place == "after the answer" else 5
    assert finished[: len(acknowledged)] == acknowledged
    assert len(finished) == len(acknowledged) + in_doubt
    check_run(path, open_matches=True)
    go_on(path)


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """One run for the rows that do it no harm."""
    path = tmp_path_factory.mktemp("running") / "run"
    create(path, tiny(budget=10**9, supervision=QUICK, runtime=request.param))
    with started(path) as training:
        yield path, training
        left = descendants(training.pid)
        stop(training)
        check_run(path)
        check_nothing_left(path, left)


@pytest.mark.parametrize("running", [LOCAL, RAY], indirect=True)
def test_row_11_a_controller_that_slept_blames_nobody(running: tuple[Path, subprocess.Popen[str]]) -> None:
    """Longer than the workers may be silent; they wait for its answers meanwhile and keep their leases."""
    path, training = running
    actors = workers(training.pid, "actor")
    kill(training.pid, signal.SIGSTOP)
    time.sleep(QUICK.hung_after_s + 2)
    kill(training.pid, signal.SIGCONT)
    rows = (path / "metrics" / "train.jsonl").stat().st_size
    wait_until(lambda: (path / "metrics" / "train.jsonl").stat().st_size > rows, "it to learn again")
    assert workers(training.pid, "actor") == actors
    assert faults_of(path) == []
    check_run(path, open_matches=True)


@pytest.mark.parametrize("running", [LOCAL], indirect=True)
def test_row_16_nothing_listens_on_a_port(running: tuple[Path, subprocess.Popen[str]]) -> None:
    """The local runtime has no ports that could be taken: descriptors are inherited, nothing is bound."""
    _, training = running
    listening = {
        fields[9]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "0A"
    }
    for pid in (training.pid, *descendants(training.pid)):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            if file.exists() or file.is_symlink():
                target = os.readlink(file)
                assert target.removeprefix("socket:[").removesuffix("]") not in listening


@pytest.mark.parametrize("running", [LOCAL, RAY], indirect=True)
def test_row_33_a_second_controller_is_refused(running: tuple[Path, subprocess.Popen[str]]) -> None:
    path, training = running
    program = [sys.executable, "-m", "ludus.cli.main", "train", "--run", str(path), "--resume"]
    second = subprocess.run(program, capture_output=True, text=True)
    assert second.returncode == 1
    assert f"is being trained by process {training.pid} on host" in second.stderr
    assert training.poll() is None


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_row_09_kill_everything_at_once(tmp_path: Path, runtime: str) -> None:
    """Twice; many more times in test_many_kills.py."""
    path = tmp_path / "run"
    create(path, tiny(budget=10**9, runtime=runtime))
    metrics = path / "metrics" / "train.jsonl"
    for wait_s in (0.0, 0.4):
        with started(path) as training:
            size = metrics.stat().st_size
            wait_until(lambda: metrics.stat().st_size > size, "it to learn")  # noqa: B023
            time.sleep(wait_s)
            everything = [training.pid, *descendants(training.pid)]
            kill_all(everything)
        check_nothing_left(path, everything[1:], clean=False)
        check_run(path, open_matches=True)
    with started(path) as training:
        stop(training)
    check_run(path)
    assert [fault["class"] for fault in faults_of(path)] == ["restart", "restart"]
    check_nothing_left(path, ())


@pytest.mark.slow
def test_row_34_a_worker_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of the installation under a run that goes on."""
    monkeypatch.setattr(launcher, "Launch", partial(Launch, code="ludus 0.0.1, protocol 0"))
    with (
        pytest.raises(TrainingFailed, match="learner is of another version of ludus than this run"),
        local(tmp_path / "run", tiny()),
    ):
        pass
    log = (tmp_path / "run" / "logs" / "learner.log").read_text()
    assert f"the run is of ludus 0.0.1, protocol 0, but {CODE} is installed now" in log
    program = [sys.executable, "-m", "ludus.runtime", '{"of": "an age without versions"}']
    assert subprocess.run(program, capture_output=True).returncode == OTHER_CODE


def test_row_34_what_is_no_message_is_never_taken_for_one() -> None:
    ours, theirs = control_pair()
    for content in (b"", b"{}", b'{"message":"next_match"}', b'{"message":"unheard_of"}', b"\xff\x00"):
        theirs.sendall(len(content).to_bytes(4, "big") + content)
        with pytest.raises(BadMessage, match="is no message"):
            receive(ours, FromActor)
    theirs.sendall((100).to_bytes(4, "big") + b"half of it")
    theirs.close()
    with pytest.raises(PeerGone):
        receive(ours, FromActor)
    with pytest.raises(PeerGone):
        send(ours, NextMatch(1))
    ours.close()


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_row_35_asked_to_end_in_a_snapshot_and_then_killed(tmp_path: Path, runtime: str) -> None:
    path = tmp_path / "run"
    rules = LeagueRules(roles={"main": Role(promotion=BySteps(every=BATCH))}, bots=("random",))
    create(path, tiny(budget=10**9, league=rules, runtime=runtime))
    pool = path / "models" / "main"
    for _ in range(2):
        with started(path) as training:
            known = len(list(pool.glob("*.json")))
            wait_until(lambda: len(list(pool.glob("*.json"))) != known, "a snapshot")  # noqa: B023
            everything = [training.pid, *descendants(training.pid)]
            training.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            kill_all(everything)
        check_nothing_left(path, everything[1:], clean=False)
        check_run(path, open_matches=True)
    with started(path) as training:
        stop(training)
    check_run(path)


@pytest.mark.parametrize("place", ["between snapshot and reset", "between reset and learner"])
def test_row_36_a_reset_that_was_interrupted_happens_once(tmp_path: Path, place: str) -> None:
    path = tmp_path / "run"
    role = Role(promotion=BySteps(every=2 * BATCH), reset_probability=1.0)
    rules = LeagueRules(roles={"main": role}, bots=("random",))
    create(path, tiny(runtime="serial", budget=8 * BATCH, league=rules))
    die(path, place)
    go_on(path)
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
    promoted = [e for e in events if isinstance(e, PlayerAdded) and e.reason not in ("", "initial", "final")]
    resets = [event for event in events if isinstance(event, PlayerReset)]
    assert len(promoted) == len(resets) >= 2
    assert len({reset.incarnation for reset in resets}) == len(resets)
