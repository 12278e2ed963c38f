"""What this machine has, for who asks for a part of it: GPUs and memory. Cores are in `cores.py`."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable by which a process is told which GPUs it may use."""
_ASK_WITHIN_S = 10.0


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names of the GPUs that this process may use, as the variable above takes them; none where nvidia-smi is
    missing or fails."""
    present = _present_gpus()
    allowed = environment.get(GPUS_VARIABLE)
    if allowed is None or not present:
        return present
    found = []
    for name in allowed.split(","):
        if name.strip().isdecimal() and name.strip() not in present:
            break  # as CUDA does: what comes after one that is not there is not there either
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
    """Bytes that this machine has, or that its control group grants if that is less."""
    there = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    granted = math.inf
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            granted = float(int((Path("/sys/fs/cgroup") / file).read_text()))
            break
        except (OSError, ValueError):  # missing, or "max"
            continue
    return min(there, granted)
