"""Dated reports: what was run, where, with which versions, and the figures. Shared by the benchmarks."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

REPORTS = Path(__file__).parent / "reports"


def machine() -> dict[str, str]:
    """The facts that a figure depends on."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    changed = subprocess.run(["git", "status", "--porcelain", "src"], capture_output=True, text=True).stdout
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "commit": commit.strip() + (" with changes" if changed else ""),
        "cores": f"{len(os.sched_getaffinity(0))} x {model}",
        "load at the start": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("ludus", "torch", "numpy")},
    }


def write(
    name: str, title: str, tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]
) -> Path:
    """One Markdown file per day and benchmark; each table is (heading, columns, rows)."""
    today = datetime.date.today().isoformat()
    text = [f"# {title}, {today}", ""]
    text += [f"- {key}: {value}" for key, value in machine().items()]
    for heading, columns, rows in tables:
        text += ["", f"## {heading}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        text += [f"| {' | '.join(row)} |" for row in rows]
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / f"{today}-{name}.md"
    path.write_text("\n".join(text) + "\n")
    print("\n".join(text), f"\nwritten to {path}")
    return path


def parser(description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
