from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ludus.system import shared_memory as heap
from ludus.system.shared_memory import Heap

MIB = 2**20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel and glibc")
def test_gaps_in_the_heap_go_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Heap()
    if own._trim is None:
        pytest.skip("the C library has no malloc_trim")
    large, small = [], []
    for _ in range(2_000):  # too small to be asked of the system one by one, and each before one that stays
        large.append(np.ones(100_000, np.uint8))
        small.append(np.ones(5_000, np.uint8))
    full = resident()
    large.clear()
    own.settle()
    assert resident() > full - 50 * MIB  # not so soon
    monkeypatch.setattr(heap, "EVERY_S", 0.0)
    own.settle()
    assert resident() < full - 100 * MIB
    assert len(small) == 2_000
