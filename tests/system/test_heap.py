from __future__ import annotations

import subprocess
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


_HOLES = """
from pathlib import Path
import sys
import numpy as np
from ludus.system.shared_memory import Heap
own = Heap(changing_sizes=sys.argv[1] == "changing")
if own._trim is None:
    raise SystemExit(77)
np.ones(30 * 2**20, np.uint8)  # once it is freed, glibc takes arrays up to this size from the heap
kept = []
for size in range(5, 13):
    arrays = [np.ones(size * 2**20, np.uint8) for _ in range(24)]
    kept.append(np.ones(100_000, np.uint8))  # stays behind them
    del arrays
print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel and glibc")
def test_large_arrays_of_changing_sizes_leave_nothing_behind() -> None:
    def left(kind: str) -> int:
        done = subprocess.run([sys.executable, "-c", _HOLES, kind], capture_output=True, check=False)
        if done.returncode == 77:
            pytest.skip("the C library has no malloc_trim")
        return int(done.stdout)

    assert left("changing") < left("fixed") - 50 * MIB
