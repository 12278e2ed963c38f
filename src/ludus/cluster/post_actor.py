"""A post: an actor of Ray that keeps one process of a service on the node that Ray has found for it. It is
there for each of them, so it loads no torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import ray

from ludus.cluster.mirror import Mirror
from ludus.cluster.site_messages import SiteFacts
from ludus.cluster.user_code import Luggage
from ludus.runtime.guard import Guard
from ludus.runtime.log_keeper import LogKeeper
from ludus.runtime.network import own_address_towards
from ludus.services.launch import RUN_VARIABLE, Said, ServiceLaunch
from ludus.services.starter import ServiceProcess

LAST_WORDS_BYTES = 16_384
"""Of a log that goes with its node's stand-in of the run folder, so much of the end is sent."""
ENCODE = msgspec.msgpack.encode
DECODE = msgspec.msgpack.decode


class PostOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a post is to keep."""

    run: str
    facts: bytes
    """The content of run.json."""
    luggage: list[Luggage]
    environment: dict[str, str]
    launch: ServiceLaunch
    """As it is on the controller's node."""


class PostNews(msgspec.Struct, frozen=True):
    said: list[Said]
    exit_code: int | None


class PostActor:
    """What Ray calls. All calls come in one thread, the first of the process: the kernel ends the service
    with it."""

    def __init__(self) -> None:
        self._process: ServiceProcess | None = None

    def facts(self, run: str, facts: bytes) -> tuple[str, bytes]:
        """The node that it is on, and what is there."""
        return ray.get_runtime_context().get_node_id(), ENCODE(SiteFacts.here(run, facts))

    def start(self, content: bytes, shared: bool) -> int:
        """`shared`: the run folder can be seen here."""
        order = DECODE(content, type=PostOrder)
        os.environ.update(order.environment)
        self._shared = shared
        self._mirror = Mirror(order.run, order.facts, order.luggage, shared=shared)
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
        return ENCODE(PostNews(self._process.hear(), exit_code))

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


POST: Any = ray.remote(max_restarts=0)(PostActor)
