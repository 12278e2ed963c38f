"""Metrics of a run: written to `metrics/train.jsonl`, and from there to the outputs of the experiment.

The outputs live in a process of their own (`sending.py`), which reads the file: whatever a library, a network
or a full disk does there, training goes on, and what could not be handed on now is handed on later.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ludus.config import ConfigError, encode
from ludus.data.schedules import Speed
from ludus.store.files import atomic_write
from ludus.store.run_folder import MetricsFile, RunFolder, read_metrics
from ludus.system.machine import install_command
from ludus.system.process import PIPE, ChildProcess

Row = Mapping[str, float | None]
"""Names and values of one moment; what is no number is None."""
TRAIN = "train.jsonl"
CLOSE_WITHIN_S = 30.0
"""Seconds that a run waits at its end for outputs that still send."""
RETRY_S = 30.0
"""After so long, an output that failed is tried again."""


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
        """Called in the process of the outputs, and again some time after an error. `tell` has the training
        show a line."""

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
        self._file = MetricsFile(folder.metrics / TRAIN)
        self._speed = Speed()
        self._sender = Sender(folder, outputs, tell) if outputs else None

    def append(self, row: Mapping[str, Any]) -> None:
        speed = self._speed.note(row["decisions"])
        of_late = {} if speed is None else {"decisions_per_s": speed}
        self._file.append({"time": round(time.time(), 3), **row, **of_late})
        if self._sender is not None:
            self._sender.look()

    def close(self) -> None:
        """Waits for the outputs to have it all, but not for ever."""
        self._file.close()
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
        program = [sys.executable, "-m", "ludus.observe.sending", str(self._folder.path), self._outputs]
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


FILE = "train.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class CSV:
    """Keeps `metrics/train.csv` like `metrics/train.jsonl`. A new name is a new column: then all is written
    anew."""

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
            header = ",".join(_quoted(name) for name in self._names) + "\n"
            atomic_write(self._path, (header + self._lines([*before, *rows])).encode(), sync=False)
        self._written += len(rows)

    def close(self) -> None:
        """Every write has ended with a whole file."""

    def _lines(self, rows: Iterable[Row]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, list(self._names), lineterminator="\n").writerows(rows)
        return text.getvalue()


def _quoted(name: str) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="").writerow([name])
    return text.getvalue()
