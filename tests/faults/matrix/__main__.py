"""Inject every fault of the matrix many times, and write a dated table.

python -m matrix --times 100                     all rows on the local runtime, 100 injections each
python -m matrix --times 5 --rows 1,4,9 --runtime ray
python -m matrix --again 9 local 17              one injection once more, by its row, runtime and number
python -m matrix --inputs                        the tests that hold the rows of bad input
python -m matrix --report                        only write the table of what was done so far

Each injection is a line of the state file when it is over, so that the same command goes on where it was ended. Its
seed is the row, the runtime and its number. The folder of a run whose invariants broke is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from matrix import check, inputs
from matrix.rows import DEVICE, EVERYWHERE, Row, all_rows
from matrix.subject import PATIENCE, SELF_PLAY, Bench, Broken, NoStart, NotHere

ROOT = Path(__file__).parents[3]
STATE = ROOT / ".faults"
HELD, BROKEN, NOT_HERE, NO_START = "held", "BROKEN", "not here", "no start"


class TimeLimit(BaseException):
    """An injection took too long. Not an `Exception`, so that nothing on the way takes it for an error of its own."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def over(_number: int, _frame: FrameType | None) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def seed_of(row: int, runtime: str, number: int) -> str:
    return f"{row}/{runtime}/{number}"


