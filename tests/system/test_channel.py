"""Signals and rings, within one process and between two."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from ludus.system.shared_memory import Ring, Signal


def test_a_signal_wakes_and_is_kept_until_somebody_waits() -> None:
    signal = Signal.create()
    assert not signal.wait(0)
    signal.notify()
    signal.notify()
    assert signal.wait(0)
    assert not signal.wait(0), "signals that nobody waited for are one"
    threading.Timer(0.05, signal.notify).start()
    before = time.monotonic()
    assert signal.wait(5)
    assert time.monotonic() - before < 4
    signal.close()


def test_a_signal_crosses_processes() -> None:
    signal = Signal.create()
    child = os.fork()
    if not child:
        signal.notify()
        os._exit(0)
    assert signal.wait(5)
    os.waitpid(child, 0)
    signal.close()


def test_a_ring_keeps_order_over_its_edge_and_refuses_too_much() -> None:
    ring = Ring(np.zeros, 5)
    rng = np.random.default_rng(0)
    expected: list[int] = []
    got: list[int] = []
    number = 0
    for _ in range(200):
        count = int(rng.integers(0, 6 - len(ring)))
        ring.put(np.arange(number, number + count))
        expected += range(number, number + count)
        number += count
        if rng.random() < 0.5:
            got += ring.take().tolist()
    got += ring.take().tolist()
    assert got == expected
    ring.put(np.arange(5))
    with pytest.raises(OverflowError, match="ring of 5"):
        ring.put(np.arange(1))
    ring.clear()
    assert len(ring) == 0
