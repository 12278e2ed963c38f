"""The status of a run: what its controller wrote down, and the cores and memory that its processes use here."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ludus.observe.lost_matches import LossCount
from ludus.store.run_control import SILENT_AFTER_S, Bottleneck, RunStatus, WorkerStatus, read_status
from ludus.store.run_folder import RunFolder
from ludus.system.machine import nvidia_smi

LOOK_S = 1.0
"""Cores in use are measured over so long at least: over less, the kernel's ticks say little."""
GPU_EVERY_S = 10.0
"""nvidia-smi takes a while, and wakes a GPU that sleeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUse:
    """Resources that a process and its descendants use."""

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
    """By process; processes that have ended are left out."""
    meter = UseMeter()
    time.sleep(LOOK_S)
    return meter.look(pids, gpu_memory())


class UseMeter:
    """Measures what processes use from one look to the next."""

    def __init__(self) -> None:
        self._at, self._before = time.monotonic(), _snapshot()

    def look(self, pids: Iterable[int], on_gpus: Mapping[int, int]) -> dict[int, ProcessUse]:
        """Since the last look, by process; processes that have ended are left out. A look that comes too soon
        measures no cores and leaves the time to the next. `on_gpus`: bytes by process."""
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
    """The latest output of nvidia-smi. Threads may share it."""

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
    """The GPUs of this machine; empty if nvidia-smi is missing or fails."""
    return [
        GpuUse(
            name=name,
            utilisation=_number(used) / 100,
            memory=int(_number(memory) * 2**20),
            total_memory=int(_number(total) * 2**20),
        )
        for name, used, memory, total in nvidia_smi("--query-gpu=name,utilization.gpu,memory.used,memory.total", 4)
    ]


def gpu_memory() -> dict[int, int]:
    """Bytes by process."""
    rows = nvidia_smi("--query-compute-apps=pid,used_memory", 2)
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
            found[int(entry.name)] = _Process(int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[21]) * page)
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile
    return found


def _family(pid: int, processes: Mapping[int, _Process]) -> list[int]:
    """The process and all that descend from it."""
    family = [pid] if pid in processes else []
    for one in family:
        family += [child for child, found in processes.items() if found.parent == one]
    return family


def _number(text: str) -> float:
    """nvidia-smi says [N/A] where a GPU does not."""
    try:
        return float(text)
    except ValueError:
        return 0.0


ENDED = ("finished", "stopped", "failed", "time limit reached", "dead")
STARTING = "starting"
"""A process holds the run and has not written a status."""
CONTROLLER = "controller"


def look_at_run(
    folder: RunFolder, measure: Callable[[Iterable[int]], Mapping[int, ProcessUse]] = look_at
) -> RunStatus | None:
    """The status that the controller wrote, with the use that is measured here; None if it never wrote one."""
    status = read_status(folder.status)
    if status is None:
        return None
    if status.state in ENDED:
        return status
    if folder.holder() is None:
        return msgspec.structs.replace(status, state="dead", workers=(), bottleneck=None)
    controller = WorkerStatus(
        name=CONTROLLER, state="working", pid=status.pid, node=status.node, started=status.started
    )
    workers = [controller, *status.workers]
    here = {one.pid: number for number, one in enumerate(workers) if one.pid and one.node == socket.gethostname()}
    for pid, use in measure(here).items():
        workers[here[pid]] = msgspec.structs.replace(
            workers[here[pid]],
            cores=None if use.cores is None else round(use.cores, 3),
            memory=use.memory,
            gpu_memory=use.gpu_memory,
        )
    return msgspec.structs.replace(status, workers=tuple(_without_children(workers)))


def state_without_status(folder: RunFolder) -> str:
    """The state of a run whose controller has not written a status yet."""
    return STARTING if folder.holder() is not None else "never started"


def silence(status: RunStatus, now: float) -> float:
    """Seconds since the controller wrote its status, if they are more than usual; else 0."""
    silent = 0.0 if status.state in ENDED else now - status.time
    return silent if silent > SILENT_AFTER_S else 0.0


def status_document(folder: RunFolder, losses: LossCount | None = None) -> dict[str, Any]:
    """The status as plain values: what `ludus status --json` prints. `losses` counts on from an earlier call."""
    status = look_at_run(folder)
    if status is None:
        return {"run": str(folder.path), "state": state_without_status(folder)}
    lost = (losses or LossCount()).follow_run(folder)
    return {
        "run": str(folder.path),
        **msgspec.to_builtins(status),
        "gpus": [msgspec.to_builtins(gpu) for gpu in gpus()],
        "lost_matches": msgspec.to_builtins(lost),
    }


def _without_children(workers: list[WorkerStatus]) -> list[WorkerStatus]:
    """The other workers are the controller's children: what they use is not its own."""
    controller, *others = workers
    beside = [one for one in others if one.node == controller.node]
    if controller.memory is None or controller.gpu_memory is None:
        return workers
    cores = controller.cores
    own = msgspec.structs.replace(
        controller,
        cores=None if cores is None else max(0.0, cores - sum(one.cores or 0.0 for one in beside)),
        memory=max(0, controller.memory - sum(one.memory or 0 for one in beside)),
        gpu_memory=max(0, controller.gpu_memory - sum(one.gpu_memory or 0 for one in beside)),
    )
    return [own, *others]


