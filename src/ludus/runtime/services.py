"""The services of a run: started before its workers, told to them, and ended after them."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.config import ConfigError
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.runtime.faults import Fault, FaultLog
from ludus.services.endpoints import CallFailed, ServiceError, service
from ludus.services.host import ServiceHost, serving
from ludus.services.registry import (
    REGISTRY_VARIABLE,
    TOKEN_VARIABLE,
    FileRegistry,
    MemoryRegistry,
    Registry,
    here,
    listen_tcp,
)
from ludus.services.remote_registry import FORGET_AFTER_S, RemoteRegistry
from ludus.services.resources import NotEnough, UserService, allot, with_fixed_addresses
from ludus.services.server import Server, ServerThread
from ludus.services.solver import Solver
from ludus.services.starter import RUN_VARIABLE, Starter
from ludus.store.model_pool import (
    DamagedModel,
    ModelEntry,
    ModelPool,
    ModelPoolError,
    ModelsUnreachable,
    UnknownModel,
    Variant,
)
from ludus.store.model_storage import FILES, SERVICE, SERVICE_ADDRESS, ModelCache, RedisModels
from ludus.store.run_control import WorkerStatus
from ludus.store.run_folder import RunFolder
from ludus.system.network import own_address_towards

LOOPBACK = "127.0.0.1"
SOMEWHERE = "192.0.2.1"
"""An address for documentation (RFC 5737): only the route towards it is asked for."""


def fix_services(experiment: Experiment) -> Experiment:
    """The experiment with service addresses that hold in any folder; `ConfigError` if a file is missing."""
    if not experiment.services:
        return experiment
    try:
        return replace(experiment, services=with_fixed_addresses(experiment.services))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def listening_host(experiment: Experiment, cluster: str | None) -> str:
    """The address that the services of a run listen on; "" for unix sockets only, if no worker can be on another
    machine. `cluster`: its address; None: on this machine."""
    if experiment.runtime != "ray":
        return ""
    if cluster is None:
        return LOOPBACK
    address = os.environ.get("RAY_ADDRESS", "") if cluster == "auto" else cluster
    try:
        return own_address_towards(address.rpartition("://")[2].rpartition(":")[0] or SOMEWHERE)
    except OSError:  # no route: there is nobody else
        return LOOPBACK


def require_resources(experiment: Experiment) -> None:
    """Refuse services that ask for more than this machine has; for where all of them run here."""
    try:
        allot(experiment.services)
    except NotEnough as error:
        raise ConfigError(str(error)) from None


@contextmanager
def run_services(
    experiment: Experiment, folder: RunFolder, host: str = "", elsewhere: Starter | None = None
) -> Iterator[ServiceHost | None]:
    """Runs what the experiment lists, until the end of the block; this process and those that it starts
    meanwhile find it through their environment. `host`: the address of this machine, for workers on others;
    `elsewhere`: where services run that say what they need, if not here.
    """
    if not experiment.services:
        yield None
        return
    place = folder.path.resolve() / "services"
    shutil.rmtree(place, ignore_errors=True)  # of a run that was killed; we hold its lock now
    place.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        faults = FaultLog(folder.metrics / "faults.jsonl")
        stack.callback(faults.close)
        registry, told = _registry(host, str(place), stack)

        def note(instance: str, what: str, then: str, pid: int) -> None:
            faults.note(Fault("service_lost", f"{instance} {what}"), f"service-{instance}", then, pid=pid)

        stack.enter_context(_environment(told))
        yield stack.enter_context(
            ServiceHost(
                experiment.services,
                registry,
                told[REGISTRY_VARIABLE],
                folder=place,
                logs=folder.logs,
                run=folder.path.absolute().name,
                host=host,
                environment={**os.environ, RUN_VARIABLE: str(folder.path.resolve())},
                note=note,
                elsewhere=elsewhere,
            )
        )


def workers_of(host: ServiceHost | None) -> list[WorkerStatus]:
    """The status of the service processes, for `ludus status`; named as their logs."""
    return [
        WorkerStatus(
            name=f"service-{one.name}",
            state=one.state,
            pid=one.pid,
            node=one.node or ("" if one.state == "waiting" else here()),
            started=one.started,
            restarts=one.restarts,
            address=one.address,
        )
        for one in (host.status if host is not None else ())
    ]


@contextmanager
def services_at_hand(experiment: Experiment, folder: RunFolder) -> Iterator[None]:
    """For commands that play with the bots of a run, which may be training meanwhile: services apart from
    its own, in a folder that is gone afterwards."""
    if not experiment.services:
        yield
        return
    with (
        TemporaryDirectory(prefix="ludus-") as place,
        _environment({RUN_VARIABLE: str(folder.path.resolve())}),
        serving(experiment.services, place) as registry,
        _environment({REGISTRY_VARIABLE: f"file:{registry.folder}"}),
    ):
        yield


def _registry(host: str, folder: str, stack: ExitStack) -> tuple[Registry, dict[str, str]]:
    """Files inside a machine; between machines a service, which asks for a token. And what to tell others."""
    if not host:
        return FileRegistry(folder), {REGISTRY_VARIABLE: f"file:{folder}"}
    token = secrets.token_hex(32)
    listening, address = listen_tcp(host, token)
    serving = ServerThread(Server("registry", MemoryRegistry(forget_after_s=FORGET_AFTER_S), token), listening)
    stack.callback(serving.close)
    registry = RemoteRegistry(address, token)
    stack.callback(registry.close)
    return registry, {REGISTRY_VARIABLE: address, TOKEN_VARIABLE: token}


@contextmanager
def _environment(told: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


POOL_SERVICE = UserService(address="ludus.runtime.services:ModelService")
_ERRORS = {error.__name__: error for error in (ModelPoolError, UnknownModel, DamagedModel)}


def with_model_service(experiment: Experiment, cluster: str | None) -> Experiment:
    """The experiment with the service that reads the model pool for nodes without the run folder, if there can be such
    nodes: not on a private cluster (`cluster` is None), unless `cluster.shared_folder` is false."""
    seen_by_all = cluster is None and experiment.cluster.shared_folder
    if experiment.models.backend != FILES or seen_by_all:
        return experiment
    own = experiment.services.get(SERVICE)
    if own is None:
        return replace(experiment, services={**experiment.services, SERVICE: POOL_SERVICE})
    if own.address != POOL_SERVICE.address:
        raise ConfigError(
            f"services.{SERVICE} is {own.address}, but on a cluster {SERVICE!r} names the model pool's service "
            f"({POOL_SERVICE.address}): choose another name, or set models.backend to redis://HOST:PORT/NUMBER"
        )
    return experiment


class ModelService:
    """Reads the pool for others; all it does may be done twice."""

    def __init__(self, folder: str | None = None) -> None:
        """`folder` of the pool; None: that of the run that has started this service."""
        if folder is None:
            if RUN_VARIABLE not in os.environ:
                raise ValueError("ModelService: name the folder of a model pool, or list it in an experiment")
            folder = str(Path(os.environ[RUN_VARIABLE]) / "models")
        self._pool = ModelPool(folder)

    @service(idempotent=True)
    def entry(self, model: str, variant: Variant) -> ModelEntry:
        return self._pool.entry(ModelId.parse(model), variant)

    @service(idempotent=True)
    def content(self, model: str, variant: Variant) -> NDArray[np.uint8]:
        return np.frombuffer(self._pool.content(ModelId.parse(model), variant), np.uint8)

    @service(idempotent=True)
    def resolve(self, text: str) -> str:
        return str(self._pool.resolve(text))

    @service(idempotent=True)
    def lineage(self, model: str) -> list[str]:
        return [str(one) for one in self._pool.lineage(ModelId.parse(model))]


class ServedModels:
    """A `ModelSource` at the other end of a service; errors are those of the pool."""

    def __init__(self, service: str = SERVICE, *, registry: Registry | None = None, time_limit_s: float = 30.0) -> None:
        self._solver = Solver(service, registry=registry, time_limit_s=time_limit_s)

    def entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry:
        return msgspec.convert(self._ask("entry", str(model), variant), ModelEntry)

    def content(self, model: ModelId, variant: Variant = "live") -> bytes:
        content: NDArray[np.uint8] = self._ask("content", str(model), variant)
        return content.tobytes()

    def resolve(self, text: str) -> ModelId:
        return ModelId.parse(self._ask("resolve", text))

    def lineage(self, model: ModelId) -> tuple[ModelId, ...]:
        return tuple(ModelId.parse(one) for one in self._ask("lineage", str(model)))

    def close(self) -> None:
        self._solver.close()

    def _ask(self, method: str, *args: str) -> Any:
        try:
            return self._solver.solve(method, *args)
        except CallFailed as failed:
            if failed.kind in _ERRORS:
                raise _ERRORS[failed.kind](failed.text) from failed
            raise
        except ServiceError as error:
            raise ModelsUnreachable(f"the model pool's service: {error}") from error


def remote_models(
    address: str, experiment: Experiment, folder: RunFolder, waiting: Callable[[], None] = lambda: None
) -> ModelCache:
    """Models of a run whose folder is not here, as `ModelStorage.address` names their place, cached in `folder`.
    `waiting` is called between two tries."""
    limit_s = min(30.0, experiment.supervision.hung_after_s / 2)
    return ModelCache(
        ServedModels(time_limit_s=limit_s) if address == SERVICE_ADDRESS else RedisModels(address),
        folder.models.folder,
        most_models=experiment.cluster.models_kept,
        patience_s=experiment.models.patience_s,
        waiting=waiting,
    )
