"""The program of a worker process: `python -m ludus.runtime LAUNCH`, started by a launcher only."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
import traceback
from multiprocessing.connection import Connection

from ludus.games.seat_rows import GameError
from ludus.models.policy import find_device, placed, use_threads
from ludus.models.tensors import staging_memory
from ludus.runtime.actor_process import ControlMatchClient, networks_of, run_actor
from ludus.runtime.assemble import inline_inference
from ludus.runtime.learner_process import LearnerProcess, run_follower
from ludus.runtime.networks import Networks
from ludus.runtime.shared_parts import BUFFER_TIMES, WAIT_S, WorkerContext
from ludus.store.files import StoreError
from ludus.store.model_pool import ModelPoolError, ModelsUnreachable
from ludus.system.process import PeerGone, send, settle_in
from ludus.workers.buffer_worker import BufferWorker
from ludus.workers.messages import Failed, Launch, read_launch
from ludus.workers.policy_worker import PolicyWorker
from ludus.workers.ranks import RankLost
from ludus.workers.worker import Diverged, StopTraining, wrap


def run_buffer_worker(launch: Launch) -> None:
    """The main loop: sleep until the learner asks, then do all of it."""
    context = WorkerContext(launch)
    experiment, parts = context.experiment, context.parts
    device = find_device(experiment.learner.device)
    assert parts.recomputing is not None

    networks = Networks(experiment, parts.roles.get, lambda policy: placed(policy, device))

    def wake() -> None:
        for learner in parts.learners:
            context.signals[learner].notify()

    worker = BufferWorker(
        parts.recomputing,
        parts.pools,
        parts.players,
        experiment.learner.recompute,
        build=networks.of_player,
        weights=parts.weights,
        device=device,
        wake=wake,
    )
    step = wrap(worker, experiment.middleware)
    recomputing, waiting = range(len(BUFFER_TIMES))
    while True:
        context.show_life()
        context.require_controller()
        began, done = time.monotonic(), worker.done
        try:
            step()
        except StopTraining as request:
            context.stop_training(request)
        is_idle = worker.done == done  # middleware may say what it likes
        if is_idle:
            context.woken.wait(WAIT_S)
        if not parts.paused[0]:
            parts.buffer_times[waiting if is_idle else recomputing] += time.monotonic() - began


DEVICE = "actor.inference_device"


def run_policy_worker(launch: Launch) -> None:
    """The main loop: wait until all actors have asked or the first has waited long enough, then answer."""
    context = WorkerContext(launch)
    experiment, parts = context.experiment, context.parts
    config = experiment.actor
    device = find_device(config.inference_device, DEVICE)

    client = ControlMatchClient(context.control, context.models)
    networks = networks_of(context, client, lambda policy: placed(policy, device, DEVICE))
    worker = PolicyWorker(
        inline_inference(experiment, parts.weights, client, networks, bots={}, sharing=launch.sharing),
        parts.requests,
        parts.networks.layouts,
        delay_s=config.inference_delay_ms / 1000,
        wake=lambda actor: context.signals[actor].notify(),
        counters=parts.inference_counters,
        new=staging_memory(device),
    )
    step = wrap(worker, experiment.middleware)
    while True:
        context.show_life()
        context.require_controller()
        patience = worker.patience(time.monotonic())
        if patience != 0.0:
            context.woken.wait(WAIT_S if patience is None else min(patience, WAIT_S))
            continue
        try:
            step()
        except StopTraining as request:
            context.stop_training(request)


LINGER_S = 10.0
"""A rank of the learner that has lost another one waits so long to be ended with all of them."""
INSTALLED = tuple(sysconfig.get_path(place) for place in ("stdlib", "purelib", "platlib"))


def run_worker(launch: Launch) -> None:
    settle_in(launch.parent)
    use_threads(1)
    try:
        if launch.role == "learner" and (launch.learns or launch.index == launch.num_places + 1):
            LearnerProcess(launch).run()
        elif launch.role == "learner":
            run_follower(launch)
        elif launch.role == "policy":
            run_policy_worker(launch)
        elif launch.role == "buffer":
            run_buffer_worker(launch)
        else:
            run_actor(launch)
    except PeerGone:
        raise SystemExit("the controller is gone") from None
    except Exception as error:
        # Into the log before the controller hears of it, and ends this process.
        traceback.print_exc()
        sys.stderr.flush()
        if isinstance(error, RankLost):  # no fault of ours: the controller sees whose it is, and ends us all
            time.sleep(LINGER_S)
        failed = Failed(f"{type(error).__name__}: {error}", kind=_whose(error, launch.role))
        send(Connection(os.dup(launch.control_fd)), failed)
        raise SystemExit(1) from None


def _whose(error: Exception, role: str) -> str:
    """Whose error it is: the disk's, or the user's game, or our own."""
    if isinstance(error, Diverged):
        return "diverged"
    if isinstance(error, ModelsUnreachable):
        return "models_unreachable"
    if role == "actor" and isinstance(error, ModelPoolError):
        return "damaged_model"
    if role == "learner" and isinstance(error, StoreError | OSError):
        return "disk"
    if role == "actor" and isinstance(error, GameError):
        return "env_crash"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        ours = module == __name__ or module.startswith("ludus.")
        users = not ours and not frame.f_code.co_filename.startswith(INSTALLED)
        if role == "actor" and (users or module.startswith("ludus.games.")):
            return "env_crash"
    return "worker_crash"


if __name__ == "__main__":
    run_worker(read_launch(sys.argv[1]))
