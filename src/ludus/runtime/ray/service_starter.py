"""Service processes on the nodes of a cluster. Ray chooses a node that has the resources of each."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from ludus.runtime.ray.connection import NAMESPACE, node_name
from ludus.runtime.ray.user_code import CodeArchive, Mirror, NodeFacts, pack_code
from ludus.services.registry import REGISTRY_VARIABLE, TOKEN_VARIABLE
from ludus.services.resources import NotEnough, Resources, UserService
from ludus.services.starter import RUN_VARIABLE, ServiceLaunch, ServiceNews, ServiceProcess, threads_of
from ludus.store.run_folder import RunFolder
from ludus.system.guard import Guard
from ludus.system.log_keeper import MOST_BYTES, LogKeeper
from ludus.system.network import own_address_towards

if TYPE_CHECKING:  # a service process must not load torch
    from ludus.experiment import ClusterConfig

LAST_WORDS_BYTES = 16_384
"""Bytes at the end of a log that a node without the run folder sends to the controller."""


class ServiceOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order to run a service process on a node."""

    run: str
    facts: bytes
    """The content of run.json."""
    code: list[CodeArchive]
    environment: dict[str, str]
    launch: ServiceLaunch
    """The launch as it would be on the controller's node."""


class ServiceActorNews(msgspec.Struct, frozen=True):
    said: list[ServiceNews]
    exit_code: int | None


class ServiceActor:
    """A Ray actor that runs one service process. Ray makes all calls in the main thread, so the kernel ends the
    service with this process."""

    def __init__(self) -> None:
        self._process: ServiceProcess | None = None

    def facts(self, run: str, facts: bytes) -> NodeFacts:
        return NodeFacts.here(run, facts)

    def start(self, order: ServiceOrder, shared: bool) -> int:
        """`shared`: the node uses the run folder itself."""
        os.environ.update(order.environment)
        self._shared = shared
        self._mirror = Mirror(order.run, order.facts, order.code, shared=shared)
        os.environ[RUN_VARIABLE] = order.run if shared else str(self._mirror.path)
        here = msgspec.json.decode(self._mirror.folder.facts.experiment)
        registry = order.launch.registry.partition(":")[2].rpartition(":")[0]
        launch = msgspec.structs.replace(
            order.launch,
            address=here["services"][order.launch.service]["address"],
            folder=str(self._mirror.path),
            host=own_address_towards(registry),
        )
        self._guard = Guard()
        self._logs = LogKeeper(self._mirror.folder.logs, Path(order.run).name)
        log = f"service-{launch.name}"
        self._log = self._mirror.folder.logs / f"{log}.log"
        with self._logs.output(log) as output:
            self._process = ServiceProcess(launch, output, os.environ, self._guard)
        return self._process.pid

    def look(self) -> ServiceActorNews:
        assert self._process is not None
        self._logs.look()
        exit_code = self._process.exit_code  # before `hear`: once the process has ended, its last messages are there
        return ServiceActorNews(self._process.hear(), exit_code)

    def leave(self) -> None:
        if self._process is not None:
            self._process.leave()

    def kill(self, within_s: float) -> bytes:
        """Returns the end of its log, unless the log is in the run folder."""
        if self._process is None:
            return b""
        self._process.kill(within_s)
        self._process = None
        self._guard.close()
        self._logs.close()
        words = b"" if self._shared else _end_of(self._log)
        self._mirror.close()
        return words


def _end_of(log: Path) -> bytes:
    """The last whole lines of a log."""
    try:
        content = log.read_bytes()
    except OSError:  # it has printed nothing
        return b""
    if len(content) <= LAST_WORDS_BYTES:
        return content
    return content[-LAST_WORDS_BYTES:].partition(b"\n")[2]


SERVICE_ACTOR: Any = ray.remote(max_restarts=0)(ServiceActor)
START_S = 120.0
"""Seconds that a node may take to start the process once Ray has chosen the node."""
LOOK_EVERY_S = 0.25
NODE_LABEL = "ray.io/node-id"
"""A label that Ray sets on each node."""
WAIT_S = 1.0
"""Time is counted in waits of this length, so that a pause of this process does not count."""


