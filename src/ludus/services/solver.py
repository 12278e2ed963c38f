"""The caller's side of services: `Solver` calls a service by name and picks one of its processes."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from concurrent.futures import Future
from typing import Any

from ludus.data.checks import did_you_mean
from ludus.services.connection import InstanceConnection, NotSent, PendingCall, late, lost
from ludus.services.endpoints import CallRefused, NoInstance, UnknownService
from ludus.services.registry import Instance, Registry, can_reach, registry_address
from ludus.services.remote_registry import RemoteRegistry, open_registry

LOOK_EVERY_S = 1.0  # how often the registry is asked for instances that have joined
AVOID_S = 0.5  # how long an instance is avoided after a failed connection
LOOK_ALONE_EVERY_S = 0.05  # the same while no instance is connected
LOOK_WITHIN_S = 0.2  # how long a look waits for the connections that it begins; slower ones are added later
_NAPS_S = (0.01, 0.2)  # between two looks for an instance while there is none: at first, at most


class Solver:
    """Finds the instances of a service and sends each call to the one with the fewest unanswered calls. A call whose
    instance is lost is sent to another one if it was not done, or if its method is idempotent.

    It connects in threads of its own, so that an instance that hangs delays nobody. Threads may share it.
    `time_limit_s` limits each call and the wait for an instance; a future of `submit` has no limit.
    """

    def __init__(self, service: str, *, registry: Registry | None = None, time_limit_s: float = 30.0) -> None:
        if not time_limit_s > 0:
            raise ValueError(f"Solver: time_limit_s must be above 0, got {time_limit_s}")
        self.service = service
        self.time_limit_s = time_limit_s
        self._given = registry
        self._registry: Registry | None = registry
        self._told = ""  # the address of the registry, if it came from the environment
        self._opened: RemoteRegistry | None = None  # the registry, if this solver has connected to it
        self._lock = threading.Lock()  # never held during a wait, except for `_looked`
        self._looked = threading.Condition(self._lock)
        self._connections: dict[str, InstanceConnection] = {}  # by address
        self._connecting: set[str] = set()  # addresses that are being connected to
        self._avoid: dict[str, float] = {}  # addresses that could not be connected to, until when
        self._is_looking = False
        self._looked_at = -math.inf
        self._turn = 0
        self._problem = "none has been announced"
        self._refusal: Exception | None = None  # an error of a look that does not go away with time
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
        """Call a method without waiting; the future gets its answer. Many calls may be under way."""
        call = self._new_call(method, args, kwargs)
        self._send(call)
        return call.answer

    def try_submit(self, method: str, *args: Any, **kwargs: Any) -> Future[Any] | None:
        """As `submit`, but returns None instead of waiting for an instance, and looks for one in the background."""
        call = self._new_call(method, args, kwargs)
        return call.answer if self._try_send(call) else None

    async def asolve(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """As `solve`, for `async` code."""
        call = self._new_call(method, args, kwargs)
        await asyncio.to_thread(self._send, call)  # it may have to wait for an instance
        try:
            async with asyncio.timeout(max(0.0, call.deadline - time.monotonic())):
                return await asyncio.wrap_future(call.answer)
        except TimeoutError:
            raise late(call, self.time_limit_s) from None

    @property
    def instances(self) -> list[str]:
        """Names of the connected instances."""
        with self._lock:
            return sorted(connection.instance.name for connection in self._connections.values() if connection.is_open)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            connections, self._connections = list(self._connections.values()), {}
            opened = self._opened
        for connection in connections:
            connection.close()
        if opened is not None:
            opened.close()

    def __enter__(self) -> Solver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- finding an instance ---

    def _new_call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PendingCall:
        return PendingCall(method, args, kwargs, time.monotonic() + self.time_limit_s)

    def _send(self, call: PendingCall) -> None:
        """Send it, and wait for an instance if there is none."""
        nap = _NAPS_S[0]
        while not self._try_send(call):
            left = call.deadline - time.monotonic()
            if left <= 0:
                raise NoInstance(
                    f"no instance of service {self.service!r} within {self.time_limit_s:g} s: {self._problem}"
                )
            if not self._wait_for_look(left):
                time.sleep(min(nap, left))
                nap = min(2 * nap, _NAPS_S[1])

    def _try_send(self, call: PendingCall) -> bool:
        """Send it to the instance with the least to do, or to the next one if that is gone; False: there is none."""
        while (connection := self._choose()) is not None:
            try:
                connection.send(call)
                return True
            except NotSent as problem:
                self._problem = str(problem)
                self._forget(connection)
        return False

    def _choose(self) -> InstanceConnection | None:
        """A connected instance, if any; does not wait. Starts a look for others when one is due."""
        with self._lock:
            if self._is_closed:
                raise NoInstance(f"the solver of {self.service!r} is closed")
            connections = [connection for connection in self._connections.values() if connection.is_open]
            if not connections and self._refusal is not None:
                refusal, self._refusal = self._refusal, None  # the next call looks again
                raise refusal
            now = time.monotonic()
            is_time = now - self._looked_at >= (LOOK_EVERY_S if connections else LOOK_ALONE_EVERY_S)
            if is_time and not self._is_looking:
                threading.Thread(target=self._look, name=f"look for {self.service}", daemon=True).start()
                self._is_looking, self._looked_at = True, now  # it cannot end before: we have the lock
            if not connections:
                return None
            self._turn += 1  # of equals, each in its turn
            start = self._turn % len(connections)
            return min(connections[start:] + connections[:start], key=lambda connection: connection.outstanding)

    def _wait_for_look(self, most_s: float) -> bool:
        """Wait for the end of the current look. Returns whether it has found an instance or an error."""
        with self._looked:
            self._looked.wait_for(lambda: not self._is_looking, most_s)
            return any(connection.is_open for connection in self._connections.values()) or self._refusal is not None

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
        except Exception as error:  # reported to the callers: nobody sees it in this thread
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
        """Report the error to callers, unless an instance is connected. The caller holds the lock."""
        if error is not None and not any(connection.is_open for connection in self._connections.values()):
            self._refusal = error

    def _find(self) -> list[Instance]:
        """The instances to connect to."""
        self._registry = registry = self._registry_of_now()
        found = registry.find(self.service)
        if not found and self.service not in (known := registry.names()):
            raise UnknownService(f"no service {self.service!r}{did_you_mean(self.service, known)}")
        with self._lock:
            self._connections = {
                address: connection for address, connection in self._connections.items() if connection.is_open
            }
            now = time.monotonic()
            for instance in found:
                if not can_reach(instance):
                    self._problem = f"{instance.name} has a unix socket on {instance.host}, which is another machine"
            joined = [
                instance
                for instance in found
                if can_reach(instance)
                and instance.address not in {*self._connections, *self._connecting}
                and self._avoid.get(instance.address, 0.0) <= now
            ]
            self._connecting |= {instance.address for instance in joined}
        return joined

    def _registry_of_now(self) -> Registry:
        """The registry that was given, or that of the environment: a process may train one run after another."""
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
        """Runs in a thread of its own, because an instance may take seconds to answer."""
        address, connection, refusal = instance.address, None, None
        assert self._registry is not None
        try:
            token = self._registry.token if address.startswith("tcp:") else ""
            connection = InstanceConnection(instance, token, self._lose, self.time_limit_s)
        except CallRefused as error:
            refusal = error
        except Exception as error:  # whatever it is, the address can be tried again
            self._problem = str(error)
        with self._looked:
            self._connecting.discard(address)
            if connection is None or not connection.is_open:  # one that has ended already is not lost again
                self._avoid[address] = time.monotonic() + AVOID_S  # from now on: it may have taken seconds
                self._refuse(refusal)
            elif not self._is_closed:
                self._connections[address], connection = connection, None
                self._refusal = None
            self._looked.notify_all()
        if connection is not None:  # too late, or gone
            connection.close()

    def _forget(self, connection: InstanceConnection) -> None:
        with self._lock:
            if self._connections.get(connection.instance.address) is connection:
                del self._connections[connection.instance.address]

    def _lose(self, connection: InstanceConnection, calls: list[PendingCall]) -> None:
        """Runs in the thread of the connection: an instance is gone with these calls."""
        self._problem = f"{connection.instance.name} is gone: {connection.problem}"
        self._forget(connection)
        for call in calls:
            if call.answer.done():
                continue
            if not connection.methods[call.method].idempotent or self._is_closed:
                call.fail(lost(call, connection.problem))
                continue
            try:
                self._send(call)
            except Exception as error:
                call.fail(error)
