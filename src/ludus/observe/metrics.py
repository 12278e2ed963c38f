"""Metrics of a run: written to `metrics/train.jsonl`, which a process of its own hands on to the outputs of the
experiment: whatever a library, a network or a full disk does there, training goes on, and rows are sent later."""

from __future__ import annotations

import csv
import io
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Protocol

import msgspec

from ludus.config import ConfigError, decode, encode
from ludus.data.schedules import Speed
from ludus.store.files import UNREADABLE, atomic_write, read_file
from ludus.store.run_folder import MetricsFile, RunFolder, read_metrics
from ludus.system.machine import install_command
from ludus.system.process import PIPE, ChildProcess
from ludus.system.text import without_secrets

Row = Mapping[str, float | None]
"""Names and values of one moment; what is no number is None."""
TRAIN = "train.jsonl"
CLOSE_WITHIN_S = 30.0
"""Seconds that a run waits at its end for outputs that still send."""
RETRY_S = 30.0
"""After so long, an output that failed is tried again."""
LOOK_EVERY_S = 0.5


class Sink(Protocol):
    """An output that is open."""

    def write(self, rows: Sequence[Row]) -> None:
        """When this returns, they need not be handed over again."""

    def close(self) -> None: ...


class MetricsOutput(Protocol):
    """One place that metrics go to: a dataclass that an experiment names in `metrics`."""

    from_start: ClassVar[bool]
    """Wants all rows of the run whenever it is opened, not only those that it has not had."""

    def open(self, folder: RunFolder, tell: Callable[[str], None]) -> Sink:
        """Called in the process of the outputs, and again after an error. `tell` has the training show a line."""

    def require(self) -> None:
        """`ConfigError` if this machine lacks something that it needs, before anything is trained."""

    def where(self, folder: RunFolder) -> str:
        """The place where people find the metrics, in a few words."""


def require_library(output: str, library: str, extra: str) -> None:
    """For `MetricsOutput.require`."""
    from importlib.util import find_spec

    if find_spec(library) is None:
        raise ConfigError(f"metrics: {output} needs {library}: {install_command(extra)}")


def _tell(line: str) -> None:
    with suppress(OSError, ValueError):  # the terminal is closed
        print(line, file=sys.stderr, flush=True)


class RunMetrics:
    """Takes the rows of a run, adds the time and the speed, and has the outputs follow."""

    def __init__(
        self, folder: RunFolder, outputs: Sequence[MetricsOutput] = (), tell: Callable[[str], None] = _tell
    ) -> None:
        """`tell` gets a line for every output that stops or goes on working."""
        self.file = MetricsFile(folder.metrics / TRAIN)
        self.tell = tell
        self.lost = 0
        """Rows that could not be written."""
        self._speed = Speed()
        self._sender = Sender(folder, outputs, tell) if outputs else None

    def append(self, row: Mapping[str, Any]) -> None:
        speed = self._speed.note(row["decisions"])
        of_late = {} if speed is None else {"decisions_per_s": speed}
        try:
            self.file.append({"time": round(time.time(), 3), **row, **of_late})
        except OSError as error:  # curves are not worth a training
            self.lost += 1
            if self.lost == 1:
                self.tell(f"metrics: {error}; training goes on, and rows that cannot be written are left out")
        if self._sender is not None:
            self._sender.look()

    def close(self) -> None:
        """Waits for the outputs to have it all, but not for ever."""
        self.file.close()
        if self._sender is not None:
            self._sender.close()


class Sender:
    """The process of the outputs, from the side of the training, which goes on without it: nothing raises."""

    def __init__(self, folder: RunFolder, outputs: Sequence[MetricsOutput], tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._outputs = json.dumps(encode(tuple(outputs)))
        self._tell = tell
        self._heard = b""
        self._again_at = 0.0
        self._failed = False
        self._process: ChildProcess | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def look(self) -> None:
        """Pass on what it says; start it again if it has died."""
        if self._process is not None:
            self._hear(self._process)
            code = self._process.exit_code
            if code is None:
                return
            self._fail(f"has ended with code {code}")
            self._let_go(self._process)
            self._process = None
        elif time.monotonic() >= self._again_at:
            self._start()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            process.stdin.close()  # it hands on the rest and ends
        try:
            process.wait_end(CLOSE_WITHIN_S + 2)  # it knows the limit itself, and says what failed
            self._hear(process)
        finally:
            self._let_go(process)

    def _start(self) -> None:
        main = f"from {__name__} import main; main()"
        program = [sys.executable, "-c", main, str(self._folder.path), self._outputs]
        try:
            with (self._folder.logs / "metrics.log").open("ab") as log:
                process = ChildProcess(program, stdin=PIPE, stdout=PIPE, stderr=log)
        except OSError as error:
            self._fail(f"cannot be started: {error}")
            return
        os.set_blocking(process.stdout.fileno(), False)
        self._process = process

    def _fail(self, how: str) -> None:
        """Told once: what ends again and again would fill the screen."""
        self._again_at = time.monotonic() + RETRY_S
        if not self._failed:
            self._tell(f"metrics: the process of the outputs {how}; tried again every {RETRY_S:g} s")
        self._failed = True

    def _let_go(self, process: ChildProcess) -> None:
        """It and all that it has started are gone after this."""
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()

    def _hear(self, process: ChildProcess) -> None:
        with suppress(BlockingIOError):
            while content := os.read(process.stdout.fileno(), 65_536):
                *lines, self._heard = (self._heard + content).split(b"\n")
                for line in lines:
                    self._tell(f"metrics: {line.decode(errors='replace')}")


class Positions:
    """By output, the place in the file up to which it has all rows, kept on disk: an output that was named later, or
    could not be reached for a while, still gets all rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._positions: dict[str, int] = {}
        with suppress(FileNotFoundError, *UNREADABLE):
            self._positions = msgspec.json.decode(read_file(path), type=dict[str, int])

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
    """The process of the outputs: its arguments are the run and the outputs. It ends when its standard input does, once
    it has handed on the rest."""
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


FILE = "train.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class CSV:
    """Keeps `metrics/train.csv` like `metrics/train.jsonl`. A new name is a new column: all is written anew."""

    from_start: ClassVar[bool] = True

    def open(self, folder: RunFolder, tell: Callable[[str], None]) -> CSVSink:
        return CSVSink(folder.metrics / FILE, folder.metrics / TRAIN)

    def require(self) -> None:
        """Nothing to install."""

    def where(self, folder: RunFolder) -> str:
        return f"CSV: {folder.metrics / FILE}"


class CSVSink:
    def __init__(self, path: Path, source: Path) -> None:
        self._path = path
        self._source = source
        self._names: dict[str, None] = {}
        self._written = 0

    def write(self, rows: Sequence[Row]) -> None:
        known = len(self._names)
        self._names |= dict.fromkeys(name for row in rows for name in row)
        if len(self._names) == known:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._lines(rows))
        else:
            before = read_metrics(self._source)[0][: self._written]
            atomic_write(self._path, self._lines([*before, *rows], header=True).encode(), sync=False)
        self._written += len(rows)

    def close(self) -> None:
        """Every write has ended with a whole file."""

    def _lines(self, rows: Iterable[Row], *, header: bool = False) -> str:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self._names), lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
