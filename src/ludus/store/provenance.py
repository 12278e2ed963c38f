"""What a run was made with: versions and machine, for who wants to repeat it."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

GIT_S = 5.0


def torch_version() -> str:
    """ "" where there is none; without loading it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


@cache
def source_commit() -> str:
    """The commit of Ludus' own code, with + if files were changed since; "" if it is no checkout."""
    package = Path(__file__).parent.parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(package), *words], capture_output=True, text=True, timeout=GIT_S, check=True
        ).stdout.strip()

    try:
        # A folder that only happens to lie in somebody else's checkout says nothing about this code.
        if not git("ls-files", "--", "__init__.py"):
            return ""
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def describe_machine() -> str:
    """In words; not which one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB of memory"
    return f"{platform.system()} {platform.release()} on {platform.machine()}, {cores} cores{memory}"
