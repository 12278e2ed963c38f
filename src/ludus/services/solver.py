"""`Solver` calls a service by name, whichever of its processes does the work."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ludus.services.endpoints import CallRefused, NoInstance, UnknownService, offer
from ludus.services.link import InstanceConnection, NotSent, PendingCall, late, lost
from ludus.services.registry import Instance, Registry, can_reach, registry_address
from ludus.services.remote_registry import RemoteRegistry, open_registry

LOOK_EVERY_S = 1.0
"""How often the registry is asked for instances that have joined."""
AVOID_S = 0.5
"""How long an instance is left alone that could not be connected to."""
LOOK_ALONE_EVERY_S = 0.05
"""The same while there is none to be called."""
LOOK_WITHIN_S = 0.2
"""A look waits so long for those it connects to; who takes longer joins when it can."""
_NAPS_S = (0.01, 0.2)
"""Between two looks for an instance while there is none: at first, at most."""


class Solver:
    """Finds the instances of a service, gives each call to the one with the fewest unanswered ones, and makes
    it elsewhere when that one is gone and it is known not to have been done, or may be done twice.

    Connects when it is first used, in threads of its own: an instance that hangs holds up nobody while there
    are others. Threads may share it. `time_limit_s` is for each call, waiting for an instance that is being
    started included; a future of `submit` waits as long as its caller likes.
    """

    def __init__(self, service: str, *, registry: Registry | None = None, time_limit_s: float = 30.0) -> None:
        if not time_limit_s > 0:
            raise ValueError(f"Solver: time_limit_s must be above 0, got {time_limit_s}")
        self.service = service
        self.time_limit_s = time_limit_s
        self._given = registry
        self._registry: Registry | None = registry
        self._told = ""
        """The address of the registry, where the environment has told it."""
        self._opened: RemoteRegistry | None = None
        """The registry, where this solver has connected to it."""
        self._lock = threading.Lock()
        """Never held while anybody is waited for but for `_looked`."""
        self._looked = threading.Condition(self._lock)
        self._links: dict[str, InstanceConnection] = {}
        """By address."""
        self._connecting: set[str] = set()
        """Addresses that are being connected to."""
        self._avoid: dict[str, float] = {}
        """Addresses that could not be connected to, until when."""
        self._is_looking = False
        self._looked_at = -math.inf
        self._turn = 0
        self._problem = "none has been announced"
        self._refusal: Exception | None = None
        """What a look has found that no waiting mends."""
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

    def try_submit(self, method: str, *args: Any, **kwargs: Any) -> Future[Any] | None:
        """As `submit`, but None where that would have to wait for an instance. Meanwhile it is looked for."""
        call = self._new_call(method, args, kwargs)
        link = self._choose()
        if link is None:
            return None
        try:
            link.send(call)
        except NotSent as problem:
            self._problem = str(problem)
            self._forget(link)
            return None
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

    def __exit__(self, *_: object) -> None:
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
                left = call.deadline - time.monotonic()
                if left <= 0:
                    raise NoInstance(
                        f"no instance of service {self.service!r} within {self.time_limit_s:g} s: {self._problem}"
                    )
                if not self._wait_for_look(left):
                    time.sleep(min(nap, left))
                    nap = min(2 * nap, _NAPS_S[1])
                continue
            try:
                link.send(call)
                return
            except NotSent as problem:
                self._problem = str(problem)
                self._forget(link)

    def _choose(self) -> InstanceConnection | None:
        """Does not wait: an instance that this is connected to, if any; looks for others where it is time."""
        with self._lock:
            if self._is_closed:
                raise NoInstance(f"the solver of {self.service!r} is closed")
            links = [link for link in self._links.values() if link.is_open]
            if not links and self._refusal is not None:
                refusal, self._refusal = self._refusal, None  # the next call looks again
                raise refusal
            now = time.monotonic()
            is_time = now - self._looked_at >= (LOOK_EVERY_S if links else LOOK_ALONE_EVERY_S)
            if is_time and not self._is_looking:
                threading.Thread(target=self._look, name=f"look for {self.service}", daemon=True).start()
                self._is_looking, self._looked_at = True, now  # it cannot end before: we have the lock
            if not links:
                return None
            self._turn += 1  # of equals, each in its turn
            start = self._turn % len(links)
            return min(links[start:] + links[:start], key=lambda link: link.outstanding)

    def _wait_for_look(self, most_s: float) -> bool:
        """Until the look that is under way has ended; whether it has found somebody, or something wrong."""
        with self._looked:
            self._looked.wait_for(lambda: not self._is_looking, most_s)
            return any(link.is_open for link in self._links.values()) or self._refusal is not None

    # --- in threads of its own ---

    def _look(self) -> None:
        """Connect to the instances that have joined."""
        refusal: Exception | None = None
        joined: list[Instance] = []
        try:
            joined = self._find()
            while joined:
                name = f"connect to {joined[-1].name}"
                threading.Thread(target=self._connect, args=(joined[-1],), name=name, daemon=True).start()
                joined.pop()
        except Exception as error:  # for who calls: there is nobody in this thread to hear it
            refusal = error
        with self._looked:
            self._connecting -= {instance.address for instance in joined}  # no thread was to be had for them
            self._looked.wait_for(lambda: not self._connecting or self._is_closed, LOOK_WITHIN_S)
            self._refuse(refusal)
            self._is_looking = False
            self._looked.notify_all()
            opened = self._opened if self._is_closed else None
        if opened is not None:  # it may have been opened after `close` had a look
            opened.close()

    def _refuse(self, error: Exception | None) -> None:
        """Who calls hears it, unless there is somebody to call. Holds the lock."""
        if error is not None and not any(link.is_open for link in self._links.values()):
            self._refusal = error

    def _find(self) -> list[Instance]:
        """Those to connect to."""
        self._registry = registry = self._registry_of_now()
        found = registry.find(self.service)
        if not found and self.service not in (known := registry.names()):
            raise UnknownService(f"no service {self.service!r}{offer(self.service, known)}")
        with self._lock:
            self._links = {address: link for address, link in self._links.items() if link.is_open}
            now = time.monotonic()
            for instance in found:
                if not can_reach(instance):
                    self._problem = f"{instance.name} has a unix socket on {instance.host}, which is another machine"
            joined = [
                instance
                for instance in found
                if can_reach(instance)
                and instance.address not in {*self._links, *self._connecting}
                and self._avoid.get(instance.address, 0.0) <= now
            ]
            self._connecting |= {instance.address for instance in joined}
        return joined

    def _registry_of_now(self) -> Registry:
        """As it was given, or as the environment says: a process may train one run after another."""
        if self._given is not None:
            return self._given
        address = registry_address(os.environ)
        if self._registry is not None and address == self._told:
            return self._registry
        registry, before = open_registry(address), self._opened
        with self._lock:
            self._told = address
            self._opened = registry if isinstance(registry, RemoteRegistry) else None
        if before is not None:
            before.close()
        return registry

    def _connect(self, instance: Instance) -> None:
        """Takes as long as the instance likes, and at most some seconds."""
        address, link, refusal = instance.address, None, None
        assert self._registry is not None
        try:
            token = self._registry.token if address.startswith("tcp:") else ""
            link = InstanceConnection(instance, token, self._lose, self.time_limit_s)
        except CallRefused as error:
            refusal = error
        except Exception as error:  # whatever it is, the address can be tried again
            self._problem = str(error)
        with self._looked:
            self._connecting.discard(address)
            if link is None or not link.is_open:  # who has ended before it is known is not lost again
                self._avoid[address] = time.monotonic() + AVOID_S  # from now on: it may have taken seconds
                self._refuse(refusal)
            elif not self._is_closed:
                self._links[address], link = link, None
                self._refusal = None
            self._looked.notify_all()
        if link is not None:  # too late, or gone
            link.close()

    def _forget(self, link: InstanceConnection) -> None:
        with self._lock:
            if self._links.get(link.instance.address) is link:
                del self._links[link.instance.address]

    def _lose(self, link: InstanceConnection, calls: list[PendingCall]) -> None:
        """In the thread of the link: an instance is gone with these calls."""
        self._problem = f"{link.instance.name} is gone: {link.problem}"
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
