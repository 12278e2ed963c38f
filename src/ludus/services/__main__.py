"""The program of a service process: `python -m ludus.services LAUNCH`, started by `ServiceHost` only."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ludus.data.addresses import load_address
from ludus.services.registry import Instance, Registry, here, listen_tcp, listen_unix
from ludus.services.remote_registry import ANNOUNCE_EVERY_S, open_registry
from ludus.services.server import Server
from ludus.services.starter import BEAT_EVERY_S, FAILED_TO_START, ServiceLaunch, ServiceNews
from ludus.system.guard import end_with_parent
from ludus.system.process import settle_in


def main(launch: ServiceLaunch) -> None:
    end_with_parent()
    settle_in(launch.parent)
    try:
        made = load_address(launch.address)(**launch.options)
        registry = open_registry(launch.registry)
        server = Server(launch.name, made, registry.token if launch.host else "")
    except Exception as error:
        traceback.print_exc()
        os.write(launch.control_fd, ServiceNews(failed=f"{type(error).__name__}: {error}").line())
        raise SystemExit(FAILED_TO_START) from None
    asyncio.run(_serve(launch, server, registry, made))


async def _serve(launch: ServiceLaunch, server: Server, registry: Registry, made: Any) -> None:
    if launch.host:
        listening, address = listen_tcp(launch.host, registry.token)
    else:
        listening, address = listen_unix(Path(launch.folder) / f"{launch.name}.sock")
    await server.start(listening)
    instance = Instance(service=launch.service, name=launch.name, address=address, host=here(), pid=os.getpid())
    control = socket.socket(fileno=launch.control_fd)
    control.setblocking(False)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(control, ended.set)  # the parent says nothing: it can only end
    registry.announce(instance)
    control.send(ServiceNews(ready_at=address).line())
    announcing = loop.create_task(_announce(registry, instance))
    while not ended.is_set():
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            control.send(ServiceNews().line())
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), BEAT_EVERY_S)
    announcing.cancel()
    loop.remove_reader(control)
    await server.close()
    with suppress(Exception):  # the registry may be gone before us; callers find nobody here either way
        await asyncio.to_thread(registry.withdraw, instance)
    if hasattr(made, "close"):
        made.close()
    control.close()


async def _announce(registry: Registry, instance: Instance) -> None:
    """Again and again: a registry on another machine forgets who is silent, or is started again itself."""
    while True:
        await asyncio.sleep(ANNOUNCE_EVERY_S)
        try:
            await asyncio.to_thread(registry.announce, instance)
        except Exception as error:
            print(f"cannot announce {instance.name}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=ServiceLaunch))
