"""A registry for several machines: a service itself, at a TCP address with a token."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import msgspec

from ludus.services.connection import InstanceConnection, NotSent, PendingCall, lost
from ludus.services.endpoints import ServiceError, TimeLimit
from ludus.services.registry import TOKEN_VARIABLE, FileRegistry, Instance, Registry

FORGET_AFTER_S = 30.0  # an instance that has not been announced for this long is taken for lost with its machine
ANNOUNCE_EVERY_S = 5.0
PATIENCE_S = 10.0


class RemoteRegistry:
    """The registry at the other end of a connection; connects again when that is lost."""

    def __init__(self, address: str, token: str) -> None:
        self.token = token
        self._instance = Instance(service="registry", name="registry", address=address, host="", pid=0)
        self._lock = threading.Lock()
        self._connection: InstanceConnection | None = None

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
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _ask(self, method: str, *args: Any) -> Any:
        """Try twice at most: every method is idempotent."""
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
        except ServiceError:
            raise
        except TimeoutError:
            raise TimeLimit(f"the registry at {self._instance.address} does not answer") from None

    def _connected(self) -> InstanceConnection:
        with self._lock:
            if self._connection is None or not self._connection.is_open:
                try:
                    self._connection = InstanceConnection(self._instance, self.token, _give_up, PATIENCE_S)
                except OSError as error:
                    raise ServiceError(f"the registry of services cannot be reached: {error}") from error
            return self._connection


def _give_up(connection: InstanceConnection, calls: list[PendingCall]) -> None:
    for call in calls:
        call.fail(lost(call, connection.problem))


def open_registry(address: str) -> Registry:
    """`file:FOLDER`, or `tcp:HOST:PORT` with the token of the environment."""
    kind, _, where = address.partition(":")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if kind in ("file", "tcp") and where:
        return FileRegistry(where, token) if kind == "file" else RemoteRegistry(address, token)
    raise ServiceError(f"{address!r} is no registry of services: file:FOLDER or tcp:HOST:PORT")
