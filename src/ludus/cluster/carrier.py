"""Carries what the controller says to workers on other nodes."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import msgspec

from ludus.cluster.line import Line
from ludus.cluster.remote_process import RemoteProcess
from ludus.data.records import ModelId
from ludus.local.shared_parts import WAIT_S
from ludus.runtime.messages import FrozenFound, ToActor
from ludus.store.model_pool import Variant


class Carrier:
    """From the wires of the processes to their sites, in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wires: dict[Connection, tuple[Line, RemoteProcess, bool]] = {}
        self._bell, self._ringer = Pipe(duplex=False)
        self._closed = False
        self._thread = threading.Thread(target=self._carry, name="carrier", daemon=True)
        self._thread.start()

    def add(self, line: Line, process: RemoteProcess, *, uses_models: bool) -> None:
        """`uses_models`: it is told which frozen models to use, and may not see the folder they are in."""
        with self._lock:
            self._wires[process.wire] = line, process, uses_models
        self._ringer.send_bytes(b"!")

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        for connection in (self._bell, self._ringer, *self._wires):
            connection.close()

    def _carry(self) -> None:
        while not self._closed:
            with self._lock:
                wires = dict(self._wires)
            for ready in wait([self._bell, *wires], WAIT_S):
                assert isinstance(ready, Connection)
                try:
                    content = ready.recv_bytes()
                except (OSError, EOFError):
                    with self._lock:
                        self._wires.pop(ready, None)
                    ready.close()
                    continue
                if ready is not self._bell:
                    self._carry_one(*wires[ready], content)

    def _carry_one(self, line: Line, process: RemoteProcess, uses_models: bool, content: bytes) -> None:
        if line.lost is not None:
            return
        try:
            if uses_models:
                answer: Any = msgspec.msgpack.decode(content, type=ToActor)
                if isinstance(answer, FrozenFound) and answer.model:
                    variant: Variant = "average" if answer.variant == "average" else "live"
                    line.send_model(ModelId.parse(answer.model), variant)
            line.tell(process, content)
        except Exception as error:  # nobody must wait for ever for an answer that did not go out
            line.give_up(f"node {line.node.name} cannot be told anything: {type(error).__name__}: {error}")
