"""The buffer worker as a process: recomputes what the learner asks for, whenever there is something."""

from __future__ import annotations

import time

from ludus.assemble import build_policies
from ludus.local.shared_parts import BUFFER_TIMES, WAIT_S, open_parts
from ludus.models.policy import Policy
from ludus.runtime.messages import Stopping, ToActor
from ludus.runtime.process import Launch, PeerGone, receive, send
from ludus.runtime.program import StopTraining, wrap
from ludus.runtime.serial import STOPPED
from ludus.workers.buffer_worker import BufferWorker
from ludus.workers.devices import find_device, placed


def run_buffer_worker(launch: Launch) -> None:
    """The main loop: sleep until the learner asks, then do all of it."""
    experiment, _, parts, signals, control = open_parts(launch)
    device = find_device(experiment.learner.device)
    assert parts.recomputing is not None

    def build() -> tuple[Policy, ...]:
        return tuple(placed(policy, device) for policy in build_policies(experiment, experiment.seed))

    def wake() -> None:
        for learner in parts.learners:
            signals[learner].notify()

    worker = BufferWorker(
        parts.recomputing,
        parts.pools,
        parts.players,
        experiment.learner.recompute,
        build=build,
        board=parts.board,
        device=device,
        wake=wake,
    )
    step = wrap(worker, experiment.middleware)
    asked = signals[launch.index]
    recomputing, waiting = range(len(BUFFER_TIMES))
    while True:
        began = parts.hearts[launch.index] = time.monotonic()
        if control.poll(0):
            raise PeerGone("nothing is said without being asked: the controller is gone")
        done = worker.done
        try:
            step()
        except StopTraining as request:
            send(control, Stopping(str(request) or STOPPED))
            receive(control, ToActor)  # nothing but the end comes now
        is_idle = worker.done == done  # middleware may say what it likes
        if is_idle:
            asked.wait(WAIT_S)
        if not parts.paused[0]:
            parts.buffer_times[waiting if is_idle else recomputing] += time.monotonic() - began
