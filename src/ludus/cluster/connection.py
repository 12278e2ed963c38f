"""The way into a Ray cluster: one that runs, or a private one on this machine that ends with us.

Ray reads its environment when it is imported, so nothing here imports it before that is set. Where somebody
else has, what matters is set again: the token, and that a private cluster listens on loopback only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ludus.cluster.temporary import TemporaryHome
from ludus.config import ConfigError
from ludus.runtime.cores import usable_cores
from ludus.runtime.token_file import (
    RAY_MODE_VARIABLE,
    RAY_PATH_VARIABLE,
    RAY_TOKEN_VARIABLE,
    make_token_file,
    token_from,
)
from ludus.services.user_services import UserService, bytes_of, cpus_of, custom_of

NAMESPACE = "ludus"
OBJECT_STORE_BYTES = 256 * 2**20
"""Of a private cluster: its one node shares memory of its own kind."""
START_SETTING, START_SECONDS = "raylet_start_wait_time_s", "120"
"""How long Ray waits for a node of its own to start: on a busy machine its 30 s are too short."""
START_WAIT = f"RAY_{START_SETTING}"
SHORT = "/tmp"
"""Where Ray's sockets go, whatever TMPDIR says: their names must not be long."""
NO_OTHER_CLUSTER = "RAY_ENABLE_AUTO_CONNECT"
"""Set to 0 it keeps a call that comes after the end from starting another cluster by itself."""
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0 it keeps all of Ray's listeners on 127.0.0.1, on Linux too."""


class ClusterError(ConfigError):
    """There is no cluster to be had."""


def join(
    address: str | None, num_actors: int | None, services: Mapping[str, UserService] = MappingProxyType({})
) -> Callable[[], None]:
    """Connect this process to a cluster, or to a private one without an `address`, which has room for the
    `services` too; gives what ends that."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault(START_WAIT, START_SECONDS)
    os.environ[NO_OTHER_CLUSTER] = "0"
    return _start(num_actors, services) if address is None else _connect(address)


def _start(num_actors: int | None, services: Mapping[str, UserService]) -> Callable[[], None]:
    """Bound to loopback, with a token of its own that nobody else can read."""
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
            num_cpus=max(int(usable_cores()), max(2, (num_actors or 0) + 1) + math.ceil(cpus_of(services))),
            # Whole amounts are all that Ray takes, and its own figure for memory is what is free just now.
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
        raise ClusterError(f"no private Ray cluster could be started here: {_first_line(error)}") from error
    return leave


def _connect(address: str) -> Callable[[], None]:
    """To a cluster that runs: with its token, unless somebody has said that it has none."""
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
        raise ClusterError(f"--runtime ray needs: pip install 'ludus[ray]' ({error})") from error
    raylet: Any = ray._raylet
    # What Ray reads when it is imported, in case somebody has done that before us.
    settings = {"AUTH_MODE": os.environ[RAY_MODE_VARIABLE], START_SETTING: int(os.environ[START_WAIT])}
    raylet.Config.initialize(json.dumps(settings))
    if os.environ.get(LOOPBACK_ONLY) == "0":
        ray_constants.ENABLE_RAY_CLUSTER = False
    raylet.AuthenticationTokenLoader.instance().reset_cache()  # of a cluster that this process was in before
    # Ray tells of nodes that die on our standard output, in the middle of a table or of JSON, and has no
    # switch for it. What we do about them is in metrics/nodes.jsonl.
    worker.print_to_stdstream = lambda *_, **__: None
    return ray


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
