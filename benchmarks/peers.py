"""Ludus and its peers side by side: the same work in turn on one machine, as ratios against the bars.

python benchmarks/peers.py            three rounds, about half an hour; wants two idle cores
python benchmarks/peers.py --quick    one short round, to see that everything runs; writes no report
"""

from __future__ import annotations

import json
import os
import pstats
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from _programs import ALL, BARS, ENVIRONMENTS, PROGRAMS, ROOT, Program
from _report import LOAD_AT_START, Table, parser, write

QUIET_LOAD = 0.3
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


Window = dict[str, float]
Windows = dict[str, list[Window]]

NOTES = (
    "A frame is one decision that the learner has trained on. CPU seconds are user and system time of the "
    "whole process tree. A rate and a ratio are over all windows together; brackets hold the slowest and the "
    "fastest window, and for a ratio our slowest against the peer's fastest and the reverse.",
    "More environments make every library's calls larger and cheaper per frame. The bars are against the "
    "peers' usual numbers of environments; a row with as many as ours shows what is left of it.",
    "Connect four compares the games as much as the engines: ours plays all tables at once in array "
    "operations, PettingZoo's plays one move at a time in Python.",
    "Gymnasium's own vector environment is what Ludus uses for CartPole by default; `env by env` steps "
    "single environments, as the peers do, without the wrappers whose work Ludus does itself.",
)


def measure(program: Program, options: Sequence[str]) -> list[Window]:
    """The windows that a program prints."""
    done = subprocess.run(
        program.line(options), capture_output=True, text=True, env={**os.environ, **ONE_THREAD}, check=False
    )
    windows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"frames"')]
    if done.returncode or not windows:
        sys.exit(f"{program.name} ended with code {done.returncode}:\n{done.stdout}{done.stderr[-4000:]}")
    return windows


def rates(windows: Sequence[Window], clock: str) -> tuple[float, float, float]:
    """Frames per second of that clock: all windows together, the slowest, the fastest."""
    each = [window["frames"] / window[clock] for window in windows]
    return sum(w["frames"] for w in windows) / sum(w[clock] for w in windows), min(each), max(each)


def figures(windows: Windows) -> list[list[str]]:
    rows = []
    for name, measured in windows.items():
        shown = ["{:,.0f} ({:,.0f} - {:,.0f})".format(*rates(measured, clock)) for clock in ("cpu", "wall")]
        cores = sum(w["cpu"] for w in measured) / sum(w["wall"] for w in measured)
        rows.append([name, *shown, f"{cores:.2f}", str(len(measured))])
    return rows


def verdicts(windows: Windows) -> tuple[list[list[str]], list[str]]:
    """Rows of the table of bars, and our programs that have missed one."""
    rows, missed = [], []
    for bar in BARS:
        if bar.ours not in windows or bar.peer not in windows:
            continue
        rate, slowest, fastest = rates(windows[bar.ours], bar.clock)
        peer_rate, peer_slowest, peer_fastest = rates(windows[bar.peer], bar.clock)
        ratio, low = rate / peer_rate, slowest / peer_fastest
        if bar.at_least is None:
            wanted, verdict = "-", "shown only"
        else:
            wanted = f">= {bar.at_least:g} x"
            verdict = "met" if low >= bar.at_least else "met, not in every window"
            if ratio < bar.at_least:
                verdict = "**MISSED**"
                missed.append(bar.ours)
        clock = "per CPU-core-second" if bar.clock == "cpu" else "wall"
        shown = f"{ratio:.1f} x ({low:.1f} - {fastest / peer_slowest:.1f})"
        rows.append([bar.ours, bar.peer, clock, shown, wanted, verdict])
    return rows, list(dict.fromkeys(missed))


def profile(program: Program, options: Sequence[str]) -> list[list[str]]:
    """Where the time of the one-process variant goes: the functions with most time of their own."""
    serial = tuple(part for part in program.command if part not in ("--runtime", "local"))
    with tempfile.NamedTemporaryFile(suffix=".prof") as file:
        command = replace(program, command=serial).line([*options, "--profile", file.name])
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, **ONE_THREAD})
        stats = pstats.Stats(file.name).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in stats.values())
    most = sorted(stats.items(), key=lambda item: -item[1][2])[:15]
    return [
        [f"`{Path(file).name}:{line} {function}`", f"{calls:,}", f"{own / total:.1%}"]
        for (file, line, function), (_, calls, own, _, _) in most
    ]


def peer_versions() -> dict[str, str]:
    """What is really installed of the packages that are asked for."""
    code = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    found = {}
    for asked in sorted(PROGRAMS.glob("*.txt")):
        names = [line.split("==")[0] for line in asked.read_text().splitlines() if "==" in line]
        names = [name for name in names if not name.startswith("#")]
        python = str(ENVIRONMENTS / asked.stem / "bin/python")
        shown = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True)
        found[f"environment {asked.stem}"] = shown.stdout.strip()
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--repeat", type=int, default=3, metavar="N", help="rounds")
    arguments.add_argument("--windows", type=int, default=3, help="per program and round")
    arguments.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    arguments.add_argument("--only", default="", metavar="TEXT", help="programs whose name contains it")
    chosen = arguments.parse_args()
    if chosen.quick:
        chosen.repeat, chosen.windows, chosen.seconds = 1, 2, 2.0
    programs = {program.name: program for program in ALL if chosen.only.lower() in program.name.lower()}
    if not programs:
        sys.exit(f"no program has {chosen.only!r} in its name: {'; '.join(p.name for p in ALL)}")
    subprocess.run(["make", "-C", str(ROOT), "--no-print-directory", "peers"], check=True)
    if LOAD_AT_START > QUIET_LOAD:
        print(f"load {LOAD_AT_START:.2f}: this machine is not idle, wall figures are not to be quoted")

    warm_up = str(min(5.0, chosen.seconds))
    options = ["--windows", str(chosen.windows), "--seconds", str(chosen.seconds), "--warm-up", warm_up]
    windows: Windows = defaultdict(list)
    for round_number in range(chosen.repeat):
        for program in programs.values():
            windows[program.name] += measure(program, options)
            cpu, wall = (rates(windows[program.name], clock)[0] for clock in ("cpu", "wall"))
            print(f"round {round_number + 1}: {program.name}: {cpu:,.0f} / core-second, {wall:,.0f} / s")

    bars, missed = verdicts(windows)
    settings = [[program.name, program.settings] for program in programs.values()]
    rate_columns = ("program", "per CPU-core-second", "wall", "own cores", "windows")
    tables: list[Table] = [
        ("Bars", ("ours", "peer", "measure", "ratio", "bar", "verdict"), bars),
        ("Frames per second", rate_columns, figures(windows)),
        ("Settings", ("program", "settings"), settings),
    ]
    for name in missed if not chosen.quick else ():
        columns = ("function", "calls", "share of the time")
        tables.append((f"Profile: {name}, in one process", columns, profile(programs[name], options)))
    facts = {
        **peer_versions(),
        "windows": f"{chosen.repeat} rounds of {chosen.windows} x {chosen.seconds:g} s after {warm_up} s",
    }
    write("peers", "Ludus and its peers", tables, facts=facts, notes=NOTES, keep=not (chosen.quick or chosen.only))


if __name__ == "__main__":
    main()
