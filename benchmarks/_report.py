"""Dated reports: what was run, where, with which versions, and the figures. Shared by the benchmarks."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

REPORTS = Path(__file__).parent / "reports"
LOAD_AT_START = os.getloadavg()[0]
"""Of the last minute before this process: what else the machine was doing."""

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""(heading, columns, rows)"""


def machine() -> dict[str, str]:
    """The facts that a figure depends on."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "commit": _git("rev-parse", "--short", "HEAD")
        + (" with changes" if _git("status", "--porcelain", "src") else ""),
        "cores": f"{len(os.sched_getaffinity(0))} x {model}",
        "load at the start": f"{LOAD_AT_START:.2f}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("ludus-league", "torch", "numpy")},
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        return "not installed"


def write(
    name: str,
    title: str,
    tables: Sequence[Table],
    *,
    facts: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    keep: bool = True,
) -> None:
    """One Markdown file per day and benchmark; `keep=False` only prints it, for runs too short to quote."""
    today = datetime.date.today().isoformat()
    text = [f"# {title}, {today}", ""]
    text += [f"- {key}: {value}" for key, value in {**machine(), **(facts or {})}.items()]
    for note in notes:
        text += ["", note]
    for heading, columns, rows in tables:
        text += ["", f"## {heading}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        text += [f"| {' | '.join(row)} |" for row in rows]
    print("\n".join(text))
    if keep:
        REPORTS.mkdir(exist_ok=True)
        path = REPORTS / f"{today}-{name}.md"
        path.write_text("\n".join(text) + "\n")
        print(f"\nwritten to {path}")


def parser(description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def _git(*arguments: str) -> str:
    program = ["git", "-C", str(Path(__file__).parent.parent), *arguments]
    return subprocess.run(program, capture_output=True, text=True).stdout.strip()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
