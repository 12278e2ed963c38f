"""An sbatch script that trains: with processes on one node, with a Ray cluster of the job's own on several. The job can
be preempted and requeued at any time, and continues from the run folder."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace

from ludus.launch.ray_node import TrainingCommand, job_file, node_resources

WARNING_S = 120
"""Seconds before the time limit at which the script is told, so that the run can save."""
HEAD_SILENT_S = 600
"""Seconds without an answer of the head after which another node leaves: the process that should tell it to may have
been killed, or the disk may be full. Longer than a slow start takes."""


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """One job. Paths in it are absolute and on storage that all its nodes see."""

    name: str
    training: TrainingCommand
    folder: str
    """Working directory of the job."""
    programs: str
    """The folder with `ludus` and `ray`."""
    nodes: int = 1
    runtime: str = "local"
    actors_per_node: int | None = None
    """None: Ray's count of cores decides, or `ludus train` on one node."""
    gpus_per_node: int = 0
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    setup: tuple[str, ...] = ()
    """Lines of shell before anything else, such as `module load cuda`."""
    directives: tuple[str, ...] = ()
    """Further options of sbatch, such as `--mem=64G`."""

    def script(self) -> str:
        parts = [self._header(), self._environment()]
        if self.runtime == "ray":
            parts.append(_TOKEN)
        parts += [_SIGNALS.format(), self._step(), _END]
        return "\n".join(parts)

    def _header(self) -> str:
        options = {
            "job-name": self.name,
            "nodes": self.nodes,
            "ntasks-per-node": 1,
            "chdir": self.folder,
            "output": f"{self.training.run}.slurm-%j.log",
            "open-mode": "append",
            "signal": f"B:USR1@{WARNING_S}",
            "gpus-per-node": self.gpus_per_node or None,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
        }
        # Ray refuses to share a node with another Ray, and ends with a stop that spares none of them.
        flags = ["--requeue", "--exclusive", *self.directives]
        given = [f"--{name}={shlex.quote(str(value))}" for name, value in options.items() if value is not None]
        lines = [f"#SBATCH {option}" for option in (*given, *flags)]
        return "\n".join(["#!/bin/bash", *lines, ""])

    def _environment(self) -> str:
        words = {
            "run": self.training.run,
            "token": str(job_file(self.training.run, ".token")),
            "programs": self.programs,
        }
        lines = [f"{name}={shlex.quote(value)}" for name, value in words.items()]
        return "\n".join([*self.setup, *lines, 'export PATH="$programs:$PATH"', ""])

    def _step(self) -> str:
        if self.runtime != "ray":
            actors = () if self.actors_per_node is None else (f"actors={self.actors_per_node}",)
            training = replace(self.training, settings=(*actors, *self.training.settings))
            return _LOCAL_STEP.format(train=shlex.join(training.words(runtime=self.runtime)))
        train = self.training.words(runtime="ray")
        first, others = (
            # Where nobody says what a node is for, its cores decide.
            json.dumps({} if self.actors_per_node is None else node_resources(self.actors_per_node, learner=learner))
            for learner in (True, False)
        )
        return _RAY_STEP.format(
            nodes=self.nodes,
            head_silent_s=HEAD_SILENT_S,
            first=shlex.quote(first),
            others=shlex.quote(others),
            train=shlex.join(train),
        )


_TOKEN = """\
# Without the token nobody can join or command the cluster of this job.
[ -s "$token" ] || (umask 077 && head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \\n' > "$token")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$token"
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 RAY_USAGE_STATS_ENABLED=0
"""

_SIGNALS = """\
# USR1: the time is nearly over, so the run saves and this job queues up again. TERM: somebody cancels or
# preempts the job; Slurm knows which, and requeues it or not. It may have told the run already.
asked=nothing
trap 'asked=time; (ludus stop "$run" &)' USR1
trap 'asked=end; (ludus stop "$run" > /dev/null 2>&1 &)' TERM
wait_for() {{  # a signal ends a wait, not what is waited for
  while kill -0 "$1" 2> /dev/null; do wait "$1"; done
  wait "$1"
}}
"""

_LOCAL_STEP = """\
srun --cpu-bind=none {train} &
wait_for $!
code=$?
"""

_RAY_STEP = """\
# The first node is the head, and this script runs there; a name may lead to loopback, where others cannot.
name=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
head=$(getent ahostsv4 "$name" | awk '$1 !~ /^127/ {{print $1; exit}}')
export address="${{head:-$(hostname -I | cut -d ' ' -f 1)}}:$((20000 + SLURM_JOB_ID % 10000))"
train() {{
  python3 -m ludus.runtime.ray.connection "$address" {nodes} && touch "$mark.began" &&
    exec "$@" --address "$address"
}}
be_first() {{  # PLACES COMMAND...
  # TERM is for the training, which saves; symmetric-run must live to end what it started. That is why it
  # does not wait for the other nodes: it would enter the cluster, and then Ray takes the signal.
  trap "" TERM
  ray symmetric-run --address "$address" --include-dashboard=false --resources "$1" -- \\
    bash -c 'train "$@"' train "${{@:2}}"
  code=$?
  touch "$mark.over"
  exit $code
}}
join() {{  # PLACES; again and again: Ray may be too slow, or die
  while sleep 1; do ray symmetric-run --address "$address" --resources "$1" -- true; done
}}
head_answers() {{
  timeout 5 bash -c ': < "/dev/tcp/${{address%:*}}/${{address##*:}}"' 2> /dev/null
}}
be_another() {{  # PLACES
  trap : TERM  # it ends the node; this shell stays until all is saved
  setsid bash -c 'join "$1"' join "$1" &
  disown
  joining=$! heard=$SECONDS
  until [ -e "$mark.over" ]; do  # Ray itself misses its head after a minute, with many words
    if head_answers; then heard=$SECONDS; fi
    if [ $((SECONDS - heard)) -ge {head_silent_s} ]; then
      echo "$(hostname) leaves: no answer from $address for {head_silent_s} s" >&2
      break
    fi
    sleep 2
  done
  kill -KILL -- -$joining 2> /dev/null
  ray stop --force > /dev/null 2>&1
  exit 0
}}
be_node() {{  # PLACES OF THE FIRST, OF OTHERS, COMMAND...
  ray stop --force > /dev/null 2>&1  # what an earlier start has left: the node is ours alone
  if [ "$SLURM_NODEID" = 0 ]; then be_first "$1" "${{@:3}}"; else be_another "$2"; fi
}}
export -f train join be_first head_answers be_another be_node
# symmetric-run ends with 0 if Ray does not start, as on a node with too much to do: then nothing has begun.
for try in 1 2 3; do
  export mark="$run.job-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}-$try"
  srun --cpu-bind=none bash -c 'be_node "$@"' node {first} {others} \\
    {train} &
  wait_for $!
  code=$?
  if [ -e "$mark.began" ] || [ $asked != nothing ]; then break; fi
  code=1
done
rm -f "$run.job-$SLURM_JOB_ID-"*
"""

_END = """\
if [ $asked = time ] && [ "$code" -ne 0 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
