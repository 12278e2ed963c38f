"""Cores and memory of processes, with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.observe.process_use import gpus, look_at

BUSY = "import sys\nprint('up', flush=True)\nwhile True: pass"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"


def test_what_children_use_counts_for_their_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True
    ) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            seen = look_at([busy.pid, 2**22 + 1], for_s=0.3)
        finally:
            os.killpg(busy.pid, signal.SIGKILL)
    assert seen.keys() == {busy.pid}, "who is not there is left out"
    assert 0.05 < seen[busy.pid].cores < 2.0
    own = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    assert 0 < seen[busy.pid].memory < own


def test_gpus_are_those_that_nvidia_smi_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'H200, 87, 1024, 143771'\necho 'odd, [N/A], [N/A], 10'\n")
    program.chmod(0o755)
    first, second = gpus()
    assert (first.name, first.utilisation, first.memory) == ("H200", 0.87, 2**30)
    assert second.utilisation == 0.0
