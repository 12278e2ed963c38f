"""Rows in which the surroundings are bad: the game, its numbers, disk, memory, descriptors, clock, network."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from matrix import check
from matrix.process_rows import Measured, survives
from matrix.rows import row
from matrix.subject import END_S, Bench, Broken, NotHere, Subject, processes_with, require, wait

MARGIN_BYTES = 200 * 2**20
MEMORY_GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
ONE_MACHINE = "processes of one machine talk over inherited sockets and shared memory; no network is between them"


# --- the game and its numbers ---


@row(13, "env step hangs", "a step of the game never returns", "void(env_hang), replaced: I1 I8 I10")
def game_hangs(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    since = time.time()
    return survives(run, run.order("game", "hang"), since, "env_hang")


@row(14, "env raises, segfaults, exits 0", "in a step of the game", "void(env_crash), restarted: I1 I8 I10")
def game_crashes(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    since = time.time()
    return survives(run, run.order("game", rng.choice(("raise", "segfault", "exit"))), since, "env_crash")


def latest(run: Subject, name: str) -> float:
    """A count of the learner, from its newest record."""
    records = check.read_lines(run.run / "metrics" / "train.jsonl")
    return float(next((record[name] for record in reversed(records) if name in record), 0.0))


@row(24, "NaN or infinite loss", "in one gradient step", "the step is skipped and counted, weights stay finite: I4 I6")
def loss_is_no_number(bench: Bench, rng: Random) -> None:
    run = bench.running()
    skipped, faults = latest(run, "main/skipped"), len(run.faults())
    run.order("algorithm", rng.choice(("nan", "inf", "-inf")))
    wait(lambda: latest(run, "main/skipped") == skipped + 1, "the step to be skipped")
    run.go_on()
    require(len(run.faults()) == faults, f"I8: a worker was lost: {run.faults()[faults:]}")


@row(
    25,
    "NaN observation or reward",
    "in a step of the game",
    "its trajectories are refused and counted; learner untouched",
)
def game_shows_no_number(bench: Bench, rng: Random) -> None:
    run = bench.running()
    refused, skipped = latest(run, "main/refused"), latest(run, "main/skipped")
    deadline = time.monotonic() + END_S
    while latest(run, "main/refused") == refused:  # in a match that trains nobody there is nothing to refuse
        require(time.monotonic() < deadline, "I8: nothing that is no number was ever refused")
        run.order("game", rng.choice(("show NaN", "end pay NaN", "end pay infinity")))
        run.go_on()
        run.go_on()
    require(latest(run, "main/skipped") == skipped, "I6: it reached the loss")


@row(
    26,
    "stale weights",
    "an actor misses every third renewal, ten times",
    "older decisions are excluded and counted: I6",
)
def weights_are_stale(bench: Bench, rng: Random) -> None:
    run = bench.running()
    stale = latest(run, "main/stale")
    run.order("weights", "stale")
    wait(lambda: latest(run, "main/stale") > stale, "stale decisions to be counted")
    run.go_on()


@row(27, "messages duplicated, reordered, delayed", "a result told twice, late, or after the next one", "I1 I2")
def messages_in_disorder(bench: Bench, rng: Random) -> None:
    run = bench.running()
    faults = len(run.faults())
    for _ in range(3):
        run.order("actor", rng.choice(("repeat", "swap", "delay")))
    run.go_on()
    require(len(run.faults()) == faults, f"I8: a worker was lost: {run.faults()[faults:]}")


@row(31, "env leaks", "the game takes 400 MiB, its cap is 300", "the game is recycled, its matches are void: I1 I8")
def game_leaks(bench: Bench, rng: Random) -> None:
    run = bench.running("isolated")
    faults = len(run.faults())
    run.order("game", "leak")
    wait(lambda: len(run.faults()) > faults, "the leak to be found")
    told = run.faults()[faults:]
    require(all(row["class"] == "game_lost" and "leaked" in row["reason"] for row in told), f"I10: {told}")
    run.go_on()


# --- the machine ---


@row(
    16,
    "port taken",
    "the port of `ludus serve` or `watch`; the runtime itself must listen on none",
    "an error that names it",
)
def port_taken(bench: Bench, rng: Random) -> None:
    run = bench.running()
    if run.runtime == "local":
        listening = {fields[9] for fields in _sockets() if fields[3] == "0A"}
        for pid in processes_with(run.token):
            with suppress(OSError):
                found = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
                require(
                    not found & {f"socket:[{inode}]" for inode in listening}, f"I7: process {pid} listens on a port"
                )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = rng.choice((("serve", "kuhn", "--port", port), ("watch", str(run.run), "--port", port)))
        done = run.ludus(*words)
    require(done.returncode != 0, f"I7: {words[0]} on a taken port exited with 0")
    require(port in done.stderr and "Traceback" not in done.stderr, f"I10: {done.stderr[-400:]}")
    run.go_on()


def _sockets() -> Iterator[list[str]]:
    for table in ("tcp", "tcp6"):
        yield from map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])


@row(
    17,
    "/dev/shm full",
    "a /dev/shm of 64 KiB that is full, from the start on",
    "fallback or named refusal, no SIGBUS: I1",
)
def shared_memory_full(bench: Bench, rng: Random) -> None:
    if os.geteuid() or shutil.which("unshare") is None:
        raise NotHere("needs root and unshare")
    run = bench.new()
    fill = "mount -t tmpfs -o size=64k tmpfs /dev/shm; dd if=/dev/zero of=/dev/shm/filler bs=4k 2>/dev/null"
    run.start(learns=False, before=["unshare", "-m", "sh", "-c", f'{fill}; exec "$@"', "sh"])
    works_or_refuses(run, ("memory", "space", "shm"))


@row(18, "few descriptors", "ulimit -n between 12 and 80", "it works, or refuses by name; no hang, nothing left")
def few_descriptors(bench: Bench, rng: Random) -> None:
    run = bench.new()
    run.start(learns=False, before=["sh", "-c", f'ulimit -n {rng.randint(12, 80)}; exec "$@"', "sh"])
    works_or_refuses(run, ("open files", "descriptor"))


def works_or_refuses(run: Subject, names: tuple[str, ...]) -> None:
    """A run that learns and ends in good order, or one that ended by itself with an error that names the matter."""
    learned = run.run / "metrics" / "train.jsonl"
    wait(lambda: not run.is_alive or (learned.exists() and learned.stat().st_size > 0), "it to work or to refuse")
    if run.is_alive:
        run.stop()
        return
    code = run.wait_end()
    require(code > 0, f"exit: it was refused with exit code {code}: {run.errors()[-300:]}")
    told = run.errors()
    require("Traceback" not in told, f"I10: a traceback: {told[-500:]}")
    require(any(name in told for name in names), f"I10: the error does not name it: {told[-400:]}")
    run.nothing_left()


@row(
    32, "learner out of memory", "the kernel ends it at the limit of its memory group", "as row 4", runtimes=("local",)
)
def learner_out_of_memory(bench: Bench, rng: Random) -> Measured:
    run = bench.running()
    [learner] = run.find("learner")
    with memory_group(learner):
        since = time.time()
        pid = run.order("algorithm", "eat")
        seen, back = run.seen(pid, since), run.go_on()
    return {"seen": seen, "back": back}


@contextmanager
def memory_group(pid: int) -> Iterator[None]:
    """A group of the kernel in which this process may take little more memory than it has."""
    names = ("memory.limit_in_bytes", "memory.max")
    for root, name in zip(MEMORY_GROUPS, names, strict=True):
        group = root / f"ludus-fault-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / name).exists():
                continue
            (group / name).write_text(str(MARGIN_BYTES))
            (group / "cgroup.procs").write_text(str(pid))
            yield
            return
        finally:
            with suppress(OSError, Broken):
                wait(lambda: not (group / "cgroup.procs").read_text(), "its group to be empty", 10)  # noqa: B023
            with suppress(OSError):
                group.rmdir()
    raise NotHere("needs root and memory groups (cgroups) that can be written")


@row(30, "clock jumps", "the time of day, by up to an hour and a half either way", "leases and learning go on: I1 I2")
def clock_jumps(bench: Bench, rng: Random) -> None:
    run = bench.running(clock=True)
    faults = len(run.faults())
    time.sleep(rng.uniform(0.0, 1.0))
    (run.marks / "clock.new").write_text(str(rng.randint(-5400, 5400)))
    (run.marks / "clock.new").rename(run.marks / "clock")
    run.go_on()
    run.go_on()
    require(len(run.faults()) == faults, f"I10: somebody was blamed: {run.faults()[faults:]}")


# --- the network, and who looks ---


@row(
    28,
    "partition",
    "the cable of a node is cut and stays cut",
    "its matches are void, the run goes on: I1",
    runtimes=("ray",),
    elsewhere={"local": ONE_MACHINE},
    limit_s=600,
)
def partitioned(bench: Bench, rng: Random) -> None:
    by_test(CUT)


@row(
    29,
    "half-open connection",
    "packets of a node are dropped without a word",
    "found by its heartbeat: I1",
    runtimes=("ray",),
    elsewhere={"local": ONE_MACHINE},
    limit_s=600,
)
def half_open(bench: Bench, rng: Random) -> None:
    by_test(CUT)


def by_test(*words: str) -> None:
    """An injection that a test of its own carries out: it needs two machines, which it makes of network namespaces."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-rs", *words],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if "skipped" in done.stdout and "passed" not in done.stdout:
        raise NotHere(done.stdout[-300:])
    require(done.returncode == 0, done.stdout[-1500:])


