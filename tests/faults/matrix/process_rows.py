"""Rows in which processes are killed, stopped, started twice or told to end."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

from matrix import check
from matrix.rows import row
from matrix.subject import END_S, GO_ON_S, VISIBLE_S, Bench, Broken, Subject, require, wait

HUNG_AFTER_S = 6.0
"""Of experiment.py."""
CONTROLLER = "ludus.cli.main train"
LEARNER = '"role":"learner"'
OTHER_CODE = 76
Measured = Mapping[str, float]


def survives(run: Subject, pid: int, since: float, kind: str = "") -> Measured:
    """The fault of this process is told once, nobody else is blamed for it, its matches are void, the run goes on."""
    seen = run.seen(pid, since)
    back = run.go_on()
    told = [row for row in run.faults() if row["time"] >= since]
    require(
        all(row["pid"] == pid for row in told),
        f"I10: others were blamed too: {[(row['worker'], row['class'], row['reason']) for row in told]}",
    )
    [fault] = told
    require(not kind or fault["class"] == kind, f"I10: {fault['class']} was told instead of {kind}")
    ended = {check.match_of(row): row["event"] for row in run.rows() if row["event"] in check.ENDS}
    wrong = [match for match in fault["matches"] if ended.get(match) != "match_void"]
    require(not wrong, f"I1: matches {wrong} of a lost worker are {[ended.get(match) for match in wrong]}, not void")
    return {"seen": seen, "back": back}


def kill_one(run: Subject, role: str, rng: Random, number: int = signal.SIGKILL) -> tuple[int, float]:
    while True:  # one that is found may be gone a moment later, replaced for another reason
        pid = rng.choice(run.find(role))
        since = time.time()
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            return pid, since


@row(1, "kill -9 actor", "in the middle of episodes, at a random moment", "I1 I7 I8 I10")
def actor_killed(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    time.sleep(rng.uniform(0.0, 1.5))
    return survives(run, *kill_one(run, "actor", rng), "killed")


@row(2, "kill -9 actor", "in the step that ends a match, before it tells", "I1")
def actor_killed_at_the_end(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    since = time.time()
    return survives(run, run.order("game", "end kill"), since, "killed")


@row(3, "kill -9 actor", "result sent, answer not read", "I1 I3")
def actor_killed_unheard(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    since = time.time()
    return survives(run, run.order("actor", "die unheard"), since, "killed")


@row(4, "kill -9 learner", "in the middle of a gradient step, or at a random moment", "I4 I5")
def learner_killed(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    if rng.random() < 0.5:
        since = time.time()
        pid = run.order("algorithm", "kill")
    else:
        time.sleep(rng.uniform(0.0, 1.5))
        pid, since = kill_one(run, "learner", rng)
    seen, back = run.seen(pid, since), run.go_on()
    return {"seen": seen, "back": back}


def die_at_call(run: Subject, victim: str, path: str, rng: Random, most: int, **more: str) -> Path:
    """Start a run of which one process dies at a random call on a file; gives the mark that says that it has."""
    mark = run.marks / "injected"
    mark.unlink(missing_ok=True)
    act, at = rng.choice(("kill", "after", "torn")), str(rng.randint(1, most))
    told = {"FAULT_VICTIM": victim, "FAULT_PATH": path, "FAULT_AT": at, "FAULT_ACT": act, "FAULT_MARK": str(mark)}
    run.start(learns=False, shim_for={**told, **more})
    return mark


@row(5, "kill -9 learner", "at a random call (open, write, sync, rename, unlink) of a checkpoint's write", "I4 I5")
def learner_killed_in_a_checkpoint(bench: Bench, rng: Random) -> Measured:
    run = bench.resting()
    mark = die_at_call(run, LEARNER, "/checkpoints/", rng, 24)
    wait(lambda: mark.exists() or not run.is_alive, "the learner to die in a checkpoint")
    back = run.go_on()
    run.check()
    run.kill_everything()
    run.nothing_left()
    return {"back": back}


@row(
    6,
    "kill -9 controller",
    "at a random call on the ledger: before, in the middle of or behind a write or sync",
    "I1 I2 I3",
)
def controller_killed_in_a_commit(bench: Bench, rng: Random) -> None:
    run = bench.resting()
    mark = die_at_call(run, CONTROLLER, "ledger.db", rng, 400)
    run.wait_end(GO_ON_S)
    require(mark.exists(), f"I10: it ended by itself: {run.errors()[-600:]}")
    run.nothing_left()


@row(7, "kill -9 evaluator", "an actor that holds an evaluation match", "I1 I2")
def evaluator_killed(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    wait(lambda: "evaluation" in open_purposes(run), "an evaluation match")
    time.sleep(rng.uniform(0.0, 0.1))
    return survives(run, *kill_one(run, "actor", rng), "killed")


def open_purposes(run: Subject) -> set[str]:
    rows = run.rows()
    ended = {check.match_of(row) for row in rows if row["event"] in check.ENDS}
    issued = [row["match"] for row in rows if row["event"] == "match_issued"]
    return {match["purpose"] for match in issued if match["id"] not in ended}


@row(8, "kill -9 inference server", "the policy worker, at a random moment", "I6 I8")
def policy_worker_killed(bench: Bench, rng: Random) -> Measured:
    run = bench.running("asking")
    time.sleep(rng.uniform(0.0, 1.5))
    return survives(run, *kill_one(run, "policy", rng), "killed")


def random_moment(run: Subject, rng: Random) -> None:
    """Of a start: half of the time within its first seconds, from the first millisecond on, else while it learns."""
    if rng.random() < 0.5:
        time.sleep(math.exp(rng.uniform(math.log(0.001), math.log(12.0))))
    else:
        run.go_on()
        time.sleep(rng.uniform(0.0, 1.5))


@row(
    9, "kill -9 everything", "at a random moment, from the first millisecond of a start on", "I1-I5 I7 by a cold start"
)
def everything_killed(bench: Bench, rng: Random) -> None:
    run = bench.resting()
    run.start(learns=False)
    random_moment(run, rng)
    run.kill_everything()
    run.nothing_left()


@row(10, "SIGSTOP actor, SIGCONT", "for longer than a worker may be silent", "I1: its late result is refused")
def actor_stopped(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    time.sleep(rng.uniform(0.0, 1.5))
    pid, since = kill_one(run, "actor", rng, signal.SIGSTOP)
    measured = survives(run, pid, since, "env_hang")
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
        raise Broken(f"I1: process {pid} lives on beside the actor that replaced it")
    return measured


@row(11, "SIGSTOP controller", "for longer than a worker may be silent", "no lease is given twice, nobody is blamed")
def controller_stopped(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    workers = {role: run.find(role) for role in ("actor", "learner")}
    faults = len(run.faults())
    time.sleep(rng.uniform(0.0, 1.0))
    os.kill(run.pid, signal.SIGSTOP)
    time.sleep(HUNG_AFTER_S + 2)
    os.kill(run.pid, signal.SIGCONT)
    back = run.go_on()
    require(
        workers == {role: run.find(role) for role in workers}, "I8: workers were replaced for the controller's pause"
    )
    require(len(run.faults()) == faults, f"I10: somebody was blamed: {run.faults()[faults:]}")
    return {"back": back}


@row(12, "SIGSTOP learner", "until it is given up", "actors wait with flat memory; then I1 I5")
def learner_stopped(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    time.sleep(rng.uniform(0.0, 1.0))
    [actor] = run.find("actor")
    pid, since = kill_one(run, "learner", rng, signal.SIGSTOP)
    sizes = []
    while time.time() - since < HUNG_AFTER_S - 1:
        sizes.append(int(Path(f"/proc/{actor}/statm").read_text().split()[1]) * 4096)
        time.sleep(0.2)
    require(max(sizes) < sizes[0] + 32 * 2**20, f"I8: the actor grew from {sizes[0]} to {max(sizes)} bytes")
    seen, back = run.seen(pid, since), run.go_on()
    return {"seen": seen, "back": back}


@row(15, "game child orphaned", "the actor or the controller is killed; the game has started a program", "I7")
def child_orphaned(bench: Bench, rng: Random) -> None:
    run = bench.running()
    (run.marks / "child").unlink(missing_ok=True)
    run.order("game", rng.choice(("child", "child of its own session")))
    wait((run.marks / "child").exists, "the game to start a program")
    child = int((run.marks / "child").read_text())
    if rng.random() < 0.5:
        kill_one(run, "actor", rng)
    else:
        os.kill(run.pid, signal.SIGKILL)
    with suppress(Broken):
        wait(lambda: not _lives(child), "the program to end", VISIBLE_S)
    if _lives(child):
        raise Broken(f"I7: the program {child} that the game started lives on: {_command(child)}")


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return "gone"


@row(
    33,
    "two controllers, one folder",
    "a second start while it learns, or both at the same moment",
    "second refused; I1",
)
def second_controller(bench: Bench, rng: Random) -> None:
    if rng.random() < 0.7:
        run = bench.running()
        time.sleep(rng.uniform(0.0, 1.0))
        second = subprocess.run(run.command, capture_output=True, text=True, env=run.environment(), timeout=END_S)
        require(second.returncode == 1, f"I1: a second controller exited with {second.returncode}")
        require(str(run.pid) in second.stderr, f"I10: it does not name the first: {second.stderr[-300:]}")
        run.go_on()
        return
    run = bench.new()
    run.start(learns=False)
    time.sleep(rng.uniform(0.0, 0.3))
    with (run.folder / "err.second").open("wb") as err:
        second = subprocess.Popen(run.command, stdout=subprocess.DEVNULL, stderr=err, env=run.environment())
    wait(lambda: second.poll() is not None or not run.is_alive, "one of two to be refused")
    told = (run.folder / "err.second").read_text()
    if second.poll() is None:
        told = run.errors()
        run.process, second = second, run.process  # type: ignore[assignment]
    require(
        second.returncode in (1, 2), f"exit: the one that was refused exited with {second.returncode}: {told[-300:]}"
    )
    require(str(run.run) in told and "Traceback" not in told, f"I10: it does not say why: {told[-300:]}")
    run.go_on()
    run.stop()


@row(
    34,
    "worker of another version",
    "the launch of a living worker with another version in it, or none",
    "refused unread",
)
def other_version(bench: Bench, rng: Random) -> None:
    run = bench.running()
    pid = rng.choice(run.find(rng.choice(("actor", "learner"))))
    text = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    launch = json.loads(next(word for word in text if word.startswith("{")))
    launch["code"] = rng.choice(("ludus 0.0.1, protocol 0", "", f"ludus {rng.random()}", "an unknown version"))
    if rng.random() < 0.2:
        launch = {"of": "an age without versions"}
    worker = [sys.executable, "-m", "ludus.runtime", json.dumps(launch)]
    done = subprocess.run(worker, capture_output=True, text=True, env=run.environment(), timeout=END_S)
    require(done.returncode == OTHER_CODE, f"I1: a worker of another version exited with {done.returncode}")
    require("is installed now" in done.stderr, f"I10: it does not say why: {done.stderr[-300:]}")
    run.go_on()


@row(35, "SIGTERM, then SIGKILL", "around a snapshot; all are killed up to 2 s later", "I3 I4; it resumes")
def told_and_killed(bench: Bench, rng: Random) -> None:
    run = bench.resting()
    run.start()
    pool = run.run / "models" / "main"
    known = len(list(pool.glob("*.json")))
    with suppress(Broken):  # a fault before has cost it the way to the next snapshot
        wait(lambda: len(list(pool.glob("*.json"))) != known or not run.is_alive, "a snapshot", 20)
    os.kill(run.pid, signal.SIGTERM)
    time.sleep(rng.uniform(0.0, 2.0))
    run.kill_everything()
    run.nothing_left()


@row(
    36, "reset interrupted", "the controller dies at a random call on the ledger; every promotion resets", "reset once"
)
def reset_interrupted(bench: Bench, rng: Random) -> None:
    run = bench.resting("resetting")
    die_at_call(run, CONTROLLER, "ledger.db", rng, 300)
    run.wait_end(GO_ON_S)
    run.nothing_left()
    broken = list(check.resets_follow_promotions(run.rows())) if (run.run / "ledger.db").exists() else []
    require(not broken, "; ".join(broken[:3]))


@row(
    37, "kill -9 guard", "at a random moment; then, often, the controller", "it is replaced; I7 I8", runtimes=("local",)
)
def guard_killed(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    time.sleep(rng.uniform(0.0, 1.0))
    pid, _ = kill_one(run, "guard", rng)
    wait(lambda: run.pids("guard") not in ([], [pid]), "another guard")
    back = run.go_on()
    if rng.random() < 0.5:
        os.kill(run.pid, signal.SIGKILL)
        run.wait_end()
        run.nothing_left()
    return {"back": back}


@row(38, "kill -9 log keeper", "at a random moment", "it is replaced; I7 I8", runtimes=("local",))
def log_keeper_killed(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    time.sleep(rng.uniform(0.0, 1.0))
    pid, _ = kill_one(run, "log keeper", rng)
    wait(lambda: run.pids("log keeper") not in ([], [pid]), "another log keeper")
    return {"back": run.go_on()}


@row(
    39,
    "first start killed",
    "at a random file call of a first start, from its first one on",
    "the same command then works",
)
def first_start_killed(bench: Bench, rng: Random) -> None:
    run = bench.new()
    most = rng.choice((30, 30, 120))
    die_at_call(run, CONTROLLER, f"{run.folder}/", rng, most)
    run.wait_end(GO_ON_S)
    run.nothing_left()
    run.start()
    run.stop()


@row(41, "SIGTERM or SIGINT in a start", "within the first seconds of it", "non-zero exit, I7; it resumes")
def told_to_end_at_once(bench: Bench, rng: Random) -> None:
    run = bench.resting()
    run.start(learns=False)
    time.sleep(math.exp(rng.uniform(math.log(0.01), math.log(12.0))))
    os.kill(run.pid, rng.choice((signal.SIGTERM, signal.SIGINT)))
    code = run.wait_end()
    require(code != 0, "exit: a start that was told to end exited with 0")
    told = run.errors()
    by_python = "Fatal Python error" in told or ", in main\n" not in told  # while modules are still being imported
    require("Traceback" not in told or by_python, f"I10: {told[-600:]}")
    run.nothing_left()
