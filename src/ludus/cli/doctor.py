"""`ludus doctor`: what this machine has, what is installed, and what to change."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
from rich.markup import escape

from ludus.cli.console import new_console, new_table
from ludus.runtime.cores import usable_cores

EXTRAS = {
    "train": ("torch", "training and playing learned players"),
    "games": ("gymnasium", "games of the Gymnasium interface"),
    "render": ("pillow", "pictures of play in files"),
    "web": ("starlette", "pages in a browser"),
    "openspiel": ("open_spiel", "checking games against OpenSpiel's"),
    "ray": ("ray", "several machines"),
}
GIB = 2**30
LITTLE_SHARED_MEMORY = GIB // 2
LITTLE_DISK = 2 * GIB


@click.command("doctor")
def command() -> None:
    """Explain the machine as training sees it."""
    table = new_table("what", "here", "advice")
    for row in (*_machine(), *_packages()):
        table.add_row(*map(escape, row))
    new_console().print(table)


def _machine() -> Iterator[tuple[str, str, str]]:
    yield "ludus", importlib.metadata.version("ludus"), ""
    yield "python", platform.python_version(), ""
    cores = usable_cores()
    yield "cores", f"{cores:g}", "" if cores >= 2 else "two or more let acting and learning overlap"
    yield "memory", _memory(), ""
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        low = free < LITTLE_SHARED_MEMORY
        advice = "little: start the container with a larger --shm-size" if low else ""
        yield "shared memory", f"{free / GIB:.1f} GiB free", advice
    free = shutil.disk_usage(".").free
    yield (
        "disk here",
        f"{free / GIB:.1f} GiB free",
        "little: runs are written here" if free < LITTLE_DISK else "",
    )
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name, "1") != "1":
            yield name, os.environ[name], "small networks are faster with 1"


def _memory() -> str:
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        kibibytes = {name: int(fields[name].split()[0]) for name in ("MemAvailable", "MemTotal")}
    except (OSError, KeyError, ValueError):
        return "unknown"
    return f"{kibibytes['MemAvailable'] / 2**20:.1f} of {kibibytes['MemTotal'] / 2**20:.1f} GiB free"


def _packages() -> Iterator[tuple[str, str, str]]:
    for extra, (package, purpose) in EXTRAS.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed", f"pip install 'ludus[{extra}]' for {purpose}"
        else:
            yield package, version, ""
    yield "GPU", *_gpu()


def _gpu() -> tuple[str, str]:
    driver = Path("/proc/driver/nvidia/version")
    if not driver.exists():
        return "none", ""
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "NVIDIA driver present", ""
    advice = "this build of torch cannot use it" if torch_version.endswith("+cpu") else ""
    return "NVIDIA driver present", advice
