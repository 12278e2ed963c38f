"""The serial runtime: every worker in one process, one step after the other. Deterministic, and a debugger
can step through it."""

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


def run_serial(
    workers: Sequence[Worker],
    *,
    middleware: Sequence[Middleware] = (),
    finished: Callable[[], bool],
    after_round: Callable[[dict[str, Progress]], None],
) -> str:
    """Step the workers in turn until `finished` (asked before every step), a `StopTraining` or a signal.

    Returns why it ended: "finished", "interrupted", or the text of the `StopTraining`. A signal lets the
    round end first. A `StopTraining` ends it at once, but still between two steps: order the workers so
    that those in front are idle until the last one has stepped, and going on from the first is exact.
    `after_round` may put other workers into the list.
    """
    with stop_signals() as stopped:
        while not finished():
            if stopped():
                return INTERRUPTED
            done: dict[str, Progress] = {}
            try:
                for worker in tuple(workers):
                    if finished():
                        break
                    done[worker.name] = wrap(worker, middleware)()
                after_round(done)
            except StopTraining as request:
                return str(request) or STOPPED
    return FINISHED


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM ask for an end in good order; a SIGINT after that ends at once. SIGTERM does not,
    however often it comes: schedulers send it several times to be sure, and SIGKILL if they mean it."""
    seen: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever started it must stop it by middleware
        before = {}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
