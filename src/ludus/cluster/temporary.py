"""Folders for as long as a process lives."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

YOUNG_S = 10.0
"""A folder that was made just now may not be locked yet."""


class TemporaryHome:
    """A folder of mode 0700 that is locked by the process that made it. What one that was killed has left is
    removed by the next that makes a folder of the same prefix."""

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        """`prefix`: nothing else in the temporary folder may begin with it."""
        place = Path(parent or tempfile.gettempdir())
        for left in place.glob(f"{prefix}*"):
            with suppress(OSError):
                _remove_if_dead(left)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_if_dead(folder: Path) -> None:
    """Raises if somebody lives there."""
    if time.time() - folder.stat().st_mtime < YOUNG_S:
        return
    lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
