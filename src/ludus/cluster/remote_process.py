"""A worker process on another node, as the controller sees it: with a connection like any other's, whose
other end is carried to the worker's site and back."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from ludus.local.shared_parts import WAIT_S
from ludus.runtime.process import WorkerProcess


class RemoteProcess(WorkerProcess):
    """`control` is the controller's end; `wire` is the other one, for who carries messages."""

    def __init__(self, name: str, node: str, epoch: int, end: Callable[[RemoteProcess], None]) -> None:
        """`end`: ends the process where it is."""
        self.name = name
        self.node = node
        self.epoch = epoch
        self.lost: str | None = None
        self._end = end
        self._pid = 0
        self._exit_code: int | None = None
        self._has_ended = threading.Event()
        ours, self._far = socket.socketpair()
        self.control = Connection(ours.detach())
        self.wire = Connection(os.dup(self._far.fileno()))

    def started(self, pid: int) -> None:
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_code(self) -> int | None:
        return self._exit_code

    def kill(self) -> None:
        self._end(self)
        self.control.close()
        self.hang_up()

    def wait_end(self, most_s: float) -> int | None:
        self._has_ended.wait(most_s)
        return self._exit_code

    # --- for who carries messages ---

    def said(self, content: bytes) -> None:
        """The worker has said this."""
        with suppress(OSError):  # it was given up meanwhile
            self.wire.send_bytes(content)

    def has_ended(self, exit_code: int, lost: str | None = None) -> None:
        """`lost`: not by itself, but with its node."""
        if self._exit_code is None:
            self.lost = lost
            self._exit_code = exit_code
            self._has_ended.set()
        self.hang_up()

    def hang_up(self) -> None:
        """The controller hears what was said before, then that nobody is there any more."""
        with suppress(OSError):
            self._far.shutdown(socket.SHUT_RDWR)
        self._far.close()


class RemoteTeam(WorkerProcess):
    """Several processes in one place, one on each node: the policy workers. Their questions come in on one
    connection, and each gets its own answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = None
        self.lost = None
        self._members: list[RemoteProcess] = []
        self._asked: deque[RemoteProcess] = deque()
        ours, far = socket.socketpair()
        self.control, self._far = Connection(ours.detach()), Connection(far.detach())
        self._closed = False
        self._thread = threading.Thread(target=self._carry, name="policy workers", daemon=True)
        self._thread.start()

    def join(self, member: RemoteProcess) -> None:
        self._members.append(member)

    @property
    def pid(self) -> int:
        return self._members[0].pid if self._members else 0

    @property
    def exit_code(self) -> int | None:
        """Of the first that has ended by itself; a node that is lost takes its own with it."""
        codes = [one.exit_code for one in self._members if one.exit_code is not None and one.lost is None]
        return codes[0] if codes else None

    def wait_end(self, most_s: float) -> int | None:
        for member in self._members:
            if member.lost is None and self.exit_code is None:
                member.wait_end(most_s / len(self._members))
        return self.exit_code

    def kill(self) -> None:
        self._closed = True
        for member in self._members:
            member.kill()
        self._thread.join()
        self.control.close()
        self._far.close()

    def _carry(self) -> None:
        while not self._closed:
            members = {one.control: one for one in self._members if one.exit_code is None}
            try:
                for ready in wait([self._far, *members], WAIT_S):
                    assert isinstance(ready, Connection)
                    content = ready.recv_bytes()
                    if ready is not self._far:
                        self._asked.append(members[ready])
                        self._far.send_bytes(content)
                    elif self._asked:
                        self._asked.popleft().control.send_bytes(content)
            except (OSError, EOFError):
                continue  # one has ended, which its exit code says, or all are being killed
