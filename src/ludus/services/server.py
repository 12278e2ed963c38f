"""The serving side of services: takes calls from any number of connections and runs the methods of one object. There is
one thread with one event loop. A plain method runs at once and alone, so a service needs no locks. Calls that arrive
meanwhile wait in their sockets, and those of a batched method then run together."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ludus.data.checks import did_you_mean
from ludus.services import wire
from ludus.services.endpoints import BadFrame, Endpoint, endpoints_of
from ludus.system.network import Strangers

HELLO_WITHIN_S = 10.0  # a connection that stays silent for this long is closed


class Server:
    """Serves the marked methods of `instance`. Callers without the `token` are rejected; empty: nobody is."""

    def __init__(self, name: str, instance: object, token: str = "") -> None:
        self.name = name
        self.token = token
        self.endpoints = endpoints_of(instance)
        self.facts = {
            method: wire.MethodFacts(reply=one.terms.reply, idempotent=one.terms.idempotent)
            for method, one in self.endpoints.items()
        }
        self._gatherers: Mapping[str, _Gatherer] = {
            method: _Gatherer(self, one) for method, one in self.endpoints.items() if one.terms.batch > 1
        }
        self._server: asyncio.Server | None = None
        self._peers: set[_Peer] = set()
        self._strangers = Strangers()
        self._tasks: set[asyncio.Future[Any]] = set()

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if listening.family == socket.AF_UNIX else loop.create_server
        self._server = await create(lambda: _Peer(self), sock=listening)

    async def close(self) -> None:
        """Take no more calls. Gathered calls are done, waiting ones are cancelled."""
        if self._server is not None:
            self._server.close()
        for gatherer in self._gatherers.values():
            gatherer.run()
        for peer in tuple(self._peers):
            peer.transport.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def take(self, peer: _Peer, call: wire.Call) -> None:
        endpoint = self.endpoints.get(call.method)
        if endpoint is None:
            text = f"{self.name} has no method {call.method!r}{did_you_mean(call.method, self.endpoints)}"
            peer.send(wire.CallFailure(call.id, "UnknownMethod", text, ""))
        elif (gatherer := self._gatherers.get(call.method)) is not None:
            gatherer.add(peer, call)
        else:
            self.run(
                lambda: endpoint.call(*call.args, **call.kwargs),
                done=lambda value: peer.answer(call.id, value) if endpoint.terms.reply else None,
                failed=lambda error: self.fail(endpoint, peer, call.id, error),
            )

    def run(self, work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        """Run it now, or as a task if it has to wait for something."""
        try:
            value = work()
        except Exception as error:
            failed(error)
            return
        if not inspect.isawaitable(value):
            done(value)
            return

        def end(task: asyncio.Future[Any]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                done(task.result())
            elif isinstance(error, Exception):
                failed(error)

        task = asyncio.ensure_future(value)
        self._tasks.add(task)  # the loop alone would let it be collected
        task.add_done_callback(end)

    def fail(self, endpoint: Endpoint, peer: _Peer, number: int, error: Exception) -> None:
        """Report the error to the caller, or to the log if the method has no reply."""
        if endpoint.terms.reply:
            peer.send(failure(number, error))
        else:
            traceback.print_exception(error)


class _Peer(asyncio.BufferedProtocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._frames = wire.FrameReader(wire.HELLO_BYTES)
        self._welcome = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server._peers.add(self)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(HELLO_WITHIN_S, transport.abort)
        self._server._strangers.add(self, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        self._server._strangers.remove(self)
        self._server._peers.discard(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for message in self._frames.take(nbytes):
                if self._welcome and isinstance(message, wire.Call):
                    self._server.take(self, message)
                elif not self._welcome and isinstance(message, wire.CallerHello):
                    self._greet(message)
                else:
                    raise BadFrame(f"did not expect {type(message).__name__}")
        except BadFrame as error:
            self._turn_away(str(error))

    def _greet(self, hello: wire.CallerHello) -> None:
        if hello.protocol != wire.PROTOCOL:
            self._turn_away(f"{self._server.name} speaks protocol {wire.PROTOCOL}, the caller {hello.protocol}")
        elif not secrets.compare_digest(hello.token.encode(), self._server.token.encode()):
            what = "a wrong token" if hello.token else "no token"
            self._turn_away(f"{self._server.name} wants a token, and the caller has {what}")
        else:
            self._welcome = True
            self._patience.cancel()
            self._server._strangers.remove(self)
            self._frames.most_bytes = wire.MOST_BYTES
            self.send(wire.ServiceWelcome(self._server.name, self._server.facts))

    def _turn_away(self, reason: str) -> None:
        self.send(wire.Unwelcome(reason))
        self.transport.close()

    # Calls of a caller that does not read its answers are not read until it does.
    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def answer(self, number: int, value: Any) -> None:
        try:
            pieces = wire.pack(wire.CallResult(number, value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            pieces = wire.pack(failure(number, error))
        self._write(pieces)

    def send(self, message: wire.Message) -> None:
        self._write(wire.pack(message))

    def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:  # not writelines, which would copy them into one first
            self.transport.write(piece)


class _Gatherer:
    """Gathers calls of a batched method."""

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        self._server = server
        self._endpoint = endpoint
        self._waiting: list[tuple[_Peer, int, Any]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, peer: _Peer, call: wire.Call) -> None:
        requests = [*call.args, *call.kwargs.values()]
        if len(requests) != 1:
            error = TypeError(f"{call.method} is batched and takes one argument a call, got {len(requests)}")
            self._server.fail(self._endpoint, peer, call.id, error)
            return
        self._waiting.append((peer, call.id, requests[0]))
        if len(self._waiting) >= self._endpoint.terms.batch:
            self.run()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._endpoint.terms.max_delay_ms / 1000, self.run)

    def run(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        requests = [request for _, _, request in waiting]
        self._server.run(
            lambda: self._endpoint.call(requests),
            done=lambda values: self._deal(waiting, values),
            failed=lambda error: self._fail(waiting, error),
        )

    def _deal(self, waiting: Sequence[tuple[_Peer, int, Any]], values: Any) -> None:
        """Give each call its own answer."""
        if not self._endpoint.terms.reply:
            return
        if not isinstance(values, Sequence) or len(values) != len(waiting):
            got = f"{len(values)} answers" if isinstance(values, Sequence) else f"a {type(values).__name__}"
            error = TypeError(f"{self._endpoint.name} got {len(waiting)} requests and returned {got}")
            self._fail(waiting, error)
            return
        for (peer, number, _), value in zip(waiting, values, strict=True):
            if isinstance(value, Exception):
                peer.send(failure(number, value))
            else:
                peer.answer(number, value)

    def _fail(self, waiting: Sequence[tuple[_Peer, int, Any]], error: Exception) -> None:
        for peer, number, _ in waiting if self._endpoint.terms.reply else waiting[:1]:
            self._server.fail(self._endpoint, peer, number, error)


def failure(number: int, error: Exception) -> wire.CallFailure:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    return wire.CallFailure(number, type(error).__name__, str(error), where)


class ServerThread:
    """A server in a thread of this process."""

    def __init__(self, server: Server, listening: socket.socket) -> None:
        self.server = server
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"serve {server.name}", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(server.start(listening), self.loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.close(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