class RayServiceProcess:
    """A service process on a node, watched by a thread of its own."""

    def __init__(
        self,
        name: str,
        order: ServiceOrder,
        described: UserService,
        log: Path,
        refused: set[str],
        cluster: ClusterConfig,
    ) -> None:
        """`name`: of the Ray actor; `log`: receives the last output if the node does not see the run folder;
        `refused`: ids of nodes that have other code, shared by all processes."""
        self.pid: int | None = None
        self.host = self.node = self.node_id = ""
        self.exit_code: int | None = None
        self.lost: str | None = None
        self.needed = described.resources or Resources()
        self.waits_for = f"a node with {self.needed}"
        self._name = name
        self._order = order
        self._restart = described.restart
        self._log = log
        self._refused = refused
        self._cluster = cluster
        self._said: list[ServiceNews] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._actor = self._new_actor()
        self._thread = threading.Thread(target=self._tend, name=name, daemon=True)
        self._thread.start()

    @property
    def keeps_room(self) -> bool:
        """Its resources stay reserved: the process runs, or is to be started again on its node."""
        has_ended = self.exit_code is not None or self._closed.is_set()
        return self.lost is None and (self._restart or not has_ended)

    def hear(self) -> list[ServiceNews]:
        with self._lock:
            heard, self._said = self._said, []
        return heard

    def leave(self) -> None:
        if self.pid is not None:
            self._actor.leave.remote()

    def kill(self, within_s: float = 0.0) -> None:
        with self._lock:
            self._closed.set()
        with suppress(RayError, _Silent):
            if self.pid is not None and self.lost is None:
                words = self._ask("kill", within_s, patience_s=within_s + self._cluster.silent_after_s)
                if words:
                    _append(self._log, words)
        with suppress(RayError, ValueError):
            ray.kill(self._actor)
        self._thread.join()

    # --- in its thread ---

    def _tend(self) -> None:
        try:
            self._begin()
            while not self._closed.wait(LOOK_EVERY_S) and self.exit_code is None:
                news: ServiceActorNews = self._ask("look")
                with self._lock:
                    self._said += news.said
                self.exit_code = news.exit_code
        except (RayError, _Silent, _Refused) as error:
            if not self._closed.is_set():  # else it is being killed, which is no loss
                self.lost = self._loss(error)

    def _loss(self, error: Exception) -> str:
        if isinstance(error, _Refused):
            return str(error)
        if isinstance(error, RayTaskError):
            cause = error.cause if isinstance(error.cause, Exception) else error
            return f"cannot run on node {self.node}: {type(cause).__name__}: {cause}"
        where = f"node {self.node}" if self.node else "its node"
        return f"was lost with {where}: {str(error).strip().partition(chr(10))[0]}"

    def _new_actor(self) -> Any:
        """Returns at once; the actor waits in Ray's queue until a node has room."""
        others = {NODE_LABEL: f"!in({','.join(sorted(self._refused))})"} if self._refused else None
        return SERVICE_ACTOR.options(
            name=self._name,
            namespace=NAMESPACE,
            num_cpus=self.needed.cpus,
            num_gpus=self.needed.gpus,
            memory=int(1e6 * self.needed.memory_mb) or None,
            resources=dict(self.needed.custom),
            scheduling_strategy="SPREAD",
            label_selector=others,
        ).remote()

    def _begin(self) -> None:
        order = self._order
        while True:
            facts: NodeFacts = self._ask("facts", order.run, order.facts, patience_s=math.inf)
            if (other := facts.other_code) is None:
                break
            self._refused.add(facts.node_id)
            self._go_elsewhere(other)
        self.node_id, self.host = facts.node_id, facts.host
        self.node = node_name(facts.host, facts.node_id)
        self.waits_for = ""
        shared = facts.sees_run and self._cluster.shared_folder
        self.pid = self._ask("start", order, shared, patience_s=START_S)

    def _go_elsewhere(self, why: str) -> None:
        """Move to a node that is not refused, if one has the resources."""
        wanted = _ray_resources(self.needed)
        left = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self._refused]
        if not any(_has(node["Resources"], wanted) for node in left):
            raise _Refused(why)
        with self._lock:
            if not self._closed.is_set():
                ray.kill(self._actor)
                self._name += "-"  # Ray may not know yet that the name is free again
                self._actor = self._new_actor()

    def _ask(self, method: str, *arguments: Any, patience_s: float | None = None) -> Any:
        patience = self._cluster.silent_after_s if patience_s is None else patience_s
        answer = getattr(self._actor, method).remote(*arguments)
        waited = 0.0
        while waited < patience and not (self._closed.is_set() and method != "kill"):
            with suppress(GetTimeoutError):
                return ray.get(answer, timeout=WAIT_S)
            waited += WAIT_S
        raise _Silent(f"no answer for {waited:.0f} s")


