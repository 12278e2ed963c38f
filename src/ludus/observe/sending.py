"""The process that hands the rows of `metrics/train.jsonl` on to the outputs of a run.

Run by `metrics.Sender`: `python -m ludus.observe.sending RUN OUTPUTS`. It ends when its standard input does,
once it has handed on the rest. How far each output is, is kept in `metrics/outputs.json`, so that one that
was named later, or could not be reached for a while, still gets all rows.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import msgspec

from ludus.config import decode
from ludus.observe.metrics import CLOSE_WITHIN_S, RETRY_S, TRAIN, MetricsOutput, Sink
from ludus.observe.run_state import without_secrets
from ludus.store.files import UNREADABLE, atomic_write
from ludus.store.run_folder import RunFolder, read_metrics

LOOK_EVERY_S = 0.5


class Positions:
    """By output, the place in the file up to which it has all rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._positions: dict[str, int] = {}
        with suppress(FileNotFoundError, *UNREADABLE):
            self._positions = msgspec.json.decode(path.read_bytes(), type=dict[str, int])

    def __getitem__(self, output: str) -> int:
        return self._positions.get(output, 0)

    def __setitem__(self, output: str, position: int) -> None:
        self._positions[output] = position
        atomic_write(self._path, msgspec.json.encode(self._positions) + b"\n", sync=False)


class OutputSender:
    """Hands rows to one output. When that fails, it says so once, and tries again from the same row."""

    def __init__(
        self, folder: RunFolder, output: MetricsOutput, positions: Positions, tell: Callable[[str], None]
    ) -> None:
        self.name = type(output).__name__
        self._folder = folder
        self._output = output
        self._positions = positions
        self._tell = tell
        self._sink: Sink | None = None
        self._position = 0
        self._again_at = 0.0
        self._failed = False

    def step(self, *, is_last: bool = False) -> None:
        if not is_last and time.monotonic() < self._again_at:
            return
        try:
            self._hand_over()
        except Exception as error:  # whatever a library may raise
            self._fail(error)

    def close(self) -> None:
        if self._sink is not None:
            try:
                self._sink.close()
            except Exception as error:
                self._fail(error)

    def _hand_over(self) -> None:
        path = self._folder.metrics / TRAIN
        size = path.stat().st_size
        if self._sink is None:
            self._position = 0 if self._output.from_start else min(self._positions[self.name], size)
            self._sink = self._output.open(self._folder, self._tell_safely)
        if size <= self._position:
            return
        rows, position = read_metrics(path, self._position)
        if rows:
            self._sink.write(rows)
        self._position = self._positions[self.name] = position
        if self._failed:
            self._failed = False
            self._tell(f"{self.name} works again, nothing is missing there")

    def _tell_safely(self, line: str) -> None:
        self._tell(without_secrets(line))

    def _fail(self, error: Exception) -> None:
        sink, self._sink = self._sink, None
        self._again_at = time.monotonic() + RETRY_S
        if sink is not None:
            with suppress(Exception):  # it has failed already, which is told below
                sink.close()
        if not self._failed:
            self._failed = True
            said = without_secrets(" ".join(str(error).split()) or type(error).__name__)
            self._tell(f"{self.name} does not work: {said}; training goes on, tried again every {RETRY_S:g} s")


def send(
    folder: RunFolder, outputs: Sequence[MetricsOutput], is_over: Callable[[float], bool], tell: Callable[[str], None]
) -> None:
    """`is_over` waits so many seconds for the end of the training."""
    positions = Positions(folder.metrics / "outputs.json")
    deliveries = [OutputSender(folder, output, positions, tell) for output in outputs]
    while not is_over(LOOK_EVERY_S):
        for delivery in deliveries:
            delivery.step()
    signal.alarm(int(CLOSE_WITHIN_S))
    for delivery in deliveries:
        delivery.step(is_last=True)
        delivery.close()


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    print(f"not done {CLOSE_WITHIN_S:g} s after the end of the training", file=sys.stderr, flush=True)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    folder = RunFolder.open(sys.argv[1])
    outputs = decode(json.loads(sys.argv[2]))
    os.nice(5)  # training comes first
    signal.signal(signal.SIGALRM, _end_at_once)
    teller = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes into the log

    def tell(line: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        print(f"{stamp}Z {folder.path.name} metrics: {line}", file=sys.stderr, flush=True)
        with suppress(OSError):
            teller.write(f"{line}\n")

    def is_over(patience_s: float) -> bool:
        readable, _, _ = select.select([0], [], [], patience_s)
        return bool(readable) and not os.read(0, 4096)

    send(folder, outputs, is_over, tell)


if __name__ == "__main__":
    main()
