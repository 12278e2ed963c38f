"""A place for one process of a service: what is known of whoever has it now."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from ludus.services.launch import FAILED_TO_START
from ludus.services.starter import Running, Starter
from ludus.services.user_services import UserService

START_UP_S = 120.0
"""How long a service may take from its start until it can be called."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceStatus:
    """How one process of a service is."""

    name: str
    state: str
    """working, starting, waiting (for a node that has what it needs), ended"""
    pid: int | None
    node: str
    """Empty until it is known."""
    started: float
    """Unix time."""
    restarts: int
    address: str
    """Where it can be called; empty: it cannot yet."""


@dataclass(eq=False)
class Place:
    service: str
    name: str
    described: UserService
    starter: Starter
    running: Running | None = None
    started: float = 0.0
    started_time: float = 0.0
    """The same as Unix time."""
    starts: int = 0
    beat: float = 0.0
    """When it last showed life."""
    address: str = ""
    """Where it can be called; empty: it cannot yet."""
    last_words: str = ""
    """Why it could not start."""
    failures: int = 0
    start_at: float = 0.0
    given_up: bool = False

    def start(self) -> None:
        self.address = self.last_words = ""
        self.starts += 1
        self.started = self.beat = time.monotonic()
        self.started_time = time.time()
        self.running = self.starter.start(self.service, self.name, self.described)

    def hear(self) -> None:
        """Signs of life that have come in."""
        assert self.running is not None
        for said in self.running.hear():
            self.beat = time.monotonic()
            self.address = said.ready_at or self.address
            self.last_words += said.failed

    def problem(self) -> str | None:
        """What is wrong with its process, if anything is."""
        assert self.running is not None
        if self.running.lost is not None:
            return self.running.lost
        code = self.running.exit_code
        if code == FAILED_TO_START:
            return f"does not start: {self.last_words}"
        if code is not None:
            return f"ended with exit code {code}" if code >= 0 else f"was ended by {_signal_name(-code)}"
        limit = self.described.hung_after_s if self.address else START_UP_S
        if time.monotonic() - self.beat <= limit:
            return None
        if self.running.waits_for:
            return f"has waited {limit:g} s for {self.running.waits_for}"
        return f"has shown no sign of life for {limit:g} s"

    @property
    def status(self) -> InstanceStatus:
        """May be asked for in any thread: whoever has the place is looked at once."""
        running, address = self.running, self.address
        if running is None:
            state = "ended" if self.given_up else "starting"
        elif running.waits_for:
            state = "waiting"
        else:
            state = "working" if address else "starting"
        return InstanceStatus(
            name=self.name,
            state=state,
            pid=None if running is None else running.pid,
            node="" if running is None else running.node,
            started=self.started_time,
            restarts=max(0, self.starts - 1),
            address=address,
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
