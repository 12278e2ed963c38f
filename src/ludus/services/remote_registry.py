"""A registry for several machines: a service itself, at a TCP address with a token."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import msgspec

from ludus.services.endpoints import CallFailed, ServiceError, TimeLimit, service
from ludus.services.link import InstanceConnection, NotSent, PendingCall, lost
from ludus.services.registry import TOKEN_VARIABLE, FileRegistry, Instance, MemoryRegistry, Registry

FORGET_AFTER_S = 30.0
"""An instance that has not been announced again for so long is gone with its machine."""
ANNOUNCE_EVERY_S = 5.0
PATIENCE_S = 10.0


class RegistryService:
    """What other machines ask. Whoever is announced must be announced again and again."""

    def __init__(self, forget_after_s: float = FORGET_AFTER_S) -> None:
        self._known = MemoryRegistry()
        self._seen: dict[tuple[str, str], float] = {}
        self._forget_after_s = forget_after_s

    @service(idempotent=True)
    def declare(self, name: str) -> None:
        self._known.declare(name)

    @service(idempotent=True)
    def announce(self, instance: dict[str, Any]) -> None:
        described = msgspec.convert(instance, Instance)
        self._known.announce(described)
        self._seen[described.service, described.name] = time.monotonic()

    @service(idempotent=True)
    def withdraw(self, instance: dict[str, Any]) -> None:
        self._known.withdraw(msgspec.convert(instance, Instance))

    @service(idempotent=True)
    def find(self, name: str) -> list[Instance]:
        old = time.monotonic() - self._forget_after_s
        return [one for one in self._known.find(name) if self._seen[name, one.name] > old]

    @service(idempotent=True)
    def names(self) -> list[str]:
        return self._known.names()


class RemoteRegistry:
    """The registry at the other end of a connection; connects again when that is lost."""

    def __init__(self, address: str, token: str) -> None:
        self.token = token
        self._instance = Instance(service="registry", name="registry", address=address, host="", pid=0)
        self._lock = threading.Lock()
        self._link: InstanceConnection | None = None

    def declare(self, service: str) -> None:
        self._ask("declare", service)

    def announce(self, instance: Instance) -> None:
        self._ask("announce", msgspec.to_builtins(instance))

    def withdraw(self, instance: Instance) -> None:
        self._ask("withdraw", msgspec.to_builtins(instance))

    def find(self, service: str) -> list[Instance]:
        return msgspec.convert(self._ask("find", service), list[Instance])

    def names(self) -> list[str]:
        return msgspec.convert(self._ask("names"), list[str])

    def close(self) -> None:
        with self._lock:
            if self._link is not None:
                self._link.close()
            self._link = None

    def _ask(self, method: str, *args: Any) -> Any:
        """Twice at most: all that can be asked may be done twice."""
        call = PendingCall(method, args, {}, time.monotonic() + PATIENCE_S)
        try:
            self._connected().send(call)
        except NotSent:
            try:
                self._connected().send(call)
            except NotSent as error:
                raise ServiceError(f"the registry is gone: {error}") from error
        try:
            return call.answer.result(PATIENCE_S)
        except (CallFailed, ServiceError):
            raise
        except TimeoutError:
            raise TimeLimit(f"the registry at {self._instance.address} does not answer") from None

    def _connected(self) -> InstanceConnection:
        with self._lock:
            if self._link is None or not self._link.is_open:
                try:
                    self._link = InstanceConnection(self._instance, self.token, _give_up, PATIENCE_S)
                except OSError as error:
                    raise ServiceError(f"the registry of services cannot be reached: {error}") from error
            return self._link


def _give_up(link: InstanceConnection, calls: list[PendingCall]) -> None:
    for call in calls:
        if call.answer.set_running_or_notify_cancel():
            call.answer.set_exception(lost(call, link.problem))


def open_registry(address: str) -> Registry:
    """`file:FOLDER`, or `tcp:HOST:PORT` with the token of the environment."""
    kind, _, place = address.partition(":")
    if kind == "file" and place:
        return FileRegistry(place, os.environ.get(TOKEN_VARIABLE, ""))
    if kind == "tcp" and place:
        return RemoteRegistry(address, os.environ.get(TOKEN_VARIABLE, ""))
    raise ServiceError(f"{address!r} is no registry of services: file:FOLDER or tcp:HOST:PORT")
