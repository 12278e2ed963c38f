"""`ludus launch hosts` with a real Ray between two machines that are namespaces; only ssh is a stand-in: it
enters the other one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched_runs import PROGRAMS, check_ledger, wait_empty, wait_until, without_tokens
from namespaces import Machine, machines, why_not

pytest.importorskip("ray", reason="pip install -e '.[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

SSH = """#!/bin/bash
# ... -- ADDRESS COMMAND, as ssh takes them
while [ "$1" != -- ]; do shift; done
[ "$2" = {address} ] || {{ echo "no route to $2" >&2; exit 255; }}
exec {enter} bash -c "$3"
"""


PATIENCE_S = 900.0
"""On a machine with much else to do Ray alone takes minutes."""


def launch(here: Machine, there: Machine, tmp_path: Path) -> str:
    """All that it says until it has ended well."""
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
    log = tmp_path / "launch.log"
    with log.open("wb") as output:  # a file, which does not keep us waiting for whoever still holds it
        process = subprocess.Popen(
            here.command(sys.executable, "-m", "ludus.cli.main", *words, *settings),
            env=without_tokens() | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: process.poll() is not None, f"the end of {log}", PATIENCE_S)
        assert process.returncode == 0, log.read_text()
    finally:
        process.kill()  # with it all that it has started
        process.wait()
    return log.read_text()


def test_a_training_on_hosts_ends_with_everything_that_it_started(tmp_path: Path) -> None:
    with machines(("head", "host"), net=79) as (here, there):
        said = launch(here, there, tmp_path)
        assert f"{there.address}: part of the cluster" in said
        assert "10.231.79.99: no route to 10.231.79.99" in said  # one that is not there is left out
        assert "finished after" in said
        wait_empty(here)
        wait_empty(there)
    check_ledger(tmp_path / "kuhn", starts=1)
