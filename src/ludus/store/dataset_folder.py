"""The folder of a dataset as a writer finds it: locked, as long as its index says, and the right one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ludus.data.dataset import read_index
from ludus.data.dataset_format import INDEX, REPLAYS, Column, DatasetError, Index, ReplayLine, column_specs
from ludus.data.episodes import Episode
from ludus.data.specs import SeatKind
from ludus.store.files import atomic_write, clean_temporaries


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder itself is locked; the system lets go when the process dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(f"{folder} is being written by another process") from None
        yield
    finally:
        os.close(descriptor)


def begun(folder: Path, fresh: Index) -> Index:
    """The index of the dataset in a folder, a new one if there is none, with the files as long as it says."""
    clean_temporaries(folder)
    if not (folder / INDEX).exists():
        if any(folder.iterdir()):
            raise DatasetError(f"{folder} is neither empty nor a dataset; choose another folder")
        atomic_write(folder / INDEX, msgspec.json.encode(fresh))
    index = read_index(folder)
    _require_same(folder, index, fresh)
    for column in (*index.columns, index.replays):
        _cut(folder, column)
    used = {column.file for column in index.columns}
    for left in folder.glob("*.bin"):
        if left.name not in used:
            left.unlink()  # written for an index that never came
    return index


def lines_column() -> Column:
    return Column(name=REPLAYS, file=REPLAYS, storage="raw", dtype="uint8", shape=(), stored="uint8", width=1)


def read_lines(folder: Path, column: Column) -> list[ReplayLine]:
    if not column.items:
        return []
    content = (folder / column.file).read_bytes()[: column.num_bytes]
    return [msgspec.json.decode(line, type=ReplayLine) for line in content.splitlines()]


def _cut(folder: Path, column: Column) -> None:
    """Take away what was written behind the committed end."""
    path = folder / column.file
    size = path.stat().st_size if path.exists() else 0
    if size < column.num_bytes:
        raise DatasetError(f"{path} is cut short: {size} bytes, should be {column.num_bytes}; make it anew")
    if size > column.num_bytes:
        os.truncate(path, column.num_bytes)


def _require_same(folder: Path, index: Index, fresh: Index) -> None:
    for what in ("game", "kind", "settings"):
        old, new = getattr(index, what), getattr(fresh, what)
        if old != new:
            raise DatasetError(
                f"{folder} was begun with other {what}: {_change(old, new)}; choose another folder"
            )


def _change(old: Any, new: Any) -> str:
    if isinstance(old, dict):
        name = next(name for name in (*old, *new) if old.get(name) != new.get(name))
        return f"{name} was {old.get(name)!r} and is {new.get(name)!r}"
    return f"it was {old!r} and is {new!r}"


def require_columns(kind: SeatKind, episode: Episode) -> None:
    """A source that gives other arrays than its kind says would spoil the files."""
    specs, rows = column_specs(kind), len(episode.columns["reward"])
    for name, spec in specs.items():
        array = episode.columns.get(name)
        if array is None or array.shape != (rows, *spec.shape) or array.dtype != spec.dtype:
            given = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise DatasetError(
                f"{episode.facts.replay}: column {name!r} should be {spec.dtype}{[rows, *spec.shape]}, "
                f"got {given}"
            )
    for head in kind.action.heads:
        values, options = episode.columns[f"action.{head}"], kind.num_options(head)
        if values.size and not -1 <= values.min() <= values.max() < options:
            raise DatasetError(
                f"{episode.facts.replay}: column 'action.{head}' should be from -1 to {options - 1}, "
                f"got {values.min()} to {values.max()}"
            )
