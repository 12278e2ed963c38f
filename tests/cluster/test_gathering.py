from __future__ import annotations

import subprocess
import sys

import pytest
from ray_runs import needs_ray

from ludus.runtime.ray.loopback import LoopbackCluster

pytestmark = [pytest.mark.slow, pytest.mark.ci, needs_ray]

COUNT = "import sys; from ludus.runtime.ray.connection import gather; print(gather(sys.argv[1], 3, wait_s=0))"


def test_it_waits_for_all_nodes_but_not_for_ever() -> None:
    with LoopbackCluster(1) as nodes:
        program = [sys.executable, "-m", "ludus.runtime.ray.connection", nodes.address, "2"]
        with subprocess.Popen(program, env=nodes.environment, stdout=subprocess.PIPE, text=True) as waiting:
            nodes.add(1)
            said, _ = waiting.communicate()
        assert (waiting.returncode, said) == (0, "")

        program = [sys.executable, "-c", COUNT, nodes.address]
        done = subprocess.run(program, env=nodes.environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
