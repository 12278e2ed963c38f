"""Whether a long run stays flat: trains a recipe as `ludus train` does and samples every process of it.

python benchmarks/soak.py                                     connect_four, 2 hours
python benchmarks/soak.py skirmish --hours 1 --into /tmp/soak
python benchmarks/soak.py --into /tmp/soak --report           the report of what is sampled so far; trains nothing
python benchmarks/soak.py beacon --set league.roles.main.promotion.every=20000   events of many hours in one
python benchmarks/soak.py --hours 0.03                        to see that it runs; less than an hour writes no report

Samples are appended to samples.jsonl as they are taken. The same command again goes on where an earlier one ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from _report import REPORTS, machine, parser, write

EVERY_S = 10.0
LEAST_HOURS = 1.0
WARM_UP = 1 / 3
"""Share of a process's decisions that does not count: allocators settle, caches of code and models fill."""
WINDOWS = 12
"""The rest is cut into so many parts. A part has a low and a high mark, its 10th and 90th percentile."""
SLACK = {"memory": (4.0, 0.02), "descriptors": (1.0, 0.0), "threads": (1.0, 0.0)}
"""Rise of a fitted line that still is flat: so much, or this share of its value. Memory in MiB."""
FASTER = 1.25
"""A folder may grow in proportion to decisions: the second half by no more than this times the first."""
FLAT_BYTES = 2**20
RULE = (
    f"Rule, written before the run: the first {WARM_UP:.0%} of the decisions of a process do not count (at first: "
    "of the run, which judged a process that was started in the middle while its caches filled). The rest is cut into "
    f"{WINDOWS} parts of equal time; the low and the high mark of a part are its 10th and 90th percentile. A line is "
    "fitted to the low marks and one to the high marks, against decisions. A quantity **GROWS** if both lines rise, "
    f"from the first part to the last, by more than {SLACK['memory'][0]:.0f} MiB and {SLACK['memory'][1]:.0%} "
    "(memory) or by more than 1 (descriptors, threads). A learner takes twice as much memory within an update as "
    "between two, so a leak is what raises both marks. A part of the folder is flat below 1 MiB of growth, linear "
    f"if the second half grows by no more than {FASTER} times the first, else **FASTER**."
)

Series = tuple[np.ndarray, np.ndarray]
"""(millions of decisions, values)"""


# --- taking samples ---


def processes(root: int) -> dict[str, int]:
    """A process and its descendants, by name; a worker that was started again has another name."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it may have ended since we listed it
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, new = {"controller": root}, {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        for pid in new:
            with suppress(OSError):
                found[f"{_name(pid)} ({pid})"] = pid
    return found


def _name(pid: int) -> str:
    """Workers are told on their command line, in JSON, what they are; helpers are files of their own."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    for word in words:
        if word.startswith("{"):
            return str(json.loads(word)["role"])
        if word.endswith(".py"):
            return Path(word).stem
    return words[0] or "ended"


def measure(pid: int) -> dict[str, float]:
    """MiB and counts: all that is resident, the proportional share of it, and the process's own (anonymous) part."""
    folder = Path(f"/proc/{pid}")
    lines = (folder / "smaps_rollup").read_text().splitlines()[1:]
    sizes = {key: int(rest.split()[0]) / 1024 for key, rest in (line.split(":") for line in lines)}
    return {
        "rss": sizes["Rss"],
        "pss": sizes["Pss"],
        "own": sizes["Anonymous"],
        "descriptors": len(list((folder / "fd").iterdir())),
        "threads": len(list((folder / "task").iterdir())),
    }


def folder_parts(run: Path) -> dict[str, int]:
    """Bytes of each file or folder of the run; the ledger with its journal."""
    parts: dict[str, int] = defaultdict(int)
    for parent, _, files in os.walk(run):
        for file in files:
            path = Path(parent, file)
            with suppress(OSError):
                parts[path.relative_to(run).parts[0].partition("-")[0]] += path.stat().st_size
    return dict(parts)