WAITS_MUCH = 0.25
"""Share of the time from which on a wait says something by itself."""
BOTH_BUSY = 0.05
_NO_WORKER: Mapping[str, float] = {}


def find_bottleneck(
    actors: Mapping[str, float],
    learner: Mapping[str, float],
    buffer: Mapping[str, float] = _NO_WORKER,
    *,
    num_actors: int,
    schedule: str,
    central: bool,
    run: str,
    idle_gpu: bool = False,
) -> Bottleneck | None:
    """`actors` (mean of all), `learner`, `buffer` (of a buffer worker): shares of their time, by what it went
    into; None: nothing is known. `central`: a policy worker decides for the actors. `idle_gpu`: the machine has a GPU
    that this run does not use."""
    if not actors or not learner:
        return None
    held, idle = actors["waiting"], learner["waiting"]
    waits = f"actors wait for the learner {held:.0%} of their time, the learner for actors {idle:.0%}"
    recomputing = buffer.get("recomputing", 0.0)
    if recomputing > 1.0 - WAITS_MUCH and idle > BOTH_BUSY:
        return Bottleneck(
            what="buffer",
            why=f"the buffer worker is busy {recomputing:.0%} of its time, and the learner waits {idle:.0%}",
            advice="a larger learner.recompute_lag, a smaller learner.reuse, or learner.buffer_worker=false, "
            "if cores are few",
        )
    if min(held, idle) > WAITS_MUCH:
        advice = (
            "--set learner.schedule=async lets them overlap"
            if schedule == "sync"
            else "a larger learner.max_lag or a smaller learner.batch_size lets them overlap more"
        )
        return Bottleneck(what="buffer", why=f"{waits}: they take turns", advice=advice)
    if held > idle:
        gpu = "learner.device=cuda, " if idle_gpu else ""
        fewer = "; fewer actors would leave it more of the cores" if num_actors > 1 else ""
        return Bottleneck(
            what="learner",
            why=waits,
            advice=f"{gpu}fewer learner.epochs, a larger learner.minibatch_size, or more learner.ranks{fewer}",
        )
    if max(held, idle) < BOTH_BUSY:
        waits += ": all are busy, the cores are the limit"
    spent = f"{waits}; actors spend {actors['game']:.0%} in the game and {actors['inference']:.0%} in decisions"
    if actors["game"] > actors["inference"]:
        return Bottleneck(
            what="game",
            why=spent,
            advice=f"`ludus scale {run} actors={num_actors + 1}`, if cores are free; else a faster game",
        )
    return Bottleneck(
        what="inference",
        why=spent,
        advice=f"`ludus scale {run} actors={num_actors + 1}`, if cores are free, or a smaller model"
        if central
        else f"more actor.num_tables (larger calls){', actor.inference=worker' * idle_gpu}, or a smaller model",
    )
