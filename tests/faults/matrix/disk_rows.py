"""Rows about files: disks that are full or fail, and parts of a run folder that are torn, flipped, older or gone."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path
from random import Random

from matrix import check
from matrix.process_rows import CONTROLLER, die_at_call
from matrix.rows import row
from matrix.subject import GO_ON_S, INTERRUPTED, VISIBLE_S, Bench, Broken, Subject, require, wait

# --- disks ---


def fails_on_disk(run: Subject, act: str, path: str, rng: Random, calls: str = "") -> None:
    """While it learns, calls on these files fail; it goes on or ends by name. Then the disk is well again."""
    full, mark = run.marks / "full", run.marks / "injected"
    for file in (full, mark):
        file.unlink(missing_ok=True)
    shim = {"FAULT_PATH": path, "FAULT_ACT": act, "FAULT_WHILE": str(full), "FAULT_MARK": str(mark)}
    run.start(shim_for={**shim, **({"FAULT_CALLS": calls} if calls else {})})
    time.sleep(rng.uniform(0.0, 2.0))
    full.touch()
    wait(lambda: mark.exists() or not run.is_alive, f"a call on {path}")
    time.sleep(rng.uniform(0.0, 3.0))
    full.unlink()
    learned = run.progress()
    wait(lambda: not run.is_alive or run.progress() > learned, "it to go on or to end")
    if not ended_by_name(run):
        run.kill_everything()
    run.nothing_left()


def ended_by_name(run: Subject) -> bool:
    """Whether it has ended: not with 0 then, not by a signal, and with an error that names the disk."""
    with suppress(Broken):
        wait(lambda: not run.is_alive, "it to end", 5.0)
    if run.is_alive:
        return False
    code, told = run.wait_end(), run.errors()
    require(code > 0 and code != INTERRUPTED, f"exit: a broken disk ended it with {code}: {told[-300:]}")
    names = ("disk", "space", "Input/output", "I/O")
    require(any(name in told for name in names), f"I10: the error does not name the disk: {told[-500:]}")
    require("Traceback" not in told, f"I10: a traceback: {told[-700:]}")
    return True


@row(
    19,
    "ENOSPC, ledger",
    "every write to the ledger fails for a while, or its whole disk is full",
    "no acknowledged loss; resumes",
)
def ledger_disk_full(bench: Bench, rng: Random) -> None:
    if rng.random() < 0.5 or os.geteuid():
        fails_on_disk(bench.resting(), "ENOSPC", "ledger.db", rng)
        return
    disk = bench.folder / f"disk-{rng.randrange(2**32)}"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
    run = bench.new(folder=disk)
    try:
        run.start()
        time.sleep(rng.uniform(0.0, 2.0))
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(2**16)):
                pass
        time.sleep(rng.uniform(0.0, 5.0))
        ended_by_name(run)
        (disk / "filler").unlink()
        run.end()
        run.check()
        run.start()
        run.stop()
    finally:
        run.end()
        subprocess.run(["umount", "-l", str(disk)], check=True)


@row(
    20, "ENOSPC, checkpoints", "every write to a checkpoint or model fails for a while", "the last good one is kept: I4"
)
def checkpoint_disk_full(bench: Bench, rng: Random) -> None:
    fails_on_disk(bench.resting(), "ENOSPC", rng.choice(("/checkpoints/", "/checkpoints/", "/models/")), rng)


@row(
    21,
    "EIO on sync",
    "fsync and fdatasync fail for a while: of ledger, checkpoints, models or all",
    "never acknowledged: I3 I4",
)
def sync_fails(bench: Bench, rng: Random) -> None:
    run = bench.resting()
    path = rng.choice(("ledger.db", "ledger.db", "/checkpoints/", "/models/", str(run.run)))
    fails_on_disk(run, "EIO", path, rng, "fsync")


@row(
    22,
    "torn ledger tail",
    "half a write and then a kill; and a copy cut at a random byte of its end",
    "whole rows, none acknowledged lost",
)
def ledger_torn(bench: Bench, rng: Random) -> None:
    run = bench.resting()
    die_at_call(run, CONTROLLER, "ledger.db", rng, 400, FAULT_ACT="torn", FAULT_CALLS="write")
    run.wait_end(GO_ON_S)
    run.nothing_left()
    if not (run.run / "ledger.db").exists():
        return
    before = run.rows()
    copy = run.folder / "copy"
    shutil.copytree(run.run, copy)
    try:
        journal = copy / "ledger.db-wal"
        if journal.exists() and journal.stat().st_size > 8192:
            os.truncate(journal, journal.stat().st_size - rng.randint(1, 8192))
            (copy / "ledger.db-shm").unlink(missing_ok=True)
        after = check.read_rows(copy)
        require(after == before[: len(after)], "I3: the rows of a cut ledger are not the first of the whole one")
        done = run.ludus("league", str(copy), "--json")
        require(done.returncode == 0 or "Traceback" not in done.stderr, f"I10: {done.stderr[-500:]}")
    finally:
        shutil.rmtree(copy)


@row(
    23,
    "bit flip in a snapshot",
    "one random bit of one model of the league, then a resume",
    "digest refuses it, told; returns when mended",
)
def bit_flipped(bench: Bench, rng: Random) -> None:
    run = bench.resting()
    while not (run.run / "ledger.db").exists() or len(check.frozen_players(run.rows())) < 2:
        run.start()
        run.go_on()
        with suppress(Broken):
            wait(lambda: len(check.frozen_players(run.rows())) >= 2, "two snapshots", 30)
        run.stop()
    player, added = rng.choice(sorted(check.frozen_players(run.rows()).items()))
    file = check.model_file(run.run, added["model"], added["weights"])
    content = file.read_bytes()
    damaged = bytearray(content)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    file.write_bytes(damaged)
    run.rules.absent_allowed = True
    try:
        run.start()
        told = [row for row in run.faults() if row["class"] == "damaged_model" and row["worker"] == player]
        require(told, f"I4: {player} plays with a bit flipped in {file.name}")
        require(player not in check.frozen_players(run.rows()), f"I4: {player} is still in the league")
        run.kill_everything()
    finally:
        run.end()
        file.write_bytes(content)
        run.rules.absent_allowed = False
    before = returns_of(run, player)
    run.start()
    wait(lambda: returns_of(run, player) > before, f"{player} to return")
    run.kill_everything()


def returns_of(run: Subject, player: str) -> int:
    return sum(row["event"] == "player_returned" and row["player"] == player for row in run.rows())


# --- parts that do not belong together ---


def with_past(bench: Bench) -> Subject:
    """A run that is not trained now and has results, checkpoints and snapshots."""
    run = bench.resting()
    if not list((run.run / "checkpoints").glob("*/*.safetensors")):
        run.start()
        wait(lambda: list((run.run / "checkpoints").glob("*/*.safetensors")), "a checkpoint")
        run.stop()
    return run


def copied(bench: Bench, run: Subject) -> Subject:
    copy = bench.new()
    shutil.copytree(run.run, copy.run, ignore=shutil.ignore_patterns("ledger.db*"))
    with (
        closing(sqlite3.connect(run.run / "ledger.db")) as here,
        closing(sqlite3.connect(copy.run / "ledger.db")) as there,
    ):
        here.backup(there)
    return copy


@row(
    42,
    "parts of a folder lost between two lives",
    "checkpoints (also with the ledger's note of them) or ledger removed, an older ledger, or older ones of both; "
    "then a resume",
    "refused by name",
)
def parts_lost(bench: Bench, rng: Random) -> None:
    run = copied(bench, with_past(bench))
    what = rng.choice(("checkpoints", "checkpoints and note", "ledger", "older ledger", "older ledger and checkpoints"))
    if what == "older ledger and checkpoints":
        run = with_newer_models(bench, run)
    elif what.startswith("checkpoints"):
        shutil.rmtree(run.run / "checkpoints")
        if what == "checkpoints and note":
            with closing(sqlite3.connect(run.run / "ledger.db", isolation_level=None)) as connection:
                connection.execute("DELETE FROM latest_checkpoint")
    elif what == "ledger":
        (run.run / "ledger.db").unlink()
    else:
        keep_first_rows(run.run / "ledger.db", rng.randint(10, len(run.rows()) // 2))
    run.start(learns=False)
    learned = run.progress()
    wait(lambda: not run.is_alive or run.progress() > learned, "a refusal")
    require(not run.is_alive, f"I5: with {what} lost, it went on as if nothing were missing")
    require(run.wait_end() > 0, f"exit: with {what} lost, it exited with {run.wait_end()}")
    require("Traceback" not in run.errors(), f"I10: {run.errors()[-500:]}")
    named = "ledger" if "ledger" in what else "checkpoint"
    require(named in run.errors(), f"I10: it does not name the {named}: {run.errors()[-400:]}")


def with_newer_models(bench: Bench, run: Subject) -> Subject:
    """A copy of the run with the models of a later time."""
    before, older = snapshots_taken(run), copied(bench, run)
    run.start()
    wait(lambda: snapshots_taken(run) >= before + 2, "two snapshots")
    run.stop()
    shutil.copytree(run.run / "models", older.run / "models", dirs_exist_ok=True)
    return older


def snapshots_taken(run: Subject) -> int:
    return sum(row["event"] == "player_added" and row["role"] == "frozen" for row in run.rows())


def keep_first_rows(ledger: Path, number: int) -> None:
    """As if an older copy had been put in its place."""
    with closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM rows WHERE seq > ?", (number,))
        connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'rows'", (number,))
        for _, statement in triggers:
            connection.execute(statement)


@row(43, "ledger removed under a run", "at a random moment", "it ends by name, not with 0")
def ledger_removed(bench: Bench, rng: Random) -> None:
    run = bench.new()
    run.start()
    time.sleep(rng.uniform(0.0, 2.0))
    for file in run.run.glob("ledger.db*"):
        file.unlink()
    with suppress(Broken):
        wait(lambda: not run.is_alive, "it to notice", VISIBLE_S)
    require(not run.is_alive, f"I10: it has not noticed within {VISIBLE_S:.0f} s")
    require(run.wait_end() > 0, f"exit: it exited with {run.wait_end()}")
    require("ledger" in run.errors() and "Traceback" not in run.errors(), f"I10: {run.errors()[-500:]}")


@row(
    44, "bit flip in the ledger", "one random bit; then `ludus league` reads it", "the same numbers, or refused by name"
)
def ledger_bit_flipped(bench: Bench, rng: Random) -> None:
    run = copied(bench, with_past(bench))
    before = json.loads(run.ludus("league", str(run.run), "--json").stdout)
    file = run.run / "ledger.db"
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    done = run.ludus("league", str(run.run), "--json")
    if done.returncode == 0:
        after = json.loads(done.stdout)
        other = [key for key in before if key != "measures" and before[key] != after.get(key)]
        require(not other, f"I2: one bit gave other numbers without a word: {other}")
    else:
        require("Traceback" not in done.stderr, f"I10: {done.stderr[-500:]}")
        require("ledger" in done.stderr or "damaged" in done.stderr, f"I10: {done.stderr[-300:]}")
