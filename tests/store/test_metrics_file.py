"""Metrics: one line each, readable while written, torn lines skipped."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from ludus.store.run_folder import MetricsFile, read_metrics


def test_records_come_back_and_reading_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "learner.jsonl"
    with MetricsFile(path) as metrics:
        metrics.append({"step": 1, "learner/loss": 0.5, "note": "a\nb"})
        records, offset = read_metrics(path)
        assert records == [{"step": 1, "learner/loss": 0.5, "note": "a\nb"}]
        metrics.append({"step": np.int64(2), "loss": np.float32(0.25), "bad": float("nan")})
        assert read_metrics(path, offset) == ([{"step": 2, "loss": 0.25, "bad": None}], path.stat().st_size)
    with MetricsFile(path) as metrics:
        metrics.append({"step": 3})
    assert [record["step"] for record in read_metrics(path)[0]] == [1, 2, 3]


def test_a_torn_last_line_is_skipped_at_any_cut(tmp_path: Path) -> None:
    path = tmp_path / "learner.jsonl"
    with MetricsFile(path) as metrics:
        for step in range(2):
            metrics.append({"step": step, "text": "שלום"})
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for cut in range(first, len(content)):
        path.write_bytes(content[:cut])
        records, offset = read_metrics(path)
        assert [record["step"] for record in records] == [0]
        assert offset == first
        with MetricsFile(path) as metrics:
            metrics.append({"step": 2})
        resumed = [record["step"] for record in read_metrics(path)[0]]
        assert resumed in ([0, 2], [0, 1, 2])  # whole but for its line end, the torn one counts


def test_a_line_that_the_disk_has_no_room_for_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "learner.jsonl"
    with MetricsFile(path) as metrics:
        metrics.append({"step": 0})
        whole = path.read_bytes()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, before[1]))
        try:
            with pytest.raises(OSError, match="cannot write: No space left"):
                metrics.append({"step": 1, "text": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert path.read_bytes() == whole


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "learner.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\xffp": 2}\n[3]\n\n{"step": 4}\n')
    assert [record["step"] for record in read_metrics(path)[0]] == [1, 4]


def test_an_empty_file_and_what_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "learner.jsonl"
    with MetricsFile(path) as metrics:
        assert read_metrics(path) == ([], 0)
        with pytest.raises(TypeError, match="a metric cannot be a object"):
            metrics.append({"x": object()})
        assert read_metrics(path) == ([], 0)


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "evaluations.jsonl"
    with MetricsFile(path) as metrics:
        metrics.append({"step": 1})
    assert read_metrics(path)[0] == [{"step": 1}]