class _Silent(Exception):  # noqa: N818
    """The service actor does not answer."""


class _Refused(Exception):  # noqa: N818
    """No node can run the service."""


class RayServiceStarter:
    """A `Starter` for services that state their resources. This process has joined the cluster already."""

    def __init__(self, folder: RunFolder, cluster: ClusterConfig) -> None:
        self._folder = folder
        self._cluster = cluster
        self._processes: dict[str, RayServiceProcess] = {}
        """The latest process of each instance, by its name."""
        self._refused: set[str] = set()
        self._num_started = 0

    def open(self, services: Mapping[str, UserService]) -> None:
        require_nodes(services, [node for node in ray.nodes() if node["Alive"]])
        run = self._folder.path.absolute()
        self._facts = (run / "run.json").read_bytes()
        self._code = pack_code(msgspec.json.decode(self._folder.facts.experiment))
        self._told = {name: os.environ[name] for name in (REGISTRY_VARIABLE, TOKEN_VARIABLE)}

    def start(self, service: str, name: str, described: UserService) -> RayServiceProcess:
        assert described.resources is not None
        self._num_started += 1
        run = self._folder.path.absolute()
        launch = ServiceLaunch(
            service=service,
            name=name,
            address=described.address,
            options=dict(described.options),
            registry=self._told[REGISTRY_VARIABLE],
            folder="",
            host="",
        )
        order = ServiceOrder(
            run=str(run),
            facts=self._facts,
            code=self._code,
            environment={**self._told, **threads_of(described, {})},
            launch=launch,
        )
        label = f"ludus-{run.name}-{os.getpid()}-service-{name}-{self._num_started}"
        self._processes[name] = RayServiceProcess(
            label, order, described, self._folder.logs / f"service-{name}.log", self._refused, self._cluster
        )
        return self._processes[name]

    def look(self) -> None:
        """Each process has a thread that watches it."""

    def close(self) -> None:
        self._processes = {}

    def taken(self) -> dict[str, list[Resources]]:
        """Resources in use, by the id of the node; under "" those of processes that wait for a node."""
        found: dict[str, list[Resources]] = {}
        for one in tuple(self._processes.values()):
            if one.keeps_room:
                found.setdefault(one.node_id, []).append(one.needed)
        return found


def require_nodes(services: Mapping[str, UserService], nodes: Iterable[Mapping[str, Any]]) -> None:
    """Refuse services that the cluster can never run. `nodes`: as Ray describes them."""
    there = [(node_name(node["NodeManagerHostname"], node["NodeID"]), node["Resources"]) for node in nodes]
    total: dict[str, float] = {}
    for name, described in services.items():
        needed = _ray_resources(described.resources or Resources())
        if not any(_has(has, needed) for _, has in there):
            seen = "; ".join(
                f"{node} has " + ", ".join(f"{_amount(what, has.get(what, 0.0))}" for what in needed)
                for node, has in there
            )
            raise NotEnough(
                f"services.{name} asks for {described.resources} a process, but no node of the cluster has that: {seen}"
            )
        for what, much in needed.items():
            total[what] = total.get(what, 0.0) + described.count * much
            has_all = sum(has.get(what, 0.0) for _, has in there)
            if total[what] > has_all:
                raise NotEnough(
                    f"services.{name}: with it, services ask for {_amount(what, total[what])}, but all nodes "
                    f"of the cluster together have {_amount(what, has_all)}"
                )


def _ray_resources(needed: Resources) -> dict[str, float]:
    found = {"CPU": needed.cpus, "GPU": needed.gpus, "memory": 1e6 * needed.memory_mb, **needed.custom}
    return {name: amount for name, amount in found.items() if amount}


def _has(node: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    return all(node.get(what, 0.0) >= much for what, much in needed.items())


def _append(log: Path, words: bytes) -> None:
    with suppress(OSError):  # a full disk: these lines are lost, the training is not
        if log.exists() and log.stat().st_size > MOST_BYTES:
            os.replace(log, f"{log}.1")
        with log.open("ab") as file:
            file.write(words)


def _amount(what: str, much: float) -> str:
    """An amount of a Ray resource, by the name that experiments use."""
    names = {"CPU": ("cpus", 1.0), "GPU": ("gpus", 1.0), "memory": ("memory_mb", 1e6)}
    name, unit = names.get(what, (what, 1.0))
    return f"{much / unit:g} {name}"
