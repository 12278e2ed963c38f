"""Processes of services on the nodes of a cluster: Ray finds a node that has what each of them needs."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

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

LAST_WORDS_BYTES = 16_384
"""Of a log that goes with its node's stand-in of the run folder, so much of the end is sent."""
ENCODE = msgspec.msgpack.encode
DECODE = msgspec.msgpack.decode


class ServiceOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A service process that a node is to keep running."""

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
    """What Ray calls. All calls come in one thread, the first of the process: the kernel ends the service
    with it."""

    def __init__(self) -> None:
        self._process: ServiceProcess | None = None

    def facts(self, run: str, facts: bytes) -> tuple[str, bytes]:
        """The node that it is on, and what is there."""
        return ray.get_runtime_context().get_node_id(), ENCODE(NodeFacts.here(run, facts))

    def start(self, content: bytes, shared: bool) -> int:
        """`shared`: the run folder can be seen here."""
        order = DECODE(content, type=ServiceOrder)
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

    def look(self) -> bytes:
        assert self._process is not None
        self._logs.look()
        exit_code = self._process.exit_code  # first: its last words are there once it has ended
        return ENCODE(ServiceActorNews(self._process.hear(), exit_code))

    def leave(self) -> None:
        if self._process is not None:
            self._process.leave()

    def kill(self, within_s: float) -> bytes:
        """Gives its last words, unless they are in the run folder."""
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
    """Whole lines."""
    try:
        content = log.read_bytes()
    except OSError:  # it has printed nothing
        return b""
    if len(content) <= LAST_WORDS_BYTES:
        return content
    return content[-LAST_WORDS_BYTES:].partition(b"\n")[2]


POST: Any = ray.remote(max_restarts=0)(ServiceActor)


START_S = 120.0
"""How long a node may take from the moment Ray has chosen it until the process is there."""
LOOK_EVERY_S = 0.25
NODE_LABEL = "ray.io/node-id"
"""That Ray gives to each node."""
WAIT_S = 1.0
"""Time is counted in waits of this length, so that a pause of this process does not count."""


class RayServiceProcess:
    """A process of a service on some node, tended by a thread of its own."""

    def __init__(
        self,
        name: str,
        order: ServiceOrder,
        described: UserService,
        log: Path,
        refused: set[str],
        *,
        silent_after_s: float,
        shared_folder: bool,
    ) -> None:
        """`name`: of the Ray actor; `log`: gets its last words if its node does not see the run folder;
        `refused`: ids of nodes that have other code, which all processes share."""
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
        self._silent_after_s = silent_after_s
        self._shared_folder = shared_folder
        self._said: list[ServiceNews] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._actor = self._new_actor()
        self._thread = threading.Thread(target=self._tend, name=name, daemon=True)
        self._thread.start()

    @property
    def keeps_room(self) -> bool:
        """What it needs is not for others: it runs, or is to be started again where it was."""
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
                words = self._ask("kill", within_s, patience_s=within_s + self._silent_after_s)
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
                news = DECODE(self._ask("look"), type=ServiceActorNews)
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
        """It waits in Ray's queue until a node has room: this does not wait for that."""
        others = {NODE_LABEL: f"!in({','.join(sorted(self._refused))})"} if self._refused else None
        return POST.options(
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
            node_id, content = self._ask("facts", order.run, order.facts, patience_s=math.inf)
            facts = DECODE(content, type=NodeFacts)
            node = node_name(facts.host, node_id)
            if (other := facts.other_code(node)) is None:
                break
            self._refused.add(node_id)
            self._go_elsewhere(other)
        self.node_id, self.host, self.node = node_id, facts.host, node
        self.waits_for = ""
        shared = facts.sees_run and self._shared_folder
        self.pid = self._ask("start", ENCODE(order), shared, patience_s=START_S)

    def _go_elsewhere(self, why: str) -> None:
        """To a node that is not refused, if there is one that has what it needs."""
        wanted = in_rays_words(self.needed)
        left = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self._refused]
        if not any(_has(node["Resources"], wanted) for node in left):
            raise _Refused(why)
        with self._lock:
            if not self._closed.is_set():
                ray.kill(self._actor)
                self._name += "-"  # Ray may not know yet that the name is free again
                self._actor = self._new_actor()

    def _ask(self, method: str, *arguments: Any, patience_s: float | None = None) -> Any:
        patience = self._silent_after_s if patience_s is None else patience_s
        answer = getattr(self._actor, method).remote(*arguments)
        waited = 0.0
        while waited < patience and not (self._closed.is_set() and method != "kill"):
            with suppress(GetTimeoutError):
                return ray.get(answer, timeout=WAIT_S)
            waited += WAIT_S
        raise _Silent(f"no answer for {waited:.0f} s")


class _Silent(Exception):  # noqa: N818
    """The post does not answer."""


class _Refused(Exception):  # noqa: N818
    """The node cannot take it, nor can another."""


class RayServiceStarter:
    """A `Starter` for services that say what they need. This process has joined the cluster already."""

    def __init__(self, folder: RunFolder, *, silent_after_s: float, shared_folder: bool) -> None:
        self._folder = folder
        self._silent_after_s = silent_after_s
        self._shared_folder = shared_folder
        self._processes: dict[str, RayServiceProcess] = {}
        """By name of the instance, the latest of each."""
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
            label,
            order,
            described,
            self._folder.logs / f"service-{name}.log",
            self._refused,
            silent_after_s=self._silent_after_s,
            shared_folder=self._shared_folder,
        )
        return self._processes[name]

    def look(self) -> None:
        """Each post looks after its own."""

    def close(self) -> None:
        self._processes = {}

    def taken(self) -> dict[str, list[Resources]]:
        """What processes have of the nodes now, by the id of the node; under "" what those need that wait for
        one."""
        found: dict[str, list[Resources]] = {}
        for one in tuple(self._processes.values()):
            if one.keeps_room:
                found.setdefault(one.node_id, []).append(one.needed)
        return found


def require_nodes(services: Mapping[str, UserService], nodes: Iterable[Mapping[str, Any]]) -> None:
    """Refuse what the cluster can never have room for. `nodes`: as Ray describes them."""
    there = [(node_name(node["NodeManagerHostname"], node["NodeID"]), node["Resources"]) for node in nodes]
    total: dict[str, float] = {}
    for name, described in services.items():
        needed = in_rays_words(described.resources or Resources())
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


def in_rays_words(needed: Resources) -> dict[str, float]:
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
    """In our words again."""
    names = {"CPU": ("cpus", 1.0), "GPU": ("gpus", 1.0), "memory": ("memory_mb", 1e6)}
    name, unit = names.get(what, (what, 1.0))
    return f"{much / unit:g} {name}"
