"""What a run was told to do by commands: to rest, to go on, to stop."""

from __future__ import annotations

import time

from ludus.data.edits import Continue, Order, Pause, Stop


class Orders:
    """Of one process that trains a run, from its start on."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.paused = False
        self.stop = False
        """In good order, as at a first Ctrl-C."""
        self._at_once = False

    def obey(self, order: Order) -> str:
        """Says what happens now."""
        match order:
            case Pause():
                was, self.paused = self.paused, True
                return "it was paused already" if was else "paused: nobody plays or learns"
            case Continue():
                was, self.paused = self.paused, False
                return "it goes on" if was else "it was not paused"
            case Stop(now=now):
                self.stop = True
                self._at_once = self._at_once or now
                return "it stops at once, without saving" if now else "it saves and stops"

    def end_at_once(self) -> None:
        """As at a second Ctrl-C, if that was ordered. Call it once the command has its answer."""
        if self._at_once:
            raise KeyboardInterrupt

    def is_overdue(self, time_limit_h: float) -> bool:
        """Whether the process has trained for as long as it may."""
        return time.monotonic() - self._started >= 3600 * time_limit_h
