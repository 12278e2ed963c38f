"""Publish and subscribe: the newest value of a topic, such as parameters, for any number of subscribers. A service
holds the values. An experiment that uses topics lists `services={"topics":
UserService(address="ludus.services.topics:Topics")}`."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, Self

from ludus.services.endpoints import InstanceLost, NoInstance, TimeLimit, service
from ludus.services.registry import Registry
from ludus.services.solver import Solver

SERVICE = "topics"
WAIT_S = 10.0  # how long a request of a subscriber waits for a new value before it is repeated
_NAP_S = 0.02  # between two requests while the service is being started again


class PublishedValue(NamedTuple):
    version: int  # counts up with every value that is published under the topic
    value: Any


class Topics:
    """The service: keeps the newest value of each topic. Two instances would hold different values, so it has one."""

    def __init__(self) -> None:
        self._newest: dict[str, PublishedValue] = {}
        self._changed: dict[str, asyncio.Event] = {}

    @service(idempotent=True)
    def publish(self, topic: str, value: Any, above: int) -> int:
        """Returns the version of the value, which is above `above`, the last one that the publisher knows."""
        known = self._newest.get(topic)
        version = max(above, known.version if known else 0) + 1
        self._renew(topic, PublishedValue(version, value))
        return version

    @service(idempotent=True)
    async def next(self, topic: str, known: int, wait_s: float) -> PublishedValue | None:
        """The newest value, once it is newer than the version that the subscriber knows; None if that takes longer."""
        until = time.monotonic() + min(wait_s, WAIT_S)
        while True:
            newest = self._newest.get(topic)
            if newest is not None and newest.version < known:
                # Only a service that was started again knows less than its subscribers.
                newest = PublishedValue(known + 1, newest.value)
                self._renew(topic, newest)
            if newest is not None and newest.version > known:
                return newest
            event = self._changed.setdefault(topic, asyncio.Event())
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                    await event.wait()
            except TimeoutError:
                return None

    def _renew(self, topic: str, newest: PublishedValue) -> None:
        self._newest[topic] = newest
        self._changed.pop(topic, asyncio.Event()).set()


class _TopicUser:
    """A context manager with a solver for the service."""

    def __init__(self, topic: str, *, registry: Registry | None = None, time_limit_s: float = 30.0) -> None:
        self.topic = topic
        self._solver = Solver(SERVICE, registry=registry, time_limit_s=time_limit_s)

    def close(self) -> None:
        self._solver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Publisher(_TopicUser):
    """Publishes values under one topic. A value that nobody has fetched is replaced by the next."""

    _version = 0

    def publish(self, value: Any) -> int:
        """Returns the version, once the value can be fetched."""
        self._version = int(self._solver.solve("publish", self.topic, value, self._version))
        return self._version


class Subscriber(_TopicUser):
    """Gets the newest value of one topic; versions only grow, and those in between may be skipped. The next value is
    requested while the caller works, so `newest` costs next to nothing."""

    _latest: PublishedValue | None = None
    _asked: Future[Any] | None = None

    def newest(self) -> PublishedValue | None:
        """The newest value that has arrived; None before the first. Never waits."""
        if self._asked is None:
            self._ask()
        while self._asked is not None and self._asked.done() and self._take():
            self._ask()
        return self._latest

    def wait(self, time_limit_s: float) -> PublishedValue:
        """The first value that is newer than the last one returned."""
        before = self._latest.version if self._latest else 0
        until = time.monotonic() + time_limit_s
        while True:
            newest = self.newest()
            if newest is not None and newest.version > before:
                return newest
            left = until - time.monotonic()
            if left <= 0:
                raise TimeLimit(f"topic {self.topic!r} has nothing newer than version {before} in {time_limit_s:g} s")
            if self._asked is None:
                time.sleep(min(_NAP_S, left))
                continue
            with suppress(TimeoutError):
                self._asked.exception(left)

    def _ask(self) -> None:
        known = self._latest.version if self._latest else 0
        self._asked = self._solver.try_submit("next", self.topic, known, WAIT_S)

    def _take(self) -> bool:
        """Whether a new value has arrived."""
        assert self._asked is not None
        asked, self._asked = self._asked, None
        answer = None
        with suppress(InstanceLost, NoInstance):  # the service is being started again
            answer = asked.result()
        if answer is None:
            self._ask()
            return False
        self._latest = PublishedValue(*answer)
        return True
