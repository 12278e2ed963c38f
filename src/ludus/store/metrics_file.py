"""Measurements as JSON lines: appended while the run goes on, readable at any moment, a torn line skipped."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from ludus.store.files import UNREADABLE


class MetricsFile:
    """Appends one line per record, in one write each. NaN and infinities are written as null."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._encoder = msgspec.json.Encoder(enc_hook=_plain_scalar)
        self.path.parent.mkdir(exist_ok=True)
        self._file = self.path.open("ab+", buffering=0)

    def append(self, record: Mapping[str, Any]) -> None:
        line = self._torn_line_end() + self._encoder.encode(dict(record)) + b"\n"
        try:
            written = self._file.write(line)
        except OSError as error:
            raise OSError(error.errno, f"cannot write: {error.strerror}", str(self.path)) from error
        if written != len(line):
            raise OSError(errno.ENOSPC, f"cannot write: {os.strerror(errno.ENOSPC)}", str(self.path))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _torn_line_end(self) -> bytes:
        """Keeps what a killed writer or a full disk left unfinished from swallowing the next record."""
        if self._file.seek(0, os.SEEK_END) == 0:
            return b""
        self._file.seek(-1, os.SEEK_END)
        return b"" if self._file.read(1) == b"\n" else b"\n"


def read_metrics(path: str | Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The records from byte `offset` on, and the offset to go on from; an unfinished line is left over."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    records = []
    for line in whole.split(b"\n")[:-1]:
        try:
            records.append(msgspec.json.decode(line, type=dict[str, Any]))
        except UNREADABLE:
            continue  # torn by a writer that was killed, and ended by the next one
    return records, offset + len(whole)


def _plain_scalar(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a metric cannot be a {type(value).__name__}: {value!r}")
