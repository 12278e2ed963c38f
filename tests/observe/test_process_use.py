"""Cores and memory of processes, with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ludus.observe.run_state import LOOK_S, GpuWatch, UseMeter, gpus, look_at

BUSY = "import sys\nprint('up', flush=True)\nwhile True: pass"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"


def test_what_children_use_counts_for_their_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            seen = look_at([busy.pid, 2**22 + 1])
        finally:
            os.killpg(busy.pid, signal.SIGKILL)
    assert seen.keys() == {busy.pid}, "who is not there is left out"
    cores = seen[busy.pid].cores
    assert cores is not None
    assert 0.05 < cores < 2.0
    own = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    assert 0 < seen[busy.pid].memory < own


def test_a_look_that_comes_too_soon_tells_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    meter, own = UseMeter(), os.getpid()
    assert meter.look([own], {})[own].cores is None
    assert meter.look([own], {own: 7})[own].gpu_memory == 7
    began = time.process_time()
    while time.process_time() - began < 0.1:  # what is used before a look that came too soon still counts
        pass
    now[0] += 0.6 * LOOK_S
    assert meter.look([own], {})[own].cores is None
    now[0] += 0.6 * LOOK_S
    cores = meter.look([own], {})[own].cores
    assert cores is not None
    assert cores >= 0.05
    assert meter.look([own], {})[own].cores is None, "the next window has only begun"


def test_nvidia_smi_is_asked_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, asked = tmp_path / "nvidia-smi", tmp_path / "asked"
    rows = "case $1 in *compute-apps*) echo '12, 3';; *) echo 'H200, 87, 1024, 143771';; esac"
    program.write_text(f"#!/bin/sh\necho $1 >> {asked}\n{rows}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    watch = GpuWatch()
    for _ in range(3):
        watch.look()
    assert len(asked.read_text().splitlines()) == 2, "once for the GPUs, once for the processes"
    assert [gpu.name for gpu in watch.gpus] == ["H200"]
    assert watch.memory == {12: 3 * 2**20}
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    watch.look()
    assert len(asked.read_text().splitlines()) == 4


def test_gpus_are_those_that_nvidia_smi_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'H200, 87, 1024, 143771'\necho 'odd, [N/A], [N/A], 10'\n")
    program.chmod(0o755)
    first, second = gpus()
    assert (first.name, first.utilisation, first.memory) == ("H200", 0.87, 2**30)
    assert second.utilisation == 0.0
