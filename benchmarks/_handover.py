"""What it costs to hand a trajectory to another process and hear back: a slot number through a ring and a
signal, against the pipe and the queue of `multiprocessing`."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkProcess

import numpy as np

from ludus.system.shared_memory import Region, Ring, Signal

BYTES = 64 * 1024
"""Of one hand-over, about what sixteen decisions of a board game take."""
ROUNDS = 1000
WINDOWS = 3
_fork = multiprocessing.get_context("fork")

Exchange = Callable[[], None]


def handover_rates() -> list[tuple[str, str]]:
    """Wall time there and back, best and worst window."""
    return [
        ("slot number through ring and signal", _timed(*_through_ring())),
        ("array through `multiprocessing.Pipe`", _timed(*_through_pipe())),
        ("array through `multiprocessing.Queue`", _timed(*_through_queue())),
    ]


def _timed(exchange: Exchange, reader: ForkProcess) -> str:
    times = []
    exchange()
    for _ in range(WINDOWS):
        before = time.monotonic()
        for _ in range(ROUNDS):
            exchange()
        times.append((time.monotonic() - before) / ROUNDS * 1e6)
    reader.terminate()
    reader.join()
    return f"{min(times):.0f} us ({max(times):.0f})"


def _started(target: Callable[[], None]) -> ForkProcess:
    process = _fork.Process(target=target, daemon=True)
    process.start()
    return process


def _through_ring() -> tuple[Exchange, ForkProcess]:
    """The writer fills a slot that the reader sees too; only its number travels."""
    region = Region.create(2 * BYTES)
    slot = region.new((BYTES,), np.uint8)
    ready, free = Ring(region.new, 8), Ring(region.new, 8)
    to_reader, to_writer = Signal.create(), Signal.create()
    trajectory = np.ones(BYTES, np.uint8)
    number = np.array([0])

    def read() -> None:
        while True:
            to_reader.wait()
            free.put(ready.take())
            to_writer.notify()

    def exchange() -> None:
        slot[:] = trajectory
        ready.put(number)
        to_reader.notify()
        while not len(free.take()):
            to_writer.wait()

    return exchange, _started(read)


def _through_pipe() -> tuple[Exchange, ForkProcess]:
    ours, theirs = _fork.Pipe()
    trajectory = np.ones(BYTES, np.uint8)

    def read() -> None:
        while True:
            theirs.recv()
            theirs.send(0)

    def exchange() -> None:
        ours.send(trajectory)
        ours.recv()

    return exchange, _started(read)


def _through_queue() -> tuple[Exchange, ForkProcess]:
    ready, free = _fork.Queue(), _fork.Queue()
    trajectory = np.ones(BYTES, np.uint8)

    def exchange() -> None:
        ready.put(trajectory)
        free.get()

    return exchange, _started(partial(_answer, ready, free))


def _answer(ready: multiprocessing.Queue[object], free: multiprocessing.Queue[object]) -> None:
    while True:
        ready.get()
        free.put(0)
