"""Joining a Ray cluster: a running one, or a private one on this machine that ends with this process.

Ray reads its environment when it is imported, so this module imports Ray only after it has set the environment. If Ray
was imported before, the token and the restriction to loopback are set again.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ludus.config import ConfigError
from ludus.services.resources import Resources, UserService, bytes_of, cpus_of, custom_of
from ludus.system.machine import FEW_FILES, install_command, usable_cores
from ludus.system.network import RAY_MODE_VARIABLE, RAY_PATH_VARIABLE, RAY_TOKEN_VARIABLE, make_token_file, token_from

YOUNG_S = 10.0
"""Seconds for which a new folder may not be locked yet."""


class TemporaryHome:
    """A temporary folder of mode 0700, locked by the process that made it. A new folder removes those of the same
    prefix whose processes were killed."""

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        """`prefix`: no other file of the temporary folder may begin with it."""
        place = Path(parent or tempfile.gettempdir())
        for left in place.glob(f"{prefix}*"):
            with suppress(OSError):
                _remove_if_dead(left)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_if_dead(folder: Path) -> None:
    """Raise if a process still uses the folder."""
    if time.time() - folder.stat().st_mtime < YOUNG_S:
        return
    lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


NAMESPACE = "ludus"
OBJECT_STORE_BYTES = 256 * 2**20
"""Object store of a private cluster. Its only node uses shared memory of Ludus instead."""
START_SETTING, START_SECONDS = "raylet_start_wait_time_s", "120"
"""Seconds that Ray waits for a node to start. Its default of 30 is too short on a busy machine."""
START_WAIT = f"RAY_{START_SETTING}"
SHORT = "/tmp"
"""The folder of Ray's sockets, regardless of TMPDIR: their names must be short."""
NO_OTHER_CLUSTER = "RAY_ENABLE_AUTO_CONNECT"
"""If 0, a call after the end does not start another cluster."""
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""If 0, all of Ray listens on 127.0.0.1 only, on Linux too."""


class ClusterError(ConfigError):
    """No cluster could be joined or started."""


def join(
    address: str | None,
    num_actors: int | None,
    services: Mapping[str, UserService] = MappingProxyType({}),
    learners: int = 1,
) -> Callable[[], None]:
    """Connect this process to a cluster; without an `address`, to a private one with room for the `learners`, ranks
    included, as many actors at least, and the `services`. Returns a function that leaves the cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault(START_WAIT, START_SECONDS)
    os.environ[NO_OTHER_CLUSTER] = "0"
    handler = signal.getsignal(signal.SIGTERM)
    leave = _start(num_actors, services, learners) if address is None else _connect(address)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has put one of its own there, which exits at once
    return leave


def _start(num_actors: int | None, services: Mapping[str, UserService], learners: int) -> Callable[[], None]:
    """Start a private cluster, bound to loopback, with a token that only this user can read."""
    home = TemporaryHome("ludus-ray-", SHORT)
    for variable in (RAY_TOKEN_VARIABLE, "RAY_ADDRESS"):
        os.environ.pop(variable, None)
    os.environ[RAY_MODE_VARIABLE] = "token"
    os.environ[RAY_PATH_VARIABLE] = str(make_token_file(home.path / "token"))
    os.environ[LOOPBACK_ONLY] = "0"
    ray = _import_ray()

    def leave() -> None:
        ray.shutdown()
        home.close()

    try:
        ray.init(
            address="local",
            num_cpus=max(int(usable_cores()), max(num_actors or 0, learners) + learners + math.ceil(cpus_of(services))),
            # Ray takes whole amounts only, and its default for memory is what is free just now.
            resources={name: math.ceil(amount) for name, amount in custom_of(services).items()},
            _memory=bytes_of(services) or None,
            include_dashboard=False,
            namespace=NAMESPACE,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
            _temp_dir=str(home.path / "ray"),
        )
    except Exception as error:
        leave()
        raise ClusterError(
            f"no private Ray cluster could be started here: {_first_line(error)}{_few_open_files()}"
        ) from error
    return leave


