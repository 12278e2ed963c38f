"""Metrics for TensorBoard: event files in the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ludus.observe.metrics import Row, require_library
from ludus.store.run_folder import RunFolder

FOLDER = "tensorboard"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorBoard:
    """Event files in `metrics/tensorboard`, with decisions as steps."""

    from_start: ClassVar[bool] = False

    def open(self, folder: RunFolder, tell: Callable[[str], None]) -> TensorBoardSink:
        return TensorBoardSink(folder.metrics / FOLDER)

    def require(self) -> None:
        require_library("TensorBoard", "tensorboardX", "tensorboard")

    def where(self, folder: RunFolder) -> str:
        return f"TensorBoard: tensorboard --logdir {folder.metrics / FOLDER}"


class TensorBoardSink:
    """A run that falls back to a checkpoint begins a new file, which says from which step on what came before
    does not count any more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._step = -1

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            step = int(row["decisions"] or 0)
            if self._writer is None or step < self._step:
                self._begin(step)
            self._step = step
            for name, value in row.items():
                if value is not None and name not in ("time", "decisions"):
                    self._writer.add_scalar(name, value, step, row.get("time"))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _begin(self, step: int) -> None:
        from tensorboardX import SummaryWriter  # a second of loading that other outputs do without

        self.close()
        # By itself, its name has seconds only, and a file of the same second would be written over.
        suffix = f".{time.time_ns()}"
        self._writer = SummaryWriter(str(self._folder), purge_step=step, filename_suffix=suffix)
