"""`Solver` calls a service by name, whichever of its processes does the work."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any

from ludus.services.errors import BadFrame, NoInstance, Refused, UnknownService, offer
from ludus.services.link import Link, NotSent, PendingCall, late, lost
from ludus.services.registry import Instance, Registry, can_reach, registry_address
from ludus.services.remote_registry import RemoteRegistry, open_registry

LOOK_EVERY_S = 1.0
"""How often the registry is asked for instances that have joined."""
AVOID_S = 0.5
"""How long an instance is left alone that could not be connected to."""
_NAPS_S = (0.01, 0.2)
"""Between two looks for an instance while there is none: at first, at most."""


class Solver:
    """Finds the instances of a service, gives each call to the one with the fewest unanswered ones, and makes
    it elsewhere when that one is gone and it is known not to have been done, or may be done twice.

    Connects when it is first used. Threads may share it. `time_limit_s` is for each call, waiting for an
    instance that is being started included; a future of `submit` waits as long as its caller likes.
    """

    def __init__(self, service: str, *, registry: Registry | None = None, time_limit_s: float = 30.0) -> None:
        if not time_limit_s > 0:
            raise ValueError(f"Solver: time_limit_s must be above 0, got {time_limit_s}")
        self.service = service
        self.time_limit_s = time_limit_s
        self._registry = registry
        self._opened: RemoteRegistry | None = None
        """The registry, where this solver has connected to it."""
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        """By address."""
        self._avoid: dict[str, float] = {}
        """Addresses that could not be connected to, until when."""
        self._look_at = 0.0
        self._turn = 0
        self._problem = "none has been announced"
        self._is_closed = False

    def solve(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method and wait for its answer (None at once if it has no reply)."""
        call = self._new_call(method, args, kwargs)
        self._send(call)
        try:
            return call.answer.result(max(0.0, call.deadline - time.monotonic()))
        except TimeoutError:
            if not call.answer.cancel():  # the answer came in this very moment
                return call.answer.result()
            raise late(call, self.time_limit_s) from None

    def submit(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a method and go on; the future gets its answer. Many may be under way."""
        call = self._new_call(method, args, kwargs)
        self._send(call)
        return call.answer

    async def asolve(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The same for `async` code: other tasks run meanwhile."""
        call = self._new_call(method, args, kwargs)
        await asyncio.to_thread(self._send, call)  # it may have to wait for an instance
        try:
            async with asyncio.timeout(max(0.0, call.deadline - time.monotonic())):
                return await asyncio.wrap_future(call.answer)
        except TimeoutError:
            raise late(call, self.time_limit_s) from None

    @property
    def instances(self) -> list[str]:
        """Names of those that it is connected to."""
        with self._lock:
            return sorted(link.instance.name for link in self._links.values() if link.is_open)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            links, self._links = list(self._links.values()), {}
            opened = self._opened
        for link in links:
            link.close()
        if opened is not None:
            opened.close()

    def __enter__(self) -> Solver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- finding somebody ---

    def _new_call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PendingCall:
        return PendingCall(method, args, kwargs, time.monotonic() + self.time_limit_s)

    def _send(self, call: PendingCall) -> None:
        """To the instance with the least to do; the next one if it turns out to be gone."""
        nap = _NAPS_S[0]
        while True:
            link = self._choose()
            if link is None:
                if time.monotonic() >= call.deadline:
                    raise NoInstance(
                        f"no instance of service {self.service!r} within {self.time_limit_s:g} s: "
                        f"{self._problem}"
                    )
                time.sleep(min(nap, max(0.0, call.deadline - time.monotonic())))
                nap = min(2 * nap, _NAPS_S[1])
                continue
            try:
                link.send(call)
                return
            except NotSent as problem:
                self._problem = str(problem)
                self._forget(link)

    def _choose(self) -> Link | None:
        with self._lock:
            if self._is_closed:
                raise NoInstance(f"the solver of {self.service!r} is closed")
            links = [link for link in self._links.values() if link.is_open]
            now = time.monotonic()
            if not links or now >= self._look_at:
                self._look_at = now + LOOK_EVERY_S
                self._look(now)
                links = [link for link in self._links.values() if link.is_open]
            if not links:
                return None
            self._turn += 1  # of equals, each in its turn
            start = self._turn % len(links)
            return min(links[start:] + links[:start], key=lambda link: link.outstanding)

    def _look(self, now: float) -> None:
        """Connect to the instances that have joined."""
        if self._registry is None:
            self._registry = open_registry(registry_address(os.environ))
            self._opened = self._registry if isinstance(self._registry, RemoteRegistry) else None
        found = self._registry.find(self.service)
        if not found and self.service not in (known := self._registry.names()):
            raise UnknownService(f"no service {self.service!r}{offer(self.service, known)}")
        for instance in found:
            if instance.address in self._links or self._avoid.get(instance.address, 0.0) > now:
                continue
            if can_reach(instance):
                self._connect(instance, self._registry.token, now)
            else:
                self._problem = (
                    f"{instance.name} has a unix socket on {instance.host}, which is another machine"
                )

    def _connect(self, instance: Instance, token: str, now: float) -> None:
        try:
            is_remote = instance.address.startswith("tcp:")
            token = token if is_remote else ""
            self._links[instance.address] = Link(instance, token, self._lose, self.time_limit_s)
        except Refused:
            raise
        except (OSError, BadFrame) as error:
            self._problem = str(error)
            self._avoid[instance.address] = now + AVOID_S

    def _forget(self, link: Link) -> None:
        with self._lock:
            if self._links.get(link.instance.address) is link:
                del self._links[link.instance.address]

    def _lose(self, link: Link, calls: list[PendingCall]) -> None:
        """In the thread of the link: an instance is gone with these calls."""
        self._forget(link)
        for call in calls:
            if call.answer.done():
                continue
            if not link.methods[call.method].idempotent or self._is_closed:
                self._give_up(call, lost(call, link.problem))
                continue
            try:
                self._send(call)
            except Exception as error:
                self._give_up(call, error)

    def _give_up(self, call: PendingCall, error: Exception) -> None:
        with suppress(Exception):  # its caller has given up already
            if call.answer.set_running_or_notify_cancel():
                call.answer.set_exception(error)
