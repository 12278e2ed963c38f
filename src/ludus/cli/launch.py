"""`ludus launch slurm|kubernetes|hosts` writes and submits jobs; `ludus join` adds a machine to a cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click

from ludus.cli.main import FAILED, EndSignals
from ludus.cli.options import AT_LEAST_0, COUNT, SECONDS, code_trust_option, set_option
from ludus.config import ConfigError, as_config_error
from ludus.launch import ray_node
from ludus.launch.hosts import SshTraining, read_host_file
from ludus.launch.kubernetes import KubernetesJob, as_yaml
from ludus.launch.slurm import SlurmJob
from ludus.lookup import find_experiment, open_run, parse_settings
from ludus.store.run_folder import package_version
from ludus.system.machine import install_command, usable_cores
from ludus.system.network import TOKEN_VARIABLE, TokenError, read_token_file, require_strong, token_from, with_token

RAY_PINNED = "2.60.0"  # the Ray version of manifests written on a machine without Ray; the images install it

dry_run_option = click.option("--dry-run", is_flag=True, help="Only print it.")
trial_option = click.option("--trial", metavar="NAME", help="Name of this trial; the run folder is called after it.")
recipe_argument = click.argument("experiment", metavar="RECIPE|FILE.py:NAME|FILE.yaml")


@click.group("launch")
def launch_command() -> None:
    """Train on other machines. Each launcher checks the experiment first. A job that was preempted or died
    resumes its run when it starts again."""


@launch_command.command("slurm", short_help="write an sbatch script, and submit it with --submit")
@recipe_argument
@click.option("--run", type=click.Path(), help="Run folder on shared storage; default: runs/NAME or runs/NAME-TRIAL.")
@trial_option
@click.option("--name", help="Of the job; default: the experiment's.")
@click.option("--nodes", type=COUNT, default=1)
@click.option("--actors-per-node", type=COUNT, help="Actor processes of each node.")
@click.option("--gpus", "gpus_per_node", type=AT_LEAST_0, default=0, help="Of each node.")
@click.option("--time", help="As sbatch takes it, such as 1-12:00:00.")
@click.option("--partition")
@click.option("--account")
@click.option("--runtime", type=click.Choice(["local", "ray"]), help="Default: local on one node, else ray.")
@click.option("--setup", multiple=True, metavar="LINE", help="Shell before anything else; may be repeated.")
@click.option("--sbatch", "directives", multiple=True, metavar="OPTION", help="Such as --mem=64G; repeated.")
@set_option()
@click.option("--output", type=click.Path(), help="Where the script goes; default: RUN.sbatch.")
@dry_run_option
@click.option("--submit", is_flag=True, help="Send it with sbatch, and print the number of the job.")
@code_trust_option
def slurm(
    experiment: str,
    run: str | None,
    trial: str | None,
    name: str | None,
    nodes: int,
    runtime: str | None,
    settings: tuple[str, ...],
    output: str | None,
    dry_run: bool,
    submit: bool,
    **fields: Any,
) -> None:
    """Write an sbatch script: a run as processes of one node, or a Ray cluster over several.

    \b
    ludus launch slurm connect_four --time 4:00:00 --dry-run
    ludus launch slurm skirmish --nodes 4 --actors-per-node 32 --gpus 1 --submit
    """
    runtime = runtime or ("local" if nodes == 1 else "ray")
    if runtime == "local" and nodes > 1:
        raise ConfigError(f"--runtime local is one node, not {nodes}; leave it out, or --nodes 1")
    training = _training(experiment, run, trial, settings)
    job = SlurmJob(
        name=ray_node.job_name(name or Path(training.run).name),
        training=training,
        folder=os.getcwd(),
        programs=str(Path(sys.executable).parent),
        nodes=nodes,
        runtime=runtime,
        **fields,
    )
    if not dry_run:
        Path(training.run).parent.mkdir(parents=True, exist_ok=True)  # Slurm's log goes there
    file = output or ray_node.job_file(training.run, ".sbatch")
    _deliver(job.script(), file, "sbatch", "--parsable", dry_run=dry_run, submit=submit)


@launch_command.command("kubernetes", short_help="write manifests for KubeRay, and apply them with --submit")
@recipe_argument
@click.option("--name", help="Of the job and its run; default: the experiment's, with the trial's.")
@trial_option
@click.option(
    "--kind", type=click.Choice(["job", "cluster"]), default="job", help="A RayJob, or a RayCluster for work by hand."
)
@click.option("--namespace")
@click.option("--image", default="ludus:cpu", help="Of head and actors.")
@click.option("--learner-image", default="ludus:gpu", help="Of the learner.")
@click.option("--actor-nodes", type=AT_LEAST_0, default=2)
@click.option("--actors-per-node", type=COUNT, default=8, help="Actor processes, and processors, of each.")
@click.option("--gpus", type=AT_LEAST_0, default=1, help="Of the learner.")
@click.option("--memory", default="16Gi", help="Of each pod.")
@click.option("--claim", default="ludus-runs", help="A volume claim that all pods can write to; runs lie there.")
@click.option("--storage", help="Make that claim too, of this size, such as 100Gi.")
@click.option("--storage-class")
@set_option()
@click.option("--output", type=click.Path(), help="Where the manifests go; default: NAME.yaml.")
@dry_run_option
@click.option("--submit", is_flag=True, help="Send it with kubectl apply.")
@code_trust_option
def kubernetes(
    experiment: str,
    name: str | None,
    trial: str | None,
    settings: tuple[str, ...],
    output: str | None,
    dry_run: bool,
    submit: bool,
    **fields: Any,
) -> None:
    """Write manifests for KubeRay 1.6 or newer: a head, a group of actors and one learner.

    \b
    ludus launch kubernetes connect_four --storage 20Gi --dry-run
    ludus launch kubernetes skirmish --actor-nodes 10 --image registry/ludus:cpu
    """
    found = find_experiment(experiment, _with_trial(settings, trial))
    name = ray_node.job_name(name or found.run_name)
    job = KubernetesJob(
        name=name,
        training=ray_node.TrainingCommand(experiment=experiment, run=f"/runs/{name}", settings=settings, trial=trial),
        ray_version=package_version("ray") or RAY_PINNED,
        **fields,
    )
    with as_config_error():
        text = as_yaml(job.manifests())
    _deliver(text, output or f"{name}.yaml", "kubectl apply -f", dry_run=dry_run, submit=submit)


@launch_command.command("hosts", short_help="train on the hosts of a file, by ssh")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@recipe_argument
@click.option("--run", type=click.Path(), help="Run folder; default: runs/NAME or runs/NAME-TRIAL.")
@trial_option
@set_option()
@dry_run_option
@code_trust_option
def hosts(
    file: str, experiment: str, run: str | None, trial: str | None, settings: tuple[str, ...], dry_run: bool
) -> int:
    """Train on the hosts of FILE (YAML): the head here, `ludus join` there by ssh. All ends with it.

    \b
    head: 10.0.0.1                 # this machine, as the others see it
    hosts:
      - {address: 10.0.0.2, user: me, processes: 16}
      - {address: 10.0.0.3, port: 2222, role: learner, ludus: /opt/bin/ludus}
    """
    plan = read_host_file(file)
    training = _training(experiment, run, trial, settings)
    launch = SshTraining(plan, training, programs=str(Path(sys.executable).parent))
    if dry_run:
        for line in launch.commands():
            click.echo(line)
        return 0
    try:
        return launch.run(tell=lambda line: click.echo(line, err=True))
    except ray_node.NodeStartError as error:
        raise click.ClickException(str(error)) from error


def _training(
    experiment: str, run: str | None, trial: str | None, settings: tuple[str, ...]
) -> ray_node.TrainingCommand:
    """Check the experiment before a job for it waits in a queue."""
    given = _with_trial(settings, trial)
    found = find_experiment(experiment, given)
    place = Path(run or f"runs/{found.run_name}").absolute()
    if (place / "run.json").exists():
        from ludus.training import require_same_experiment  # with torch, which `ludus join` does not need

        require_same_experiment(open_run(place), experiment, given)
        click.echo(f"{place} is a run already: the job resumes it", err=True)
    return ray_node.TrainingCommand(experiment=experiment, run=str(place), settings=settings, trial=trial)


def _with_trial(settings: tuple[str, ...], trial: str | None) -> dict[str, str]:
    return {**parse_settings(settings), **({} if trial is None else {"trial": trial})}


def _deliver(text: str, output: str | Path, sender: str, *flags: str, dry_run: bool, submit: bool) -> None:
    """Print the job; or write it, and send it if the user wants that."""
    if dry_run:
        click.echo(text, nl=False)
        return
    file = Path(output)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    if not submit:
        click.echo(f"written to {file}; send it: {sender} {file}")
        return
    program, *words = sender.split()
    if shutil.which(program) is None:
        raise ConfigError(f"{program!r} is not on this machine; without --submit the file is only written")
    done = subprocess.run([program, *words, *flags, str(file)], capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{program} refuses: {(done.stderr or done.stdout).strip()}")
    click.echo(done.stdout.strip().partition(";")[0])  # sbatch --parsable prints NUMBER;CLUSTER


DEFAULT_PORT = 6379


@click.command("join")
@click.argument("head", metavar="HOST[:PORT]")
@click.option("--role", type=click.Choice(["actor", "learner"]), default="actor")
@click.option("--workers", type=AT_LEAST_0, help="Places for actors; default: one a core.")
@click.option("--token-file", type=click.Path(), help="The cluster's; -: the first line of the input, at "
              "whose end the node leaves. Default: LUDUS_TOKEN, or what Ray has.")  # fmt: skip
@click.option("--address", help="Of this machine, if not the one that leads to HOST.")
@click.option("--wait", "patience_s", type=SECONDS, default=60.0, help="Seconds that HOST may take to be there.")
def join_command(
    head: str, role: str, workers: int | None, token_file: str | None, address: str | None, patience_s: float
) -> int:
    """Offer this machine to the cluster whose head is HOST: places for actors, or for the learner too.

    \b
    ludus join 10.0.0.1 --workers 16 --token-file token
    ludus join 10.0.0.1:6379 --role learner --workers 4
    """
    head = _with_port(head)
    token = _token(token_file)
    if workers is None:
        workers = max(1, int(usable_cores()) - (role == "learner"))
    offered = ray_node.node_resources(workers, learner=role == "learner")
    if not offered:
        raise ConfigError("--workers 0 is for --role learner: an actor's node without actors does nothing")
    programs = Path(sys.executable).parent
    if not (programs / "ray").exists():
        raise ConfigError(f"Ray is not installed here; {install_command('ray')} adds it")
    signals = EndSignals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    leaving = signals.ended
    if token_file == "-":
        threading.Thread(target=_leave_at_end_of_input, args=(leaving,), daemon=True).start()
    try:
        ray_node.wait_for_head(head, patience_s, leaving.is_set)
        command_line = ray_node.join_command(str(programs), head, offered, address)
        node = ray_node.start_node(command_line, with_token(os.environ, token), leaving.is_set)
    except ray_node.NodeStartError as error:
        click.echo(f"error: {error}", err=True)
        return FAILED
    try:
        if not leaving.is_set():
            places = (
                f"{count} place{'s' * (count > 1)} for {name.partition('_')[2]}s" for name, count in offered.items()
            )
            click.echo(f"part of the cluster at {head}, with {' and '.join(places)}; Ctrl-C leaves")
        sys.stdout.flush()
        while not leaving.is_set() and not node.is_over:
            leaving.wait(0.5)
        if node.is_over:
            click.echo(f"the cluster at {head} has ended")
    finally:
        node.end()
    return signals.exit_code


def _with_port(head: str) -> str:
    host, colon, port = head.rpartition(":")
    if not colon:
        return f"{head}:{DEFAULT_PORT}"
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"{head!r} is not HOST or HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}")
    return head


def _token(file: str | None) -> str:
    ray_default = Path.home() / ".ray" / "auth_token"
    with as_config_error(TokenError):
        if file == "-":
            token = sys.stdin.readline().strip()
            token = token and require_strong(token, "the first line of the input")
        elif file is not None:
            token = read_token_file(file)
        else:
            token = token_from(os.environ) or (read_token_file(ray_default) if ray_default.exists() else "")
    if not token:
        raise ConfigError(f"no token: a cluster rejects nodes without it. Give --token-file, or set {TOKEN_VARIABLE}")
    return token


def _leave_at_end_of_input(leaving: threading.Event) -> None:
    while sys.stdin.read(4096):
        pass
    leaving.set()