def sample(second: float, training: subprocess.Popen[bytes], run: Path) -> dict[str, Any]:
    taken = {}
    for name, pid in processes(training.pid).items():
        with suppress(OSError):
            taken[name] = measure(pid)
    decisions = None
    with suppress(OSError, ValueError):
        decisions = json.loads((run / "status.json").read_text())["decisions"]
    load = os.getloadavg()[0]
    return {
        "second": round(second, 1),
        "decisions": decisions,
        "load": load,
        "processes": taken,
        "folder": folder_parts(run),
    }


@contextmanager
def trained(recipe: str, settings: Sequence[str], run: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "ludus.cli.main", "train", "--run", str(run), "--quiet"]
    if run.exists():
        command += ["--resume"]
    else:
        command += [recipe, "--runtime", "local", "--actors", "1", "--set", "budget=1000000000000"]
        command += [word for setting in settings for word in ("--set", setting)]
    with subprocess.Popen(command, start_new_session=True) as training:
        try:
            yield training
        finally:
            training.send_signal(signal.SIGTERM)  # asks for an end in good order
            training.wait(300)


def soak(recipe: str, settings: Sequence[str], hours: float, into: Path) -> None:
    """Train until there are samples of so many hours."""
    into.mkdir(parents=True, exist_ok=True)
    facts = into / "facts.json"
    if not facts.exists():
        facts.write_text(json.dumps({**machine(), "recipe": " ".join([recipe, *settings])}))
    before = read(into)
    start = time.monotonic() - (before[-1]["second"] if before else 0.0)
    with (into / "samples.jsonl").open("a") as file, trained(recipe, settings, into / "run") as training:
        while (second := time.monotonic() - start) < hours * 3600:
            if training.poll() is not None:
                raise SystemExit(f"the training ended by itself with exit code {training.returncode}")
            file.write(json.dumps(sample(second, training, into / "run")) + "\n")
            file.flush()
            time.sleep(EVERY_S)


def read(into: Path) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        return [json.loads(line) for line in (into / "samples.jsonl").read_text().splitlines() if line.endswith("}")]
    return []


# --- judging them ---


def series(samples: Sequence[Mapping[str, Any]], process: str, quantity: str) -> Series:
    chosen = [one for one in samples if process in one["processes"] and one["decisions"] is not None]
    return (
        np.array([one["decisions"] / 1e6 for one in chosen]),
        np.array([one["processes"][process][quantity] for one in chosen], float),
    )


def after_warm_up(found: Series) -> Series:
    if not len(found[0]):
        return found
    kept = found[0] >= found[0][0] + (found[0][-1] - found[0][0]) * WARM_UP
    return found[0][kept], found[1][kept]


def marks(found: Series) -> tuple[np.ndarray, np.ndarray]:
    """The middle of each part in millions of decisions, and its low and high mark."""
    parts = [(x, y) for x, y in zip(np.array_split(found[0], WINDOWS), np.array_split(found[1], WINDOWS), strict=True)]
    return np.array([x.mean() for x, _ in parts]), np.array([np.percentile(y, (10, 90)) for _, y in parts])


def verdict(found: Series, kind: str) -> list[str]:
    """Low to high mark of the first part and of the last, slope per million decisions, flat or not."""
    if len(found[0]) < 4 * WINDOWS or np.ptp(found[0]) == 0:
        return ["-", "-", "too few samples"]
    middle, both = marks(found)
    least, share = SLACK[kind]
    slopes, grows = [], []
    for mark in both.T:
        slope, offset = np.polyfit(middle, mark, 1)
        first, last = (slope * x + offset for x in (middle[0], middle[-1]))
        slopes.append(slope)
        grows.append(last - first > max(least, share * first))
    numbers = f"{both[0][0]:.0f} to {both[0][1]:.0f}, then {both[-1][0]:.0f} to {both[-1][1]:.0f}"
    return [numbers, f"{slopes[0]:+.2f}, {slopes[1]:+.2f}", "**GROWS**" if all(grows) else "flat"]


def folder_verdict(found: Series) -> list[str]:
    """Size at the end, growth per million decisions, and whether that stays what it is."""
    x, y = found
    if len(x) < 4 or np.ptp(x) == 0:
        return ["-", "-", "too few samples"]
    half = int(np.searchsorted(x, (x[0] + x[-1]) / 2))
    first = (y[half] - y[0]) / (x[half] - x[0])
    second = (y[-1] - y[half]) / (x[-1] - x[half])
    if y[-1] - y[0] < FLAT_BYTES:
        told = "flat"
    else:
        told = "linear" if second <= FASTER * max(first, 0.0) else "**FASTER**"
    return [f"{y[-1] / 2**20:.1f}", f"{first / 2**20:+.3f}, {second / 2**20:+.3f}", told]


