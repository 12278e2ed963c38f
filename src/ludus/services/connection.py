"""The connection to an instance, shared by all threads of a process."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ludus.data.checks import did_you_mean
from ludus.services import wire
from ludus.services.endpoints import BadFrame, CallFailed, CallRefused, InstanceLost, TimeLimit, UnknownService
from ludus.services.registry import Instance, connect

CONNECT_S = 5.0

_numbers = itertools.count(1)


@dataclass(eq=False)
class PendingCall:
    """A call on its way, with everything that is needed to repeat it."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    deadline: float  # monotonic time until which it may be repeated
    answer: Future[Any] = field(default_factory=Future)
    instance: str = "no instance"  # the one that it was sent to last

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):  # its caller has given up already
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_exception(error)


class NotSent(Exception):  # noqa: N818
    """The call has not reached the instance, so it can be sent to another one."""


class InstanceConnection:
    """Sends calls from any thread; a thread of its own receives the answers. When the connection ends, that thread
    calls `on_loss` with the calls that were sent and not answered."""

    def __init__(
        self,
        instance: Instance,
        token: str,
        on_loss: Callable[[InstanceConnection, list[PendingCall]], None],
        send_within_s: float,
    ) -> None:
        self.instance = instance
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._pending: dict[int, PendingCall] = {}
        self._closed = False
        self._frames = wire.FrameReader()
        self._socket = connect(instance.address, CONNECT_S)
        try:
            self._early = self._greet(token)
            self._socket.settimeout(None)
            # Only for sending: a process that has stopped reading must not hold its callers for ever.
            within = struct.pack("ll", int(send_within_s), int(send_within_s % 1 * 1e6) + 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, within)
            self._reader = threading.Thread(target=self._read, name=f"connection to {instance.name}", daemon=True)
            self._reader.start()
        except TimeoutError:
            self._socket.close()
            raise ConnectionError(f"{instance.name} has not answered hello within {CONNECT_S:g} s") from None
        except BaseException:
            self._socket.close()
            raise

    @property
    def outstanding(self) -> int:
        """Calls without an answer, including those that nobody waits for any more."""
        return len(self._pending)

    @property
    def is_open(self) -> bool:
        return not self._closed

    def send(self, call: PendingCall) -> None:
        """Raises `NotSent` if the call can be sent to another instance."""
        facts = self.methods.get(call.method)
        if facts is None:
            offer = did_you_mean(call.method, self.methods)
            raise UnknownService(f"service {self.instance.service!r} has no method {call.method!r}{offer}")
        number = next(_numbers)
        call.instance = self.instance.name
        pieces = wire.pack(wire.Call(number, call.method, list(call.args), call.kwargs))
        with self._lock:
            if self._closed:
                raise NotSent(f"{self.instance.name} is gone")
            if facts.reply:
                self._pending[number] = call
            try:
                for piece in pieces:
                    self._socket.sendall(piece)
            except OSError as error:
                self._shut_down()  # part of a frame may be out: nothing can follow it
                if facts.reply and self._pending.pop(number, None) is None:
                    return  # the reader has noticed the loss, and seen to this call
                raise NotSent(f"{self.instance.name} cannot be reached: {error}") from error
        if not facts.reply:
            call.answer.set_result(None)

    def close(self) -> None:
        self._shut_down()
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def _shut_down(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _greet(self, token: str) -> list[Any]:
        """Say hello and wait for the welcome. Returns the messages that came with it."""
        for piece in wire.pack(wire.CallerHello(wire.PROTOCOL, token)):
            self._socket.sendall(piece)
        while True:
            count = self._socket.recv_into(self._frames.room())
            if not count:
                raise ConnectionError(f"{self.instance.name} closed the connection")
            first, *more = list(self._frames.take(count)) or [None]
            if isinstance(first, wire.ServiceWelcome):
                self.methods = first.methods
                return more
            if isinstance(first, wire.Unwelcome):
                raise CallRefused(f"{self.instance.address}: {first.reason}")
            if first is not None:
                raise BadFrame(f"{self.instance.address} answers hello with {type(first).__name__}")

    def _read(self) -> None:
        problem = "the connection ended"
        try:
            for message in self._early:
                self._take(message)
            while count := self._socket.recv_into(self._frames.room()):
                for message in self._frames.take(count):
                    self._take(message)
        except (OSError, BadFrame) as error:
            problem = str(error)
        with self._lock:
            self._closed = True
            lost = list(self._pending.values())
            self._pending.clear()
        self._socket.close()
        self.problem = problem
        self._on_loss(self, lost)

    def _take(self, message: Any) -> None:
        if isinstance(message, wire.Unwelcome):
            raise BadFrame(message.reason)
        if not isinstance(message, wire.CallResult | wire.CallFailure):
            raise BadFrame(f"did not expect {type(message).__name__}")
        call = self._pending.pop(message.id, None)
        if call is None or not call.answer.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        if isinstance(message, wire.CallResult):
            call.answer.set_result(message.value)
        else:
            where = f" ({message.place})" if message.place else ""
            text = f"{call.method} on {call.instance} failed: {message.kind}: {message.text}{where}"
            call.answer.set_exception(CallFailed(text, message.kind, message.text))


def lost(call: PendingCall, why: str) -> InstanceLost:
    return InstanceLost(
        f"{call.instance} was lost during {call.method} ({why}): it may have been done or not. A method that "
        "may be done twice is made again elsewhere: mark it with @service(idempotent=True)"
    )


def late(call: PendingCall, limit_s: float) -> TimeLimit:
    return TimeLimit(f"{call.method} on {call.instance} has not answered within {limit_s:g} s")
