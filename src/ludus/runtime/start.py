"""Starts a training in the runtime of its experiment, for the commands that train."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec

from ludus.config import ConfigError
from ludus.data.records import AnyEdit, LearnerProgress, ModelId, PlayerReset, Settings
from ludus.data.search import split_search, with_search
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.league.players import check_player_id
from ludus.runtime.assemble import (
    CHECKPOINT,
    edit_context,
    load_experiment,
    load_trained,
    new_controller,
    new_league,
    num_learners,
)
from ludus.runtime.coordinator import Training
from ludus.runtime.device import device_training
from ludus.runtime.edits import REFUSALS, Editor
from ludus.runtime.imported_models import (
    Fit,
    ModelRequest,
    Source,
    best_fit,
    fetch_source,
    fit_weights,
    has_same_networks,
    publish_new,
    require_fit,
    require_same_networks,
)
from ludus.runtime.networks import with_each_model
from ludus.runtime.processes import default_actors, local_training
from ludus.runtime.serial import serial_training
from ludus.runtime.services import listening_host, require_resources, run_services, with_model_service, workers_of
from ludus.runtime.settings import effective
from ludus.store.downloads import DownloadError
from ludus.store.files import StoreError
from ludus.store.model_pool import ModelPool
from ludus.store.run_control import EditAnswer
from ludus.store.run_folder import RunFolder
from ludus.system.machine import install_command
from ludus.workers.learner import put_into_pool
from ludus.workers.trained_player import TrainedPlayer


def require_cluster_for(address: str | None, runtime: str) -> None:
    """An address is that of a Ray cluster: refuse it where there is none."""
    if address is not None and runtime != "ray":
        raise ConfigError(f"--address {address} is for --runtime ray; this run has {runtime}")


def require_ray_for(runtime: str) -> None:
    """Refuse to train on Ray where it is not installed, before anything is written."""
    if runtime == "ray" and find_spec("ray") is None:
        raise ConfigError(
            f"this would train on Ray, but Ray is not installed: take --runtime local, or {install_command('ray')}"
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
    `num_actors`: as asked for, None for the default; `address`: of a Ray cluster, None for a private one."""
    with ExitStack() as stack:
        if experiment.runtime == "ray":
            training: Training = stack.enter_context(_on_cluster(experiment, folder, num_actors, address))
        else:
            host = stack.enter_context(run_services(experiment, folder))
            if experiment.runtime == "serial":
                training = serial_training(experiment, folder, service_status=lambda: workers_of(host))
            elif experiment.runtime == "device":
                training = device_training(experiment, folder, service_status=lambda: workers_of(host))
            else:
                actors = num_actors or default_actors(experiment)
                training = local_training(experiment, folder, actors, service_status=lambda: workers_of(host))
        with closing(training):
            yield training


