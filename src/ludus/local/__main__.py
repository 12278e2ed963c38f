"""The program of a worker process: `python -m ludus.local LAUNCH`, started by `LocalTraining` only."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection

import msgspec

from ludus.local.actor_process import run_actor
from ludus.local.learner_process import LearnerProcess
from ludus.runtime.messages import Failed
from ludus.runtime.process import Launch, send, settle_in
from ludus.workers.threads import use_threads


def run_worker(launch: Launch) -> None:
    settle_in(launch.parent)
    use_threads(1)
    try:
        if launch.role == "learner":
            LearnerProcess(launch).run()
        else:
            run_actor(launch)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise SystemExit("the controller is gone") from None
    except Exception as error:
        send(Connection(os.dup(launch.control_fd)), Failed(f"{type(error).__name__}: {error}"))
        raise


if __name__ == "__main__":
    run_worker(msgspec.json.decode(sys.argv[1], type=Launch))
