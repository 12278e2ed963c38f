"""How a run is, as it says itself and as can be seen from here: who lives, cores and memory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping

import msgspec

from ludus.observe.process_use import ProcessUse, look_at
from ludus.store.run_folder import RunFolder
from ludus.store.run_status import RunStatus, WorkerStatus, read_status

ENDED = ("finished", "stopped", "failed", "time limit reached", "dead")
CONTROLLER = "controller"


def look_at_run(
    folder: RunFolder, measure: Callable[[Iterable[int]], Mapping[int, ProcessUse]] = look_at
) -> RunStatus | None:
    """What the run says, with what can be seen here; None if it has never said anything."""
    status = read_status(folder.status)
    if status is None:
        return None
    if status.state in ENDED:
        return status
    if folder.holder() is None:
        return msgspec.structs.replace(status, state="dead", workers=(), bottleneck=None)
    workers = [_controller(status), *status.workers]
    here = [one.pid for one in workers if one.pid is not None and one.node == socket.gethostname()]
    use = measure(here)
    seen = [
        _with_use(one, use[one.pid])
        if one.pid is not None and one.pid in use and one.node == socket.gethostname()
        else one
        for one in workers
    ]
    return msgspec.structs.replace(status, workers=tuple(_without_children(seen)))


def state_without_status(folder: RunFolder) -> str:
    """Of a run that has never said anything."""
    return "starting" if folder.holder() is not None else "never started"


def _controller(status: RunStatus) -> WorkerStatus:
    return WorkerStatus(
        name=CONTROLLER, state="working", pid=status.pid, node=status.node, started=status.started
    )


def _with_use(worker: WorkerStatus, use: ProcessUse) -> WorkerStatus:
    return msgspec.structs.replace(
        worker,
        cores=None if use.cores is None else round(use.cores, 3),
        memory=use.memory,
        gpu_memory=use.gpu_memory,
    )


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