def report(into: Path, name: str) -> None:
    samples = read(into)
    facts = json.loads((into / "facts.json").read_text())
    hours = samples[-1]["second"] / 3600
    end = max(one["decisions"] or 0 for one in samples) / 1e6
    names = sorted({process for one in samples for process in one["processes"]})
    rows = []
    for process in names:
        for quantity in ("own", "rss", "pss", "descriptors", "threads"):
            kind = quantity if quantity in SLACK else "memory"
            rows.append([process, quantity, *verdict(after_warm_up(series(samples, process, quantity)), kind)])
    judged = [row for row in rows if row[-1] != "too few samples"]
    short = sorted({row[0] for row in rows} - {row[0] for row in judged})
    parts = sorted({part for one in samples for part in one["folder"]})
    folder_rows = [[part, *folder_verdict(after_warm_up(_folder(samples, part)))] for part in parts]
    loads = [one["load"] for one in samples]
    facts |= {
        "trained": f"{hours * 60:.0f} minutes by `ludus train`, local runtime, 1 actor, {end:.2f} million decisions",
        "load of the machine": f"{np.median(loads):.1f} in the median, {np.max(loads):.1f} at most; a run alone is "
        "about 2, so more than that is other work on the same cores",
    }
    if short:
        facts["too few samples to judge"] = ", ".join(short)
    REPORTS.mkdir(exist_ok=True)
    draw(samples, REPORTS / f"{name}.png")
    write(
        name,
        f"Soak of {facts['recipe']}",
        [
            (
                "Processes (MiB and counts; low to high mark of the first and of the last part)",
                ("process", "quantity", "marks", "slope of low, high mark per million decisions", "verdict"),
                judged,
            ),
            (
                "Run folder (MiB)",
                ("part", "at the end", "growth per million decisions, first and second half", "verdict"),
                folder_rows,
            ),
        ],
        facts=facts,
        notes=[RULE, f"![curves]({name}.png)"],
        keep=hours >= LEAST_HOURS,
    )


def _folder(samples: Sequence[Mapping[str, Any]], part: str) -> Series:
    chosen = [one for one in samples if one["decisions"] is not None]
    return (
        np.array([one["decisions"] / 1e6 for one in chosen]),
        np.array([one["folder"].get(part, 0) for one in chosen], float),
    )


def draw(samples: Sequence[Mapping[str, Any]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ((memory, folder), (descriptors, threads)) = plt.subplots(2, 2, figsize=(10, 6))
    for axes, quantity, title in (
        (memory, "own", "own memory, MiB"),
        (descriptors, "descriptors", "descriptors"),
        (threads, "threads", "threads"),
    ):
        for process in sorted({process for one in samples for process in one["processes"]}):
            axes.plot(*series(samples, process, quantity), linewidth=0.7, label=process)
        axes.set_title(title)
    for part in sorted({part for one in samples for part in one["folder"]}):
        x, y = _folder(samples, part)
        if len(y) and y.max() >= FLAT_BYTES / 10:
            folder.plot(x, y / 2**20, linewidth=0.9, label=part)
    folder.set_title("run folder, MiB")
    for axes in (memory, folder):
        axes.legend(fontsize=6)
    for axes in (descriptors, threads):
        axes.set_xlabel("millions of decisions")
    figure.tight_layout()
    figure.savefig(file, dpi=70)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("recipe", nargs="?", default="connect_four")
    arguments.add_argument("--set", action="append", default=[], dest="settings", metavar="PATH=VALUE")
    arguments.add_argument("--hours", type=float, default=2.0)
    arguments.add_argument("--into", type=Path, help="folder of the run and of the samples; default: a temporary one")
    arguments.add_argument("--report", action="store_true", help="train nothing, report what is in --into")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        into = chosen.into or Path(temporary)
        if not chosen.report:
            soak(chosen.recipe, chosen.settings, chosen.hours, into)
        report(into, f"soak_{chosen.recipe}")


if __name__ == "__main__":
    main()