def _few_open_files() -> str:
    """Ray's own processes end without a word that reaches us if they may open too few files."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= FEW_FILES:
        return ""
    return f" (a process may have only {allowed} open files here: ulimit -n {FEW_FILES} allows more)"


def _connect(address: str) -> Callable[[], None]:
    """Connect to a running cluster with its token, unless the environment says that it has none."""
    mode = os.environ.get(RAY_MODE_VARIABLE)
    token, default = token_from(os.environ), Path.home() / ".ray" / "auth_token"
    if mode is None:
        if token is None and not default.exists():
            raise ClusterError(
                f"no token for the Ray cluster at {address}: set {RAY_PATH_VARIABLE} to the file that has "
                f"it (or {RAY_MODE_VARIABLE}=disabled for a cluster without one that nobody else can reach)"
            )
        os.environ[RAY_MODE_VARIABLE] = "token"
    if token is not None:
        os.environ[RAY_TOKEN_VARIABLE] = token
    if address.partition(":")[0] in ("127.0.0.1", "localhost"):
        os.environ[LOOPBACK_ONLY] = "0"
    ray = _import_ray()
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise ClusterError(
            f"cannot join the Ray cluster at {address} ({_first_line(error)}): does it run, and is the token "
            f"the right one? ({RAY_PATH_VARIABLE}={os.environ.get(RAY_PATH_VARIABLE, default)})"
        ) from error
    leave: Callable[[], None] = ray.shutdown
    return leave


def _import_ray() -> Any:
    try:
        import ray
        from ray._private import ray_constants, worker
    except ModuleNotFoundError as error:
        raise ClusterError(f"--runtime ray needs: {install_command('ray')} ({error})") from error
    raylet: Any = ray._raylet
    # Settings that Ray reads at import, in case it was imported before.
    settings = {"AUTH_MODE": os.environ[RAY_MODE_VARIABLE], START_SETTING: int(os.environ[START_WAIT])}
    raylet.Config.initialize(json.dumps(settings))
    if os.environ.get(LOOPBACK_ONLY) == "0":
        ray_constants.ENABLE_RAY_CLUSTER = False
    raylet.AuthenticationTokenLoader.instance().reset_cache()  # of a cluster that this process was in before
    # Ray reports dead nodes on our standard output, in the middle of a table or of JSON, and has no switch for
    # it. metrics/nodes.jsonl says what became of them.
    worker.print_to_stdstream = lambda *_, **__: None
    return ray


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def node_name(host: str, node_id: str) -> str:
    """A name for people: several nodes may be on one host."""
    return f"{host}/{node_id[:6]}"


ACTOR, LEARNER = "ludus_actor", "ludus_learner"
"""Resources that a node offers: one per actor that it takes, and one for the learner."""
Taken = Callable[[], Mapping[str, Sequence[Resources]]]
"""Resources that services use now, by the id of the node; under "" those that wait for a node."""


@dataclass(frozen=True)
class Node:
    """A node that is alive."""

    id: str
    host: str
    cores: float
    gpus: float
    actor_places: int | None
    """As the node states them, less those that services use; None: it states none."""
    learns: bool
    """The node states that the learner may run on it."""
    is_own: bool
    """The controller runs on it."""

    @property
    def name(self) -> str:
        return node_name(self.host, self.id)

    def places(self, ranks: int = 0) -> int:
        """Places for actors: as many as the node states, or one for each core that the learner's ranks leave."""
        if self.actor_places is not None:
            return self.actor_places
        return max(0, int(self.cores) - ranks)

    def room_for_ranks(self, device: str) -> int:
        """Ranks of the learner that the node can run: one for each GPU if they compute there, else for each core."""
        return int(self.gpus if self.gpus >= 1 and device != "cpu" else self.cores)

    def suits(self, services: Iterable[Resources]) -> bool:
        """Whether one of the services may be about to start on this node."""
        return any(one.cpus <= self.cores and one.gpus <= self.gpus for one in services)

    def bundle(self, *, ranks: int, with_gpus: bool) -> dict[str, float]:
        """The Ray resources of an agent with its workers."""
        wanted = {"CPU": min(self.cores, float(self.places(ranks) + ranks))}
        if self.actor_places:
            wanted[ACTOR] = float(self.actor_places)
        if self.learns and ranks:
            wanted[LEARNER] = 1.0
        if with_gpus:
            wanted["GPU"] = self.gpus
        return {name: amount for name, amount in wanted.items() if amount}


def alive_nodes(taken: Mapping[str, Sequence[Resources]] = MappingProxyType({})) -> list[Node]:
    """Nodes that can run workers. If some state what they are for, the others are not used. `taken`: resources that
    services use, by the id of the node."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    found = [node for node in ray.nodes() if node["Alive"]]
    described = any({ACTOR, LEARNER} & set(node["Resources"]) for node in found)
    nodes = []
    for node in found:
        has, services = node["Resources"], taken.get(node["NodeID"], ())
        nodes.append(
            Node(
                id=node["NodeID"],
                host=node["NodeManagerHostname"],
                cores=max(0.0, has.get("CPU", 0.0) - sum(one.cpus for one in services)),
                gpus=_whole(max(0.0, has.get("GPU", 0.0) - sum(one.gpus for one in services))),
                actor_places=_places_left(has, sum(one.cpus for one in services)) if described else None,
                learns=LEARNER in has,
                is_own=node["NodeID"] == own,
            )
        )
    return [node for node in nodes if node.learns or node.places()]


def _places_left(has: Mapping[str, float], cores: float) -> int:
    """Places for actors that services with this many cores leave. Services first take the cores that no worker was
    to have."""
    stated = int(has.get(ACTOR, 0))
    spare = max(0.0, has.get("CPU", 0.0) - stated - (LEARNER in has))
    return max(0, stated - math.ceil(max(0.0, cores - spare)))


def _whole(gpus: float) -> float:
    """Ray only divides a single GPU."""
    return float(int(gpus)) if gpus > 1 else gpus


def learner_first(nodes: Iterable[Node]) -> list[Node]:
    """Nodes that state that they learn, then those with a GPU, then the controller's own, then the largest."""
    return sorted(nodes, key=lambda node: (node.learns, node.gpus > 0, node.is_own, node.cores), reverse=True)


WAIT_S = 300.0


def gather(address: str, expected: int, wait_s: float = WAIT_S) -> int:
    """Wait for the nodes and return how many have come. Later ones may still join the run."""
    leave = join(address, None)
    try:
        import ray

        until = time.monotonic() + wait_s
        while True:
            found: int = sum(node["Alive"] for node in ray.nodes())
            if found >= expected or time.monotonic() > until:
                return found
            time.sleep(1.0)
    finally:
        leave()


def main() -> None:
    address, expected = sys.argv[1], int(sys.argv[2])
    found = gather(address, expected)
    if found < expected:
        print(f"only {found} of {expected} nodes have come within {WAIT_S:g} s; the training begins with them")


if __name__ == "__main__":
    main()
