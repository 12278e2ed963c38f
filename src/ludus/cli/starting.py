"""Starts a training in the runtime of its experiment, for the commands that train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec

from ludus.assemble import Training
from ludus.config import ConfigError
from ludus.experiment import Experiment
from ludus.live.status import Beside
from ludus.local.run_services import listening_host, require_resources, run_services, workers_of
from ludus.local.training import LocalTraining, default_actors
from ludus.serial_training import SerialTraining
from ludus.store.run_folder import RunFolder


def require_cluster_for(address: str | None, runtime: str) -> None:
    """An address is that of a Ray cluster: refuse it where there is none."""
    if address is not None and runtime != "ray":
        raise ConfigError(f"--address {address} is for --runtime ray; this run has {runtime}")


def require_ray_for(runtime: str) -> None:
    """For commands that take over the runtime of a run, which may have been trained elsewhere."""
    if runtime == "ray" and find_spec("ray") is None:
        raise ConfigError(
            "this would train on Ray, but Ray is not installed: take --runtime local, "
            "or pip install 'ludus[ray]'"
        )


def require_room(experiment: Experiment, address: str | None) -> None:
    """Refuse services that ask for more than this machine has, unless a cluster is to have it."""
    if experiment.runtime != "ray" or address is None:
        require_resources(experiment)


@contextmanager
def training_of(
    experiment: Experiment, folder: RunFolder, *, num_actors: int | None, address: str | None
) -> Iterator[Training]:
    """A training with its services, until the end of the block: they start before it and end after it.
    `num_actors`: that somebody has asked for; `address`: of a Ray cluster, None for a private one."""
    with ExitStack() as stack:
        if experiment.runtime == "ray":
            training = stack.enter_context(_on_cluster(experiment, folder, num_actors, address))
        else:
            host = stack.enter_context(run_services(experiment, folder))
            training = _here(experiment, folder, num_actors, lambda: workers_of(host))
        with closing(training):
            yield training


def _here(experiment: Experiment, folder: RunFolder, num_actors: int | None, beside: Beside) -> Training:
    if experiment.runtime == "serial":
        return SerialTraining(experiment, folder, beside=beside)
    return LocalTraining(experiment, folder, num_actors or default_actors(experiment), beside=beside)


@contextmanager
def _on_cluster(
    experiment: Experiment, folder: RunFolder, num_actors: int | None, address: str | None
) -> Iterator[Training]:
    from ludus.cluster.connection import join  # Ray is imported once its environment is set

    with ExitStack() as stack:
        stack.callback(join(address, num_actors, experiment.services))
        from ludus.cluster.posts import Posts
        from ludus.cluster.training import train_on_cluster

        cluster = experiment.cluster
        posts = Posts(folder, silent_after_s=cluster.silent_after_s, shared_folder=cluster.shared_folder)
        listening = listening_host(experiment, address)
        host = stack.enter_context(run_services(experiment, folder, listening, posts))
        yield train_on_cluster(
            experiment,
            folder,
            num_actors=num_actors,
            taken=posts.taken,
            beside=lambda: workers_of(host),
        )
