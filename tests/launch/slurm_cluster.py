"""A real Slurm on this host: a controller and two nodes, each in namespaces of its own, which nobody reaches
from outside. It keeps everything in one folder, and ends with the `with` block."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import namespaces
from namespaces import Machine, machines

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "srun")
NODES = ("n1", "n2")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
PATIENCE_S = 400.0

CONFIG = """\
ClusterName=ludus
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=120
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=2
"""


def why_not() -> str | None:
    """What is missing for a Slurm of our own."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"no {', '.join(missing)}; apt install slurm-wlm munge"
    return namespaces.why_not()


class Slurm:
    """Commands of a Slurm that runs, called at its controller."""

    def __init__(self, folder: Path, controller: Machine) -> None:
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
        self._controller = controller

    def call(self, *words: str) -> str:
        done = subprocess.run(self._controller.command(*words), env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def facts(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says of it."""
        said = self.call("scontrol", "--oneliner", "show", "job", job)
        return {name: value for name, _, value in (word.partition("=") for word in said.split())}

    def preempt(self) -> str:
        """A short job for all nodes that goes before all others: those on them are preempted."""
        words = ("--partition=urgent", f"--nodes={len(NODES)}", "--exclusive", "--output=/dev/null")
        return self.call("sbatch", "--parsable", *words, "--wrap=true")

    def wait_state(self, job: str, state: str, log: Path | None = None) -> dict[str, str]:
        self.wait_until(lambda: self.facts(job)["JobState"] == state, state, job, log)
        return self.facts(job)

    def wait_until(self, true: Callable[[], bool], what: str, job: str, log: Path | None = None) -> None:
        """Fails with what the job has written, if it takes too long or the job has ended otherwise."""
        until = time.monotonic() + PATIENCE_S
        while not true():
            now = self.facts(job)["JobState"]
            if time.monotonic() > until or (now in ENDED and not true()):
                said = log.read_text() if log is not None and log.exists() else "(nothing)"
                raise AssertionError(f"no {what}: job {job} is {now}, and says\n{said}")
            time.sleep(0.3)


@contextmanager
def slurm() -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="ludus-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    started: list[subprocess.Popen[bytes]] = []
    with machines(("controller", *NODES), net=78) as (controller, *nodes):
        try:
            for name in ("state", *(f"spool-{node}" for node in NODES)):
                (folder / name).mkdir()
            _start_munge(folder, started)
            lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs=2" for node in nodes]
            text = CONFIG.format(
                host=socket.gethostname(), address=controller.address, folder=folder, nodes="\n".join(lines)
            )
            (folder / "slurm.conf").write_text(text)
            found = Slurm(folder, controller)
            _start(controller.command("slurmctld", "-D"), found, folder, started)
            for node in nodes:
                _start(node.apart("slurmd", "-D", "-N", node.name), found, folder, started)
            until = time.monotonic() + 60
            while found.call("sinfo", "--noheader", "--format=%D %t") != "2 idle":
                assert time.monotonic() < until, (folder / "slurmctld.log").read_text()
                time.sleep(0.3)
            yield found
            found.call("scancel", "--user=root", "--full")
        finally:
            for process in reversed(started):
                process.kill()  # a namespace ends with its first process
                process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _start_munge(folder: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """As a user of its own, who owns its key."""
    user = pwd.getpwnam("munge")
    own = folder / "munge"
    own.mkdir(mode=0o755)
    (own / "key").write_bytes(os.urandom(1024))
    (own / "key").chmod(0o600)
    for path in (own, own / "key"):
        os.chown(path, user.pw_uid, user.pw_gid)
    words = ["munged", "--foreground", f"--key-file={own}/key", f"--socket={own}/socket"]
    words += [f"--{name}-file={own}/{name}" for name in ("pid", "log", "seed")]
    environment = {**os.environ, "PATH": _path()}
    started.append(
        subprocess.Popen(words, env=environment, user=user.pw_uid, group=user.pw_gid, stderr=subprocess.DEVNULL)
    )
    until = time.monotonic() + 20
    while not (own / "socket").exists():
        assert time.monotonic() < until, "munged does not start"
        time.sleep(0.1)
    (folder / "munge.socket").symlink_to(own / "socket")


def _start(words: Sequence[str], found: Slurm, folder: Path, started: list[subprocess.Popen[bytes]]) -> None:
    with (folder / "daemons.out").open("ab") as output:
        started.append(subprocess.Popen(words, env=found.environment, stdout=output, stderr=output, cwd=folder))


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
