"""The program of a worker process: `python -m ludus.local LAUNCH`, started by `LocalTraining` only."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
import traceback
from multiprocessing.connection import Connection

from ludus.local.actor_process import run_actor
from ludus.local.buffer_process import run_buffer_worker
from ludus.local.follower_process import run_follower
from ludus.local.learner_process import LearnerProcess
from ludus.local.policy_process import run_policy_worker
from ludus.runtime.messages import Failed
from ludus.runtime.process import Launch, PeerGone, read_launch, send, settle_in
from ludus.store.files import StoreError
from ludus.store.model_pool import ModelPoolError
from ludus.workers.ranks import RankLost
from ludus.workers.threads import use_threads

LINGER_S = 10.0
"""A rank of the learner that has lost another one waits so long to be ended with all of them."""
INSTALLED = tuple(sysconfig.get_path(place) for place in ("stdlib", "purelib", "platlib"))


def run_worker(launch: Launch) -> None:
    settle_in(launch.parent)
    use_threads(1)
    try:
        if launch.role == "learner" and launch.index == launch.num_places + 1:
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
    if role == "actor" and isinstance(error, ModelPoolError):
        return "damaged_model"
    if role == "learner" and isinstance(error, StoreError | OSError):
        return "disk"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        ours = module == __name__ or module.startswith("ludus.")
        users = not ours and not frame.f_code.co_filename.startswith(INSTALLED)
        if role == "actor" and (users or module.startswith("ludus.games.")):
            return "env_crash"
    return "worker_crash"


if __name__ == "__main__":
    run_worker(read_launch(sys.argv[1]))
