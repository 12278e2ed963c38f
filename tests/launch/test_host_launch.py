"""`ludus launch hosts` with a real Ray between two machines that are namespaces; only ssh is a stand-in: it
enters the other one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched_runs import PROGRAMS, check_ledger, wait_empty, without_tokens
from namespaces import Machine, machines, why_not

pytest.importorskip("ray", reason="pip install 'ludus[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

SSH = """#!/bin/bash
# ... -- ADDRESS COMMAND, as ssh takes them
while [ "$1" != -- ]; do shift; done
[ "$2" = {address} ] || {{ echo "no route to $2" >&2; exit 255; }}
exec {enter} bash -c "$3"
"""


def start(here: Machine, there: Machine, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(address=there.address, enter=" ".join(there.command())))
    ssh.chmod(0o755)
    (tmp_path / "hosts.yaml").write_text(
        f"head: {here.address}\nssh: [{ssh}]\nhosts:\n"
        f"  - {{address: {there.address}, processes: 1, ludus: {PROGRAMS}/ludus}}\n"
        "  - {address: 10.231.79.99, processes: 1}\n"
    )
    words = ("launch", "hosts", "hosts.yaml", "kuhn", "--run", str(tmp_path / "kuhn"))
    settings = ("--set", "budget=60000", "--set", "evaluation.opponents=")
    return subprocess.run(
        here.command(sys.executable, "-m", "ludus.cli.main", *words, *settings),
        env=without_tokens() | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


def test_a_training_on_hosts_ends_with_everything_that_it_started(tmp_path: Path) -> None:
    with machines(("head", "host"), net=79) as (here, there):
        done = start(here, there, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{there.address}: part of the cluster" in done.stderr
        assert "10.231.79.99: no route to 10.231.79.99" in done.stderr  # one that is not there is left out
        assert "finished after" in done.stdout
        wait_empty(here)
        wait_empty(there)
    check_ledger(tmp_path / "kuhn", starts=1)