@contextmanager
def _on_cluster(
    experiment: Experiment, folder: RunFolder, num_actors: int | None, address: str | None
) -> Iterator[Training]:
    from ludus.runtime.ray.connection import join  # Ray is imported once its environment is set

    with ExitStack() as stack:
        served = with_model_service(experiment, address)
        stack.callback(join(address, num_actors, served.services, num_learners(experiment)))
        from ludus.runtime.ray.launcher import ray_training
        from ludus.runtime.ray.service_starter import RayServiceStarter

        starter = RayServiceStarter(folder, experiment.cluster)
        listening = listening_host(experiment, address)
        host = stack.enter_context(run_services(served, folder, listening, starter))
        yield ray_training(
            experiment, folder, num_actors=num_actors, taken=starter.taken, service_status=lambda: workers_of(host)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Brought:
    """Weights that an address led to, and the player of the new pool that they belong to."""

    player: str
    source: Source
    fit: Fit


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialModels:
    """An experiment whose league may name models by address, and what is there."""

    experiment: Experiment
    brought: dict[str, _Brought]
    """By address."""

    def put_into(self, pool: ModelPool) -> Experiment:
        """Put the models into the pool; the experiment with their ids in place of the addresses."""
        ids = {
            address: str(publish_new(pool, one.player, one.fit.live.arrays, None, one.source.facts))
            for address, one in self.brought.items()
        }
        for one in self.brought.values():
            one.source.discard()
        return self._with_ids(ids)

    @property
    def planned(self) -> Experiment:
        """The experiment with an id in place of every address, before any is given."""
        return self._with_ids({address: f"{one.player}:0:0" for address, one in self.brought.items()})

    def _with_ids(self, ids: Mapping[str, str]) -> Experiment:
        if not ids:
            return self.experiment
        league = self.experiment.league
        roles = {
            name: replace(role, start=ids.get(role.start, role.start)) if role.start else role
            for name, role in league.roles.items()
        }
        external = {}
        for player, text in league.external.items():
            model, simulations = split_search(text)
            external[player] = with_search(ids.get(model, model), simulations)
        return replace(self.experiment, league=replace(league, roles=roles, external=external))

    def describe(self) -> str:
        """The sources of its models, a line each."""
        return "".join(
            f"model:      {one.player} from {one.source.label}, {one.source.checked}\n" for one in self.brought.values()
        )


def models_named(experiment: Experiment) -> Iterator[tuple[str, str, str, str | None]]:
    """(setting, what it says, a name for its pool, the role that starts from it) of every model that the league
    names."""
    league = experiment.league
    for player, model in league.external.items():
        yield f"league.external.{player}", split_search(model)[0], player, None
    for name, role in league.roles.items():
        if role.start is not None:
            # No player is called so: those of roles have no dot, and snapshots a number after it.
            yield f"league.roles.{name}.start", role.start, f"{name}.start", name


def find_initial_models(experiment: Experiment, pool: ModelPool | None, known: Collection[str] = ()) -> InitialModels:
    """Fetch what the league names by address, and look at what it names by id in the pool, unless it is
    known. Writes nothing; what is wrong is said with the setting that says it."""
    brought: dict[str, _Brought] = {}
    for setting, text, player, role in models_named(experiment):
        if text in known:
            continue
        try:
            model = _as_id(text)
            if model is not None:
                _require_there(pool, model, experiment, role)
                continue
            source = brought[text].source if text in brought else fetch_source(ModelRequest(address=text))
            view = experiment.of_role(role)
            fit, view = best_fit(source, experiment) if role is None else (fit_weights(source, view), view)
            require_fit(fit, source, view)
        except DownloadError:
            raise
        except StoreError as error:
            raise ConfigError(f"{setting}: {error}") from error
        brought.setdefault(text, _Brought(player=player, source=source, fit=fit))
    return InitialModels(experiment=experiment, brought=brought)


def _as_id(text: str) -> ModelId | None:
    try:
        model = ModelId.parse(text)
        check_player_id(model.player)
    except ValueError:
        return None
    return model


def _require_there(pool: ModelPool | None, model: ModelId, experiment: Experiment, role: str | None) -> None:
    if pool is None or not pool.folder.is_dir():
        raise StoreError(
            f"no model {model}: a new run has none; name one of another run as RUN#{model}, a file or a URL"
        )
    views = with_each_model(experiment) if role is None else [experiment.of_role(role)]
    view = next((one for one in views if has_same_networks(pool, model, one)), views[0])
    require_same_networks(pool, model, view)


class StoppedLearner:
    """Learning players as the latest checkpoint has them. The next start configures and resets them."""

    def __init__(self, experiment: Experiment, folder: RunFolder, league: League) -> None:
        self._experiment = experiment
        self._folder = folder
        self._league = league

    def report(self, player: str) -> LearnerProgress:
        trained = self._load(player)
        return LearnerProgress(player, trained.incarnation, trained.step, trained.decisions)

    def freeze(self, player: str, parent: ModelId | None) -> LearnerProgress:
        trained = self._load(player)
        put_into_pool(self._folder.models, trained, parent)
        return self.report(player)

    def reset(self, event: PlayerReset) -> None:
        pass

    def configure(self, player: str, settings: Settings) -> None:
        pass

    def _load(self, player: str) -> TrainedPlayer:
        checkpoint = self._folder.checkpoints(CHECKPOINT).load_latest()
        if checkpoint is None or player not in checkpoint.facts["learner"]:
            raise ValueError(f"no checkpoint has {player!r} yet; let the run train first")
        trained = load_trained(self._experiment.of_role(self._league.role_of(player)), checkpoint, player)
        standing = self._league.standings[player]
        if (trained.incarnation, trained.decisions) < (standing.incarnation, standing.decisions):
            raise ValueError(
                f"the weights of {player!r} are gone that the ledger last heard of: the run did not end in "
                "good order, or a reset is due; let it go on first"
            )
        return trained


def edit_stopped(folder: RunFolder, edit: AnyEdit) -> EditAnswer:
    """Do an edit, or say why not; the caller holds the lock of the run."""
    written = load_experiment(folder)
    league = new_league(written)
    with folder.ledger() as ledger:  # a run that has never started gets its ledger here
        ledger.fold(league.apply)
        now = effective(written, league)
        controller = new_controller(now, folder, league, ledger, StoppedLearner(now, folder, league))
        try:
            return EditAnswer(done=Editor(controller, edit_context(written, folder)).do(edit))
        except REFUSALS as error:
            return EditAnswer(refused=str(error))
