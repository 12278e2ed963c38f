"""A run on a cluster: the local runtime's controller, with workers on the nodes."""

from __future__ import annotations

from ludus.cluster.launcher import ClusterLauncher
from ludus.cluster.nodes import Taken
from ludus.experiment import Experiment
from ludus.live.status import Beside, nobody
from ludus.local.crew import default_places
from ludus.local.training import STEPS_PER_SHARE, LocalTraining
from ludus.store.run_folder import RunFolder


def train_on_cluster(
    experiment: Experiment,
    folder: RunFolder,
    *,
    num_actors: int | None,
    taken: Taken = dict,
    beside: Beside = nobody,
) -> LocalTraining:
    """`num_actors`: at most so many; None: as many as the nodes have places for, those included that join
    later. `taken`: what services have of the nodes; `beside`: how they are."""
    launcher = ClusterLauncher(experiment, folder, taken)
    places = experiment.cluster.most_actors or default_places(max(launcher.room, num_actors or 0))
    worth = experiment.learner.batch_size // (STEPS_PER_SHARE * experiment.actor.num_tables)
    wanted = num_actors or max(1, min(places, worth))
    try:
        return LocalTraining(experiment, folder, wanted, num_places=places, launcher=launcher, beside=beside)
    except BaseException:
        launcher.close()
        raise
