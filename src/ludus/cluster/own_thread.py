"""One thread that does everything, so that nothing in it needs a lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ludus.runtime.channel import Signal

T = TypeVar("T")


class OwnThread:
    """Goes its rounds (`wait`, then `step`), and in between does what other threads ask for; they wait for
    it. If a round fails, that is the end, and whoever asks is told why."""

    def __init__(self, name: str, wait: Callable[[], None], step: Callable[[], None]) -> None:
        """`wait`: returns at the latest when there is a signal in `wake`."""
        self.wake = Signal.create()
        self.closed = False
        self._wait = wait
        self._step = step
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._calling = threading.Lock()
        self._why = f"the {name} is closed"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, call: Callable[[], T]) -> T:
        """What the call gives, or raises, in that thread."""
        done: Future[T] = Future()
        with self._calling:
            if self.closed:
                raise RuntimeError(self._why)
            self._calls.append((call, done))
        self.wake.notify()
        return done.result()

    def close(self) -> None:
        """In that thread: this round is the last."""
        self.closed = True

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self.closed:
                self._wait()
                self._obey()
                if not self.closed:
                    self._step()
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"
            raise
        finally:  # whoever still waits for an answer must not do so for ever
            with self._calling:
                self.closed = True
            while self._calls:
                self._calls.popleft()[1].set_exception(RuntimeError(self._why))

    def _obey(self) -> None:
        while self._calls and not self.closed:
            call, done = self._calls.popleft()
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)
