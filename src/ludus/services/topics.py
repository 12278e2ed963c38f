"""Publish and subscribe: the newest value of a topic, such as parameters, for whoever wants to have it.

The values lie in a service like any other; an experiment that wants one lists
`services={"topics": UserService(address="ludus.services.topics:Topics")}`.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from ludus.services.endpoints import InstanceLost, NoInstance, TimeLimit, service
from ludus.services.registry import Registry
from ludus.services.solver import Solver

SERVICE = "topics"
WAIT_S = 10.0
"""How long a subscriber's question waits for something new before it is asked again."""
_NAP_S = 0.02
"""Between two tries to ask, for who waits while the service is being started again."""


class PublishedValue(NamedTuple):
    version: int
    """Counts up with every value that is published under the topic."""
    value: Any


class Topics:
    """Keeps the newest value of each topic. Has one instance: two would know different values."""

    def __init__(self) -> None:
        self._newest: dict[str, PublishedValue] = {}
        self._changed: dict[str, asyncio.Event] = {}

    @service(idempotent=True)
    def publish(self, topic: str, value: Any, above: int) -> int:
        """Gives the version of the value, which is greater than `above`, what its publisher knows of."""
        known = self._newest.get(topic)
        version = max(above, known.version if known else 0) + 1
        self._renew(topic, PublishedValue(version, value))
        return version

    @service(idempotent=True)
    async def next(self, topic: str, known: int, wait_s: float) -> PublishedValue | None:
        """The newest value, once it is newer than what the subscriber knows; None if that takes longer."""
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


class Publisher:
    """Publishes values under one topic. A value that nobody has fetched is replaced by the next."""

    def __init__(self, topic: str, *, registry: Registry | None = None, time_limit_s: float = 30.0) -> None:
        self.topic = topic
        self._solver = Solver(SERVICE, registry=registry, time_limit_s=time_limit_s)
        self._version = 0

    def publish(self, value: Any) -> int:
        """Gives the version, once the value can be fetched."""
        self._version = int(self._solver.solve("publish", self.topic, value, self._version))
        return self._version

    def close(self) -> None:
        self._solver.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Subscriber:
    """Gets the newest value of one topic; versions only grow, and those in between may be skipped.

    The next value is on its way while the caller works, so `newest` costs next to nothing.
    """

    def __init__(self, topic: str, *, registry: Registry | None = None, time_limit_s: float = 30.0) -> None:
        self.topic = topic
        self._solver = Solver(SERVICE, registry=registry, time_limit_s=time_limit_s)
        self._latest: PublishedValue | None = None
        self._asked: Future[Any] | None = None

    def newest(self) -> PublishedValue | None:
        """The newest value that has come in; None before the first. Does not wait, not even for a service
        that is being started again."""
        if self._asked is None:
            self._ask()
        while self._asked is not None and self._asked.done() and self._take():
            self._ask()
        return self._latest

    def wait(self, time_limit_s: float) -> PublishedValue:
        """The first value that is newer than the last one that was given out."""
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

    def close(self) -> None:
        self._solver.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self) -> None:
        known = self._latest.version if self._latest else 0
        self._asked = self._solver.try_submit("next", self.topic, known, WAIT_S)

    def _take(self) -> bool:
        """True if something new has come in or the question has only run out."""
        assert self._asked is not None
        asked, self._asked = self._asked, None
        try:
            answer = asked.result()
        except (InstanceLost, NoInstance):  # it is being started again
            self._ask()
            return False
        if answer is None:
            self._ask()
            return False
        self._latest = PublishedValue(*answer)
        return True
