"""Resources of this machine: cores, memory and GPUs; and the installed version of Ludus."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable with the GPUs that a process may use."""
CONTROL_GROUP = Path("/sys/fs/cgroup")
FEW_FILES = 1024
"""A limit of open files per process below this may be too low."""
_ASK_WITHIN_S = 10.0


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names of the GPUs that this process may use, as `GPUS_VARIABLE` takes them; none if nvidia-smi is missing or
    fails."""
    present = tuple(row[0] for row in nvidia_smi("--query-gpu=index", 1) if row[0].isdecimal())
    allowed = environment.get(GPUS_VARIABLE)
    if allowed is None or not present:
        return present
    found = []
    for name in allowed.split(","):
        if name.strip().isdecimal() and name.strip() not in present:
            break  # as CUDA does: a missing GPU hides all after it
        if name.strip() in ("", "-1"):
            break
        found.append(name.strip())
    return tuple(found)


def nvidia_smi(query: str, num_columns: int) -> list[list[str]]:
    """The rows of a query, without units; none if nvidia-smi is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = [program, query, "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=_ASK_WITHIN_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
    return [row for row in rows if len(row) == num_columns]


def memory_info() -> dict[str, int]:
    """Bytes by the names of /proc/meminfo; empty on a system that does not have it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    except (OSError, ValueError, IndexError):
        return {}


def control_group(*files: str) -> float:
    """The number in the first of these files of the control group that holds one; infinite if none does."""
    for file in files:
        try:
            return float(int((CONTROL_GROUP / file).read_text()))
        except (OSError, ValueError):  # missing, or "max"
            continue
    return math.inf


def usable_memory() -> float:
    """Bytes of memory that this machine has, or that its control group grants if that is less."""
    there = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(there, control_group("memory.max", "memory/memory.limit_in_bytes"))


SOURCE_VERSION = "0.1.0"


def installed_version() -> str:
    """The version of Ludus. A source tree on PYTHONPATH has no metadata of an installed distribution."""
    try:
        return version("ludus-league")
    except PackageNotFoundError:
        return f"{SOURCE_VERSION}+source"


def usable_cores() -> float:
    """Cores that this process may use: its affinity, and the quota of its control group if that is less."""
    cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    return min(cores, _quota())


def _quota() -> float:
    """Cores that the control group grants (of version 2 or 1); infinite if it does not say."""
    try:
        quota, period = map(float, (CONTROL_GROUP / "cpu.max").read_text().replace("max", "inf").split())
    except (OSError, ValueError):
        quota, period = control_group("cpu/cpu.cfs_quota_us"), control_group("cpu/cpu.cfs_period_us")
    return quota / period if quota > 0 and 0 < period < math.inf else math.inf


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation of Ludus, be it a clone or a released package."""
    clone = Path(__file__).parents[3]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e '{clone}[{extra}]'"
    return f"pip install 'ludus-league[{extra}]'"


def program() -> str:
    """What to type for `ludus` in this terminal: its path, where the shell would not find this one."""
    mine = Path(sys.argv[0])
    if mine.name != "ludus" or not mine.is_file():
        return "ludus"
    found = shutil.which("ludus")
    if found is not None and Path(found).samefile(mine):
        return "ludus"
    below = mine.resolve().is_relative_to(Path.cwd())
    return shlex.quote(str(mine.resolve().relative_to(Path.cwd()) if below else mine.resolve()))
