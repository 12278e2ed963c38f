"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> float:
    """Cores that this process may use: its affinity, and the quota of its control group if that is less."""
    cores = (
        float(len(os.sched_getaffinity(0)))
        if hasattr(os, "sched_getaffinity")
        else float(os.cpu_count() or 1)
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else min(cores, int(quota) / int(period))
    except (OSError, ValueError):
        return cores
