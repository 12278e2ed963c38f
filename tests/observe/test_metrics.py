"""Rows of metrics reach the outputs that an experiment names, and no output can stop or spoil a training."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import is_gone, wait_until

from ludus.config import ConfigError, apply_overrides, decode, encode
from ludus.observe import metrics
from ludus.observe.metrics import CSV, MetricsOutput, OutputSender, Positions, RunMetrics, Sender, require_library
from ludus.observe.sinks import Prometheus, TensorBoard
from ludus.store.run_folder import MetricsFile, RunFolder, read_metrics
from ludus.system.machine import install_command


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"name": "made up"}, seed=0, command=())


def table(folder: RunFolder) -> list[dict[str, str]]:
    with (folder.metrics / "train.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@contextmanager
def recording(folder: RunFolder, *outputs: MetricsOutput) -> Iterator[tuple[RunMetrics, list[str]]]:
    told: list[str] = []
    with closing(RunMetrics(folder, outputs, told.append)) as recorder:
        yield recorder, told


def test_rows_get_time_and_speed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.0, 102.0])
    monkeypatch.setattr("ludus.data.schedules.time.monotonic", lambda: next(clock))
    with closing(RunMetrics(folder)) as recorder:
        for decisions in (1_000, 1_500, 5_000):
            recorder.append({"decisions": decisions})
    rows, _ = read_metrics(folder.metrics / "train.jsonl")
    assert abs(rows[0]["time"] - time.time()) < 60
    assert [row.get("decisions_per_s") for row in rows] == [None, None, 2_000.0]


def test_rows_that_cannot_be_written_are_counted_and_told_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MetricsFile, record: object) -> None:
        raise OSError(28, "cannot write: No space left on device", str(self.path))

    with recording(folder) as (recorder, told):
        recorder.append({"decisions": 10})
        with monkeypatch.context() as full:
            full.setattr(MetricsFile, "append", refuse)
            for decisions in (20, 30):
                recorder.append({"decisions": decisions})
        recorder.append({"decisions": 40})
        assert recorder.lost == 2
    assert [row["decisions"] for row in read_metrics(folder.metrics / "train.jsonl")[0]] == [10, 40]
    assert len(told) == 1
    assert "No space left on device" in told[0]


def test_what_was_written_is_in_the_outputs_when_the_run_ends(folder: RunFolder) -> None:
    with recording(folder, CSV()) as (recorder, told):
        recorder.append({"decisions": 10, "main/entropy": 0.5})
        recorder.append({"decisions": 20, "main/entropy": float("nan"), "other/entropy": 1.25})
    assert [row["decisions"] for row in table(folder)] == ["10", "20"]
    assert [row["main/entropy"] for row in table(folder)] == ["0.5", ""]
    assert [row["other/entropy"] for row in table(folder)] == ["", "1.25"]
    assert not told


def test_an_output_that_is_named_later_gets_all_rows(folder: RunFolder) -> None:
    with recording(folder) as (recorder, _):
        recorder.append({"decisions": 1})
    with recording(folder, CSV()) as (recorder, _):
        recorder.append({"decisions": 2, "more": 3.0})
    assert [(row["decisions"], row["more"]) for row in table(folder)] == [("1", ""), ("2", "3.0")]


def test_what_cannot_work_is_named_once_and_the_others_go_on(folder: RunFolder) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with recording(folder, Prometheus(port=port), CSV()) as (recorder, told):
            recorder.append({"decisions": 1})
            wait_until(lambda: (folder.metrics / "train.csv").exists())
            recorder.append({"decisions": 2})
    [line] = told
    assert line.startswith(f"metrics: Prometheus does not work: [Errno 98] port {port} of 127.0.0.1")
    assert "training goes on" in line
    assert len(table(folder)) == 2
    assert line.removeprefix("metrics: ") in (folder.logs / "metrics.log").read_text()


class Moody:
    """An output that does as it is told."""

    from_start = False

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.broken = False

    def open(self, folder: RunFolder, tell: Callable[[str], None]) -> Moody:
        return self

    def require(self) -> None: ...
    def where(self, folder: RunFolder) -> str:
        return "nowhere"

    def write(self, rows: Sequence[Any]) -> None:
        if self.broken:
            raise RuntimeError(f"refused for {os.environ['MOODY_API_KEY']}\nsee above")
        self.rows += rows

    def close(self) -> None: ...


def test_an_output_that_works_again_has_missed_nothing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "RETRY_S", 0.0)
    monkeypatch.setenv("MOODY_API_KEY", "abcdefgh12345")
    output, told = Moody(), list[str]()
    delivery = OutputSender(folder, output, Positions(folder.metrics / "outputs.json"), told.append)
    with MetricsFile(folder.metrics / "train.jsonl") as file:
        for decisions, output.broken in ((1, False), (2, True), (3, True), (4, False)):
            file.append({"decisions": decisions})
            delivery.step()
    assert [row["decisions"] for row in output.rows] == [1, 2, 3, 4]
    first, second = told
    assert "Moody does not work: refused for *** see above;" in first
    assert second == "Moody works again, nothing is missing there"


def test_a_later_process_goes_on_where_the_one_before_was(folder: RunFolder) -> None:
    rows = []
    with MetricsFile(folder.metrics / "train.jsonl") as file:
        for decisions in (1, 2):
            file.append({"decisions": decisions})
            output = Moody()
            OutputSender(folder, output, Positions(folder.metrics / "outputs.json"), print).step()
            rows.append([row["decisions"] for row in output.rows])
    assert rows == [[1], [2]]


def test_a_process_of_the_outputs_that_dies_is_started_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "RETRY_S", 0.0)
    told: list[str] = []
    with closing(Sender(folder, (CSV(),), told.append)) as sender, closing(RunMetrics(folder)) as recorder:
        recorder.append({"decisions": 1})
        first = sender.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: [sender.look(), sender.pid not in (None, first)][1])
        wait_until(lambda: (folder.metrics / "train.csv").exists())
    assert told == ["metrics: the process of the outputs has ended with code -9; tried again every 0 s"]


def test_a_process_that_cannot_be_started_is_named_and_training_goes_on(folder: RunFolder) -> None:
    folder.logs.rmdir()
    with recording(folder, CSV()) as (recorder, told):
        recorder.append({"decisions": 1})
        recorder.append({"decisions": 2})
    [line] = told
    assert "the process of the outputs cannot be started" in line
    assert "metrics.log" in line
    assert len(read_metrics(folder.metrics / "train.jsonl")[0]) == 2


def test_the_process_of_the_outputs_ends_with_the_training(folder: RunFolder) -> None:
    """Even if that is killed: nothing else holds its standard input open."""
    program = (
        "import os, signal\n"
        "from ludus.observe.metrics import CSV\n"
        "from ludus.observe.metrics import RunMetrics\n"
        "from ludus.store.run_folder import RunFolder\n"
        f"recorder = RunMetrics(RunFolder.open({str(folder.path)!r}), (CSV(),))\n"
        "recorder.append({'decisions': 1})\n"
        "print(recorder._sender.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    sender = int(said.stdout)
    wait_until(lambda: is_gone(sender))
    assert len(table(folder)) == 1, "what the training had written was handed on"


def test_outputs_survive_being_written_down() -> None:
    outputs = (TensorBoard(), Prometheus(port=1234), CSV())
    assert decode(encode(outputs)) == outputs


def test_a_missing_library_is_named_before_anything_is_trained() -> None:
    with pytest.raises(ConfigError, match=re.escape(f"Thing needs no_such_library: {install_command('thing')}")):
        require_library("Thing", "no_such_library", "thing")


def test_a_wrong_name_among_outputs_is_answered_with_the_nearest() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Settings:
        metrics: tuple[MetricsOutput, ...] = ()

    chosen = apply_overrides(Settings(), {"metrics": "[CSV, {type: Prometheus, port: 0}]"})
    assert chosen.metrics == (CSV(), Prometheus(port=0))
    with pytest.raises(
        ConfigError, match=r"metrics: .*metrics\.1: .*unknown class 'TensorBord'; did you mean 'TensorBoard'"
    ):
        apply_overrides(Settings(), {"metrics": "[CSV, TensorBord]"})
