"""Metrics as one table of comma-separated values: a line per row, a column per name."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ludus.observe.metrics import TRAIN, Row
from ludus.store.files import atomic_write
from ludus.store.metrics_file import read_metrics
from ludus.store.run_folder import RunFolder

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
