"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores() -> float:
    """Cores that this process may use: its affinity, and the quota of its control group if that is less."""
    cores = (
        float(len(os.sched_getaffinity(0)))
        if hasattr(os, "sched_getaffinity")
        else float(os.cpu_count() or 1)
    )
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
