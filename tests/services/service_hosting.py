"""Services inside the test's own process: a server in a thread, and a class with one method of every kind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ludus import service
from ludus.services.registry import Instance, Registry, here, listen_tcp, listen_unix
from ludus.services.server import Server, ServerThread


class Sums:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.batches: list[int] = []
        self.calls = 0

    @service()
    def add(self, left: float, right: float = 1.0) -> float:
        self.calls += 1
        return left + right

    @service(idempotent=True)
    def echo(self, value: Any) -> Any:
        return value

    @service(reply=False)
    def tell(self, value: Any) -> None:
        self.told.append(value)
        if value == "raise":
            raise ValueError("nobody hears this")

    @service()
    def heard(self) -> list[Any]:
        return self.told

    @service(batch=4, max_delay_ms=20.0)
    def double(self, requests: list[float]) -> list[Any]:
        self.batches.append(len(requests))
        return [ValueError(f"{one} is negative") if one < 0 else 2 * one for one in requests]

    @service(batch=2, max_delay_ms=1.0)
    def forgets_one(self, requests: list[float]) -> list[float]:
        return requests[1:]

    @service()
    def fails(self, text: str) -> None:
        raise KeyError(text)

    @service()
    def unsendable(self) -> object:
        return {"a set": {1, 2}, "an object": np.array([object()])}

    @service()
    async def sleeps(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    def not_for_others(self) -> None:
        raise AssertionError


class Hosted:
    """A server and how to end it as if its process had died."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server, instance: Instance) -> None:
        self.loop = loop
        self.server = server
        self.instance = instance

    def die(self) -> None:
        """All connections break, with nothing said."""
        done = threading.Event()

        def abort() -> None:
            assert self.server._server is not None
            self.server._server.close()
            for peer in tuple(self.server._peers):
                peer.transport.abort()
            done.set()

        self.loop.call_soon_threadsafe(abort)
        assert done.wait(10)


@contextmanager
def hosted(
    made: object, registry: Registry, *, name: str = "sums-0", folder: Path | None = None, token: str = ""
) -> Iterator[Hosted]:
    """`made` as the instance `name` of the service before its dash; on TCP where there is no folder."""
    if folder is not None:
        listening, address = listen_unix(folder / f"{name}.sock")
    else:
        listening, address = listen_tcp("127.0.0.1", token)
    service_name = name.rpartition("-")[0]
    instance = Instance(service=service_name, name=name, address=address, host=here(), pid=os.getpid())
    server = Server(name, made, token)
    running = ServerThread(server, listening)
    registry.announce(instance)
    try:
        yield Hosted(running.loop, server, instance)
    finally:
        registry.withdraw(instance)
        running.close()
