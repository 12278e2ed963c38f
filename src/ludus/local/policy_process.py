"""The policy worker as a process: answers the actors' requests, whenever it is time."""

from __future__ import annotations

import time

from ludus.assemble import build_policies
from ludus.local.actor_process import ControlDesk
from ludus.local.shared_parts import WAIT_S, open_parts
from ludus.models.policy import Policy
from ludus.models.tensors import staging_memory
from ludus.runtime.messages import Stopping, ToActor
from ludus.runtime.process import Launch, PeerGone, receive, send
from ludus.runtime.program import StopTraining, wrap
from ludus.runtime.serial import STOPPED
from ludus.workers.devices import find_device, placed
from ludus.workers.inline_inference import InlineInference
from ludus.workers.policy_worker import PolicyWorker
from ludus.workers.shelf import Shelf

DEVICE = "actor.inference_device"


def run_policy_worker(launch: Launch) -> None:
    """The main loop: wait until all who ask have asked or the first has waited long enough, then answer."""
    experiment, folder, parts, signals, control = open_parts(launch)
    config = experiment.actor
    device = find_device(config.inference_device, DEVICE)

    def build() -> tuple[Policy, ...]:
        return tuple(placed(policy, device, DEVICE) for policy in build_policies(experiment, experiment.seed))

    shelf = Shelf(
        build=build,
        board=parts.board,
        frozen=ControlDesk(control, folder.models),
        bots={},
        capacity=config.models_in_memory * launch.sharing,  # as many as the actors would keep
    )
    worker = PolicyWorker(
        InlineInference(shelf, [policy.num_draws for policy in parts.policies]),
        parts.requests,
        parts.policies,
        delay_s=config.inference_delay_ms / 1000,
        wake=lambda actor: signals[actor].notify(),
        counters=parts.inference_counters,
        new=staging_memory(device),
    )
    step = wrap(worker, experiment.middleware)
    asked = signals[launch.index]
    while True:
        parts.hearts[launch.index] = time.monotonic()
        if control.poll(0):
            raise PeerGone("nothing is said without being asked: the controller is gone")
        patience = worker.patience(time.monotonic())
        if patience != 0.0:
            asked.wait(WAIT_S if patience is None else min(patience, WAIT_S))
            continue
        try:
            step()
        except StopTraining as request:
            send(control, Stopping(str(request) or STOPPED))
            receive(control, ToActor)  # nothing but the end comes now