CUT = "tests/cluster/test_ranks_on_nodes.py::test_the_cable_between_two_machines_with_ranks_is_cut"
CANARY = """
from pathlib import Path
Path({mark!r}).touch()
from ludus.games.builtin.kuhn import Kuhn as FaultyKuhn
"""


@row(
    40,
    "a run folder with code in it",
    "run.json names a Python file of its own folder; a random viewer reads it",
    "nothing of it is executed",
)
def viewer_executes_nothing(bench: Bench, rng: Random) -> None:
    run = bench.resting()
    if not (run.run / "ledger.db").exists():
        run.start()
        run.stop()
    copy, mark = run.folder / "copy", run.folder / "canary"
    shutil.copytree(run.run, copy)
    try:
        for name in ("experiment.py", "faulty_game.py"):
            (copy / name).write_text(CANARY.format(mark=str(mark)))
        facts, own = (copy / "run.json").read_text(), str(Path(__file__).parent)
        require(own in facts, "the run does not name its code")
        (copy / "run.json").write_text(facts.replace(own, str(copy)))
        words = rng.choice(
            (
                ("league",),
                ("league", "--json"),
                ("status",),
                ("report", "--out", str(run.folder / "r.html")),
                ("logs",),
                ("models",),
            )
        )
        run.ludus(words[0], str(copy), *words[1:])
        require(not mark.exists(), f"view: `ludus {' '.join(words)}` executed code of the run folder")
    finally:
        shutil.rmtree(copy)
        mark.unlink(missing_ok=True)
