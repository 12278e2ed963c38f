"""Resources of this machine: cores, memory and GPUs; and the installed version of Ludus."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable with the GPUs that a process may use."""
_ASK_WITHIN_S = 10.0


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names of the GPUs that this process may use, as `GPUS_VARIABLE` takes them; none if nvidia-smi is missing or
    fails."""
    present = _present_gpus()
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


def _present_gpus() -> tuple[str, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    asked = [program, "--query-gpu=index", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=_ASK_WITHIN_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in told.splitlines() if line.strip().isdecimal())


def usable_memory() -> float:
    """Bytes of memory that this machine has, or that its control group grants if that is less."""
    there = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    granted = math.inf
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            granted = float(int((Path("/sys/fs/cgroup") / file).read_text()))
            break
        except (OSError, ValueError):  # missing, or "max"
            continue
    return min(there, granted)


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
    group = Path("/sys/fs/cgroup")
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (group / "cpu/cpu.cfs_quota_us").read_text()
            period = (group / "cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return math.inf
    try:
        granted = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return math.inf
    return granted if granted > 0 else math.inf


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation of Ludus, be it a clone or a released package."""
    clone = Path(__file__).parents[3]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e '{clone}[{extra}]'"
    return f"pip install 'ludus-league[{extra}]'"
