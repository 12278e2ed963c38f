"""What processes of this machine use: cores and memory from /proc, GPUs from nvidia-smi."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 1.0
"""Cores in use are measured over so long at least: over less, the kernel's ticks say little."""
NVIDIA_SMI_S = 5.0
GPU_EVERY_S = 10.0
"""nvidia-smi takes a while, and wakes a GPU that sleeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUse:
    """Of a process and all that it has started."""

    cores: float | None
    """None: not watched for long enough."""
    memory: int
    """Bytes; pages that several processes have touched count for each of them."""
    gpu_memory: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    name: str
    utilisation: float
    """Share of the time that it computes."""
    memory: int
    total_memory: int


def look_at(pids: Iterable[int]) -> dict[int, ProcessUse]:
    """By process; who is gone is left out."""
    meter = UseMeter()
    time.sleep(LOOK_S)
    return meter.look(pids, gpu_memory())


class UseMeter:
    """What processes use from one look to the next."""

    def __init__(self) -> None:
        self._at, self._before = time.monotonic(), _snapshot()

    def look(self, pids: Iterable[int], on_gpus: Mapping[int, int]) -> dict[int, ProcessUse]:
        """Since the last look, by process; who is gone is left out. A look that comes too soon tells no cores
        and leaves the time to the next. `on_gpus`: bytes by process."""
        before, after, at = self._before, _snapshot(), time.monotonic()
        passed = at - self._at
        if passed >= LOOK_S:
            self._at, self._before = at, after
        found = {}
        for pid in pids:
            family = _family(pid, after)
            if family:
                ticks = sum(after[one].ticks - before[one].ticks for one in family if one in before)
                found[pid] = ProcessUse(
                    cores=ticks / os.sysconf("SC_CLK_TCK") / passed if passed >= LOOK_S else None,
                    memory=sum(after[one].memory for one in family),
                    gpu_memory=sum(on_gpus.get(one, 0) for one in family),
                )
        return found


class GpuWatch:
    """What nvidia-smi has said last. Threads may share it."""

    def __init__(self) -> None:
        self.gpus: list[GpuUse] = []
        self.memory: dict[int, int] = {}
        """Bytes by process."""
        self._due = 0.0
        self._asking = threading.Lock()

    def look(self) -> None:
        """Ask again if that is some time ago; while one thread does, the others go on with what is known."""
        if time.monotonic() < self._due or not self._asking.acquire(blocking=False):
            return
        try:
            self.gpus, self.memory = gpus(), gpu_memory()
        finally:
            self._due = time.monotonic() + GPU_EVERY_S
            self._asking.release()


def gpus() -> list[GpuUse]:
    """Of this machine; none where nvidia-smi is missing or fails."""
    asked = "name,utilization.gpu,memory.used,memory.total"
    found = []
    for name, used, memory, total in _nvidia_smi(f"--query-gpu={asked}", 4):
        found.append(
            GpuUse(
                name=name,
                utilisation=_number(used) / 100,
                memory=int(_number(memory) * 2**20),
                total_memory=int(_number(total) * 2**20),
            )
        )
    return found


def gpu_memory() -> dict[int, int]:
    """Bytes by process."""
    rows = _nvidia_smi("--query-compute-apps=pid,used_memory", 2)
    return {int(_number(pid)): int(_number(memory) * 2**20) for pid, memory in rows}


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    ticks: int
    memory: int


def _snapshot() -> dict[int, _Process]:
    """All processes that can be seen. Threads count with their process."""
    found = {}
    page = os.sysconf("SC_PAGE_SIZE")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            found[int(entry.name)] = _Process(
                int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[21]) * page
            )
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile
    return found


def _family(pid: int, processes: Mapping[int, _Process]) -> list[int]:
    """The process and all that descend from it."""
    family = [pid] if pid in processes else []
    for one in family:
        family += [child for child, found in processes.items() if found.parent == one]
    return family


def _nvidia_smi(query: str, num_columns: int) -> list[list[str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        told = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
    return [row for row in rows if len(row) == num_columns]


def _number(text: str) -> float:
    """nvidia-smi says [N/A] where a GPU does not."""
    try:
        return float(text)
    except ValueError:
        return 0.0
