"""Rounds: the loop that every training runs in, and the signals and reasons that end it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from ludus.workers.worker import Middleware, Progress, StopTraining, Worker, wrap

FINISHED = "finished"
INTERRUPTED = "interrupted"
TIME_LIMIT = "time limit reached"
STOPPED = "stopped by middleware"


def run_rounds(one_round: Callable[[], None], *, finished: Callable[[], bool], stopped: Callable[[], bool]) -> str:
    """Repeat `one_round` until `finished`, `stopped` or a `StopTraining`.

    Returns "finished", "interrupted", or the text of the `StopTraining`.
    """
    while not finished():
        if stopped():
            return INTERRUPTED
        try:
            one_round()
        except StopTraining as request:
            return str(request) or STOPPED
    return FINISHED


def step_in_turn(
    workers: Sequence[Worker], middleware: Sequence[Middleware], finished: Callable[[], bool]
) -> dict[str, Progress]:
    """Step each worker once; `finished` is asked before every step.

    A `StopTraining` ends the round between two steps. Order the workers so that those in front are idle until
    the last one has stepped: then a run that starts again with the first worker continues exactly.
    """
    done: dict[str, Progress] = {}
    for worker in workers:
        if finished():
            break
        done[worker.name] = wrap(worker, middleware)()
    return done


def run_serial(
    workers: Sequence[Worker],
    *,
    middleware: Sequence[Middleware] = (),
    finished: Callable[[], bool],
    after_round: Callable[[dict[str, Progress]], None],
) -> str:
    """Step the workers in turn, in this process, until `finished`, a `StopTraining` or a signal.

    A signal lets the round end first. Returns why it ended, as `run_rounds` does.
    """
    with stop_signals() as stopped:
        return run_rounds(
            lambda: after_round(step_in_turn(workers, middleware, finished)), finished=finished, stopped=stopped
        )


_received: list[int] = []


def received_signals() -> tuple[int, ...]:
    """The signals that the latest `stop_signals` has seen. They tell a Ctrl-C from the request of a command."""
    return tuple(_received)


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM ask for a clean end; a SIGINT after that ends at once. Further SIGTERMs do not:
    schedulers send several to be sure, and SIGKILL if they mean it."""
    _received.clear()
    seen: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        _received.append(number)
        if len(seen) > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: its owner must stop the training by middleware
        before = {}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
