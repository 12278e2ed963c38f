"""`status.json`: what the process that trains a run says about it every few seconds, for who looks on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from ludus.store.files import UNREADABLE, atomic_write

PUBLISH_EVERY_S = 2.0
SILENT_AFTER_S = 20.0
"""A process that trains and has written nothing for so long is busy with something long, or hangs."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a run."""

    name: str
    state: str
    """working, starting, leaving, quarantined; of a service also waiting (for a node that has what it needs)
    and ended"""
    pid: int | None
    node: str
    started: float
    """Unix time."""
    restarts: int = 0
    shares: dict[str, float] = {}
    """Of its time of late, by what it was spent on."""
    address: str = ""
    """Of a service, where it is called."""
    cores: float | None = None
    """That it uses; None where only somebody on its node can see that."""
    memory: int | None = None
    """Bytes of its own and shared ones that it has touched."""
    gpu_memory: int | None = None
    """Bytes, on all GPUs of its node."""


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """What everybody waits for."""

    what: str
    """game, inference, buffer, learner"""
    why: str
    advice: str
    """A setting to try."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was at `time`."""

    time: float
    state: str
    """training, paused, finished, stopped, "time limit reached", failed"""
    experiment: str
    trial: str | None
    runtime: str
    node: str
    pid: int
    started: float
    """Of the process that trains, Unix time."""
    time_limit_h: float
    decisions: int
    budget: int
    decisions_per_s: float
    """Of late."""
    lag: dict[str, float]
    """By player: versions between the weights that decided and those that learned from it, on average."""
    episodes: int
    matches: int
    restarts: int
    workers: tuple[WorkerStatus, ...] = ()
    bottleneck: Bottleneck | None = None
    """None until there is something to go by."""


def write_status(path: Path, status: RunStatus) -> None:
    """Whole or not at all. A run does not end because nobody can look on: a full disk is not told here."""
    with suppress(OSError):
        atomic_write(path, msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n", sync=False)


def read_status(path: Path) -> RunStatus | None:
    """None if there is none yet, or only one of another version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunStatus)
    except (FileNotFoundError, *UNREADABLE):
        return None