def inject(bench: Bench, row: Row, number: int, kept: Path) -> dict[str, Any]:
    """One injection; what came of it, as a line of the state file."""
    seed = seed_of(row.number, bench.runtime, number)
    told: dict[str, Any] = {"row": row.number, "runtime": bench.runtime, "number": number, "seed": seed}
    start = time.monotonic()
    try:
        with limited(row.limit_s * PATIENCE[bench.runtime]):
            measured = bench.injected(lambda: row.inject(bench, Random(seed)))
        told |= {"outcome": HELD, **{name: round(value, 2) for name, value in measured.items()}}
    except NoStart as reason:
        told |= {"outcome": NO_START, "why": str(reason)}
    except NotHere as reason:
        told |= {"outcome": NOT_HERE, "why": str(reason)}
    except Broken as broken:
        told |= {"outcome": BROKEN, "why": str(broken)}
    except TimeLimit:
        told |= {"outcome": BROKEN, "why": f"no end within {row.limit_s:.0f} s"}
    except Exception:
        told |= {"outcome": BROKEN, "why": traceback.format_exc()[-1500:]}
    for folder in bench.discard():
        if told["outcome"] == BROKEN and folder.is_dir():  # a disk of its own may be gone with the injection
            shutil.copytree(folder, kept / seed.replace("/", "-") / folder.name, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return {**told, "s": round(time.monotonic() - start, 1), "at": round(time.time()), "commit": commit()}


def commit() -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


class State:
    """The lines of all injections so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "injections.jsonl"

    def lines(self) -> list[dict[str, Any]]:
        return check.read_lines(self.file)

    def add(self, line: Mapping[str, Any]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def run_rows(state: State, rows: Iterable[Row], runtime: str, numbers: range, folder: Path, until: float) -> bool:
    """An injection of each row for each number, round after round, so that an early end has a part of each; whether
    nothing broke."""
    done = {(line["row"], line["number"]) for line in state.lines() if line.get("runtime") == runtime}
    bench = Bench(folder, runtime)
    held = True
    rows = list(rows)
    absent = {line["row"] for line in state.lines() if line.get("runtime") == runtime and line["outcome"] == NOT_HERE}
    try:
        for number in numbers:
            for row in rows:
                if (row.number, number) in done or row.number in absent:
                    continue
                if time.time() > until:
                    return held
                line = inject(bench, row, number, state.folder / "kept")
                state.add(line)
                held &= line["outcome"] != BROKEN
                if line["outcome"] == NOT_HERE:
                    absent.add(row.number)
                print(_told(line, row), flush=True)
        bench.last = []
        line = inject(bench, Row(0, "", "", "", lambda bench, _: bench.close()), 0, state.folder / "kept")
        held &= line["outcome"] != BROKEN
        if line["outcome"] == BROKEN:
            state.add({**line, "row": 0})
            print(_told(line, Row(0, "a good end of the runs that are left", "", "", lambda *_: None)))
    finally:
        bench.abandon()
        state.add({"row": -1, "runtime": runtime, "outcome": HELD, "number": -1, "sampled": bench.sampled})
    return held


def _told(line: Mapping[str, Any], row: Row) -> str:
    measured = "".join(f" {name} {line[name]:.1f} s" for name in ("seen", "back") if name in line)
    return f"{line['seed']:>14} {line['outcome']:8} {line['s']:6.1f} s {row.fault}{measured} {line.get('why', '')}"


# --- the table ---


def table(state: State, rows: Mapping[int, Row], runtimes: Sequence[str]) -> list[list[str]]:
    found: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for line in state.lines():
        found[line["row"], line["runtime"]].append(line)
    made = []
    for number, row in rows.items():
        for runtime in runtimes:
            lines = found[number, runtime]
            outcomes = Counter(line["outcome"] for line in lines)
            tried = outcomes[HELD] + outcomes[BROKEN]
            if runtime not in row.runtimes:
                told = f"does not apply: {row.elsewhere.get(runtime, 'there is no such process')}"
            elif not lines:
                told = "not run"
            elif not tried:
                told = f"{lines[-1]['outcome']}: {_plain(lines[-1]['why'])}"
            else:
                told = "0" if not outcomes[BROKEN] else f"**{outcomes[BROKEN]}**"
            made.append([str(number), row.fault, row.injected, row.holds, runtime, str(tried), told, _seconds(lines)])
    return made


def _plain(why: str) -> str:
    """As one cell of a table, without the temporary folder of the machine that it happened on."""
    return re.sub(r"\S*/ludus-faults-\d+/", "", " ".join(why.split())).replace("|", "/")[-300:]


def _seconds(lines: Iterable[Mapping[str, Any]]) -> str:
    told = []
    for name in ("seen", "back"):
        values = [line[name] for line in lines if name in line]
        if values:
            told.append(f"{name} {statistics.median(values):.1f}, at most {max(values):.1f}")
    return "; ".join(told)


def report(state: State, runtimes: Sequence[str], keep: bool) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from _report import write

    rows = all_rows()
    lines = [line for line in state.lines() if line["row"] >= 0]
    broken = [line for line in lines if line["outcome"] == BROKEN]
    itself = sum(line["sampled"][0] for line in state.lines() if "sampled" in line)
    total = sum(line["sampled"][1] for line in state.lines() if "sampled" in line)
    p = check.sampling_p(itself, total, SELF_PLAY)
    commits = Counter(line["commit"] for line in lines)
    facts = {
        "injections": f"{len(lines):,}, of which {len(broken)} broke an invariant",
        "commits": ", ".join(f"{name} ({count})" for name, count in commits.items()),
        "command": "`make test-faults N=...`; a single one again: `python -m matrix --again ROW RUNTIME NUMBER`",
        "opponents (I9)": f"{itself:,} of {total:,} training matches were self-play, configured are {SELF_PLAY:.0%}: "
        + ("too few" if math.isnan(p) else f"p = {p:.3f}"),
    }
    columns = ("#", "fault", "injected", "must hold", "runtime", "times", "broken", "seconds")
    again = [[line["seed"], line["commit"], _plain(line["why"])] for line in broken]
    write(
        "faults",
        "The fault matrix",
        [
            ("Faults", columns, table(state, rows, runtimes)),
            ("What broke", ("seed", "commit", "what"), again),
            ("Bad input", inputs.COLUMNS, inputs.table(state.folder / "inputs.json")),
        ],
        facts=facts,
        notes=[
            "I1 to I10 are those of docs/faults.md. After every injection a checker that shares no code with Ludus "
            "reads the run folder. `seen`: seconds from the fault to its row in faults.jsonl; `back`: from there until "
            "something was learned again, on this machine with whatever else ran on it. Median and largest."
        ],
        keep=keep,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1, metavar="N", help="injections of each row")
    parser.add_argument(
        "--first", type=int, default=0, metavar="N", help="number of the first; other numbers, other moments"
    )
    parser.add_argument("--rows", default="", help="numbers, as in 1,4,9; default: all")
    parser.add_argument("--runtime", default="local", choices=(*EVERYWHERE, DEVICE))
    parser.add_argument("--minutes", type=float, default=math.inf, help="no injection begins after so long")
    parser.add_argument("--state", type=Path, default=STATE, help="folder of what was done so far")
    parser.add_argument(
        "--patience", type=float, default=1.0, metavar="X", help="wait X times as long, on a machine with other work"
    )
    parser.add_argument("--again", nargs=3, metavar=("ROW", "RUNTIME", "NUMBER"))
    parser.add_argument("--inputs", action="store_true", help="run the tests of bad input")
    parser.add_argument("--report", action="store_true", help="only write the table")
    chosen = parser.parse_args()
    PATIENCE.update({runtime: limit * chosen.patience for runtime, limit in PATIENCE.items()})
    rows, state = all_rows(), State(chosen.state)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # so that the runs of it end too
    work = Path(os.environ.get("TMPDIR", "/tmp")) / f"ludus-faults-{os.getpid()}"
    held = True
    try:
        if chosen.again:
            number, runtime, index = int(chosen.again[0]), chosen.again[1], int(chosen.again[2])
            bench = Bench(work, runtime)
            line = inject(bench, rows[number], index, state.folder / "kept")
            bench.abandon()
            print(_told(line, rows[number]))
            sys.exit(line["outcome"] == BROKEN)
        if chosen.inputs:
            held = inputs.run(state.folder / "inputs.json")
        elif not chosen.report:
            wanted = [int(one) for one in chosen.rows.split(",")] if chosen.rows else list(rows)
            mine = [rows[number] for number in wanted if chosen.runtime in rows[number].runtimes]
            until = time.time() + chosen.minutes * 60
            numbers = range(chosen.first, chosen.first + chosen.times)
            held = run_rows(state, mine, chosen.runtime, numbers, work, until)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report(state, (*EVERYWHERE, DEVICE), keep=True)
    sys.exit(not held)


if __name__ == "__main__":
    main()
