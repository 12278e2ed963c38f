"""`ludus launch slurm|kubernetes|hosts`: writes the job for other machines, and sends it if asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import click

from ludus.cli.experiments import find_experiment
from ludus.config import ConfigError
from ludus.launch.hosts import HostLaunch, read_host_file
from ludus.launch.kubernetes import KubernetesJob, as_yaml
from ludus.launch.ray_node import NodeStartError
from ludus.launch.slurm import SlurmJob
from ludus.launch.training_command import TrainingCommand, beside, job_name

RAY_PINNED = "2.60.0"
"""What manifests name where Ray is not installed here; the images bring it."""

Command = TypeVar("Command", bound=Callable[..., Any])

set_option = click.option(
    "--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change a setting; may be repeated."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only print it.")
recipe_argument = click.argument("experiment", metavar="RECIPE|FILE.py:NAME|FILE.yaml")


@click.group("launch")
def command() -> None:
    """Train on other machines. Each launcher checks the experiment first; a job that is preempted or dies
    goes on with its run folder when it starts again."""


@command.command("slurm")
@recipe_argument
@click.option("--run", type=click.Path(), help="Run folder on shared storage; default: runs/NAME.")
@click.option("--name", help="Of the job; default: the experiment's.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--actors-per-node", type=click.IntRange(min=1), help="Actor processes of each node.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="Of each node.")
@click.option("--time", help="As sbatch takes it, such as 1-12:00:00.")
@click.option("--partition")
@click.option("--account")
@click.option("--runtime", type=click.Choice(["local", "ray"]), help="Default: local on one node, else ray.")
@click.option("--setup", multiple=True, metavar="LINE", help="Shell before anything else; may be repeated.")
@click.option("--sbatch", "directives", multiple=True, metavar="OPTION", help="Such as --mem=64G; repeated.")
@set_option
@click.option("--output", type=click.Path(), help="Where the script goes; default: RUN.sbatch.")
@dry_run_option
@click.option("--submit", is_flag=True, help="Send it with sbatch, and print the number of the job.")
def slurm(
    experiment: str,
    run: str | None,
    name: str | None,
    nodes: int,
    actors_per_node: int | None,
    gpus: int,
    time: str | None,
    partition: str | None,
    account: str | None,
    runtime: str | None,
    setup: tuple[str, ...],
    directives: tuple[str, ...],
    settings: tuple[str, ...],
    output: str | None,
    dry_run: bool,
    submit: bool,
) -> None:
    """Write an sbatch script: a run as processes of one node, or a Ray cluster over several.

    \b
    ludus launch slurm connect_four --time 4:00:00 --dry-run
    ludus launch slurm skirmish --nodes 4 --actors-per-node 32 --gpus 1 --time 1-00:00:00 --submit
    """
    runtime = runtime or ("local" if nodes == 1 else "ray")
    if runtime == "local" and nodes > 1:
        raise ConfigError(f"--runtime local is one node, not {nodes}; leave it out, or --nodes 1")
    training = _training(experiment, run, settings)
    job = SlurmJob(
        name=job_name(name or Path(training.run).name),
        training=training,
        folder=os.getcwd(),
        programs=str(Path(sys.executable).parent),
        nodes=nodes,
        runtime=runtime,
        actors_per_node=actors_per_node,
        gpus_per_node=gpus,
        time=time,
        partition=partition,
        account=account,
        setup=setup,
        directives=directives,
    )
    if dry_run:
        click.echo(job.script(), nl=False)
        return
    Path(training.run).parent.mkdir(parents=True, exist_ok=True)  # Slurm's log goes there
    file = _write(output or beside(training.run, ".sbatch"), job.script())
    if not submit:
        click.echo(f"written to {file}; send it: sbatch {file}")
        return
    click.echo(_send(["sbatch", "--parsable", str(file)]).partition(";")[0])


@command.command("kubernetes")
@recipe_argument
@click.option("--name", help="Of the job and its run; default: the experiment's.")
@click.option("--kind", type=click.Choice(["job", "cluster"]), default="job", show_default=True,
              help="job: a RayJob that trains. cluster: a RayCluster to train on by hand.")  # fmt: skip
@click.option("--namespace")
@click.option("--image", default="ludus:cpu", show_default=True, help="Of head and actors.")
@click.option("--learner-image", default="ludus:gpu", show_default=True, help="Of the learner.")
@click.option("--actor-nodes", type=click.IntRange(min=0), default=2, show_default=True)
@click.option("--actors-per-node", type=click.IntRange(min=1), default=8, show_default=True,
              help="Actor processes, and processors, of each.")  # fmt: skip
@click.option("--gpus", type=click.IntRange(min=0), default=1, show_default=True, help="Of the learner.")
@click.option("--memory", default="16Gi", show_default=True, help="Of each pod.")
@click.option("--claim", default="ludus-runs", show_default=True,
              help="A volume claim that all pods can write to; runs lie there.")  # fmt: skip
@click.option("--storage", help="Make that claim too, of this size, such as 100Gi.")
@click.option("--storage-class")
@set_option
@click.option("--output", type=click.Path(), help="Where the manifests go; default: NAME.yaml.")
@dry_run_option
@click.option("--submit", is_flag=True, help="Send it with kubectl apply.")
def kubernetes(
    experiment: str,
    name: str | None,
    kind: str,
    namespace: str | None,
    image: str,
    learner_image: str,
    actor_nodes: int,
    actors_per_node: int,
    gpus: int,
    memory: str,
    claim: str,
    storage: str | None,
    storage_class: str | None,
    settings: tuple[str, ...],
    output: str | None,
    dry_run: bool,
    submit: bool,
) -> None:
    """Write manifests for KubeRay 1.6 or newer: a head, a group of actors and one learner.

    \b
    ludus launch kubernetes connect_four --storage 20Gi --dry-run
    ludus launch kubernetes skirmish --actor-nodes 10 --image registry/ludus:cpu --submit
    """
    found = find_experiment(experiment, settings)
    name = job_name(name or found.name)
    job = KubernetesJob(
        name=name,
        training=TrainingCommand(experiment=experiment, run=f"/runs/{name}", settings=settings),
        kind=kind,
        namespace=namespace,
        ray_version=_ray_version(),
        image=image,
        learner_image=learner_image,
        actor_nodes=actor_nodes,
        actors_per_node=actors_per_node,
        gpus=gpus,
        memory=memory,
        claim=claim,
        storage=storage,
        storage_class=storage_class,
    )
    try:
        text = as_yaml(job.manifests())
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if dry_run:
        click.echo(text, nl=False)
        return
    file = _write(output or f"{name}.yaml", text)
    if not submit:
        click.echo(f"written to {file}; send it: kubectl apply -f {file}")
        return
    click.echo(_send(["kubectl", "apply", "-f", str(file)]))


@command.command("hosts")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@recipe_argument
@click.option("--run", type=click.Path(), help="Run folder; default: runs/NAME.")
@set_option
@dry_run_option
def hosts(file: str, experiment: str, run: str | None, settings: tuple[str, ...], dry_run: bool) -> int:
    """Train on the hosts of FILE (YAML): the head here, `ludus join` there by ssh. All ends with it.

    \b
    head: 10.0.0.1                 # this machine, as the others see it
    hosts:
      - {address: 10.0.0.2, user: me, processes: 16}
      - {address: 10.0.0.3, port: 2222, role: learner, processes: 4, ludus: /opt/ludus/bin/ludus}
    """
    plan = read_host_file(file)
    training = _training(experiment, run, settings)
    launch = HostLaunch(plan, training, programs=str(Path(sys.executable).parent))
    if dry_run:
        for line in launch.commands():
            click.echo(line)
        return 0
    try:
        return launch.run(tell=lambda line: click.echo(line, err=True))
    except NodeStartError as error:
        raise click.ClickException(str(error)) from error


def _training(experiment: str, run: str | None, settings: tuple[str, ...]) -> TrainingCommand:
    """Refuses what could not be trained, before anything waits in a queue for it."""
    found = find_experiment(experiment, settings)
    place = Path(run or f"runs/{found.name}").absolute()
    if (place / "run.json").exists():
        click.echo(f"{place} is a run already: the job goes on with it, as it is", err=True)
    return TrainingCommand(experiment=experiment, run=str(place), settings=settings)


def _write(path: str | Path, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def _send(words: list[str]) -> str:
    if shutil.which(words[0]) is None:
        raise ConfigError(f"{words[0]!r} is not on this machine; without --submit the file is only written")
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{words[0]} refuses: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


def _ray_version() -> str:
    try:
        return version("ray")
    except PackageNotFoundError:
        return RAY_PINNED
