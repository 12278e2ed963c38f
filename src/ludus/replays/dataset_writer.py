"""Writing of datasets: rows are appended to column files, then the index is replaced in one piece.

Only rows that the index counts exist. A writer that was killed resumes from the index, and the result is the same
byte for byte.
"""

from __future__ import annotations

import io
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ludus.data.replay import (
    FORMAT,
    INDEX,
    MOST_CODES,
    OUTCOMES,
    REPLAYS,
    STRATEGIES,
    Column,
    DatasetError,
    DecodedReplay,
    Episode,
    Index,
    ReplayLine,
    StrategySizes,
    as_read,
    as_stored,
    column_specs,
    new_codes,
    new_columns,
    start_name,
    uncoded,
)
from ludus.data.specs import SeatKind, kind_from_json, kind_to_json, length_name
from ludus.data.trees import Array
from ludus.games.bots import head_counts
from ludus.replays.dataset import ReplayDataset, map_column, read_index
from ludus.store.files import atomic_write, clean_temporaries, locked, make_folder, sync_folder

COMMIT_BYTES = 32 << 20
"""Bytes that are buffered before they are written together."""
COMMIT_REPLAYS = 256
SPARE_BYTES = 16 << 20
"""Disk space that is left free."""
_PIECE_ROWS = 4096


@contextmanager
def write_dataset(
    folder: str | Path, *, game: str, kind: SeatKind, strategy: StrategySizes | None, settings: Mapping[str, Any]
) -> Iterator[DatasetWriter]:
    """Open a new dataset, or one that was begun with the same kind of seat and settings. Added replays are
    committed at the end, unless an error ends the block."""
    path = Path(folder)
    make_folder(path)
    fresh = Index(
        format=FORMAT,
        game=game,
        kind=kind_to_json(kind),
        settings=dict(settings),
        columns=tuple(new_columns(kind, strategy)),
        replays=Column(name=REPLAYS, file=REPLAYS, storage="raw", dtype="uint8", shape=(), stored="uint8", width=1),
    )
    with locked(path):
        writer = DatasetWriter(path, _begin(path, fresh))
        yield writer
        writer.commit()
        writer.write_strategies()


class DatasetWriter:
    """Adds replays to a dataset. Open one with `write_dataset`."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self._index = index
        self._kind = kind_from_json(index.kind)
        self._columns = {column.name: column for column in index.columns}
        self._buffered: dict[str, list[bytes]] = {name: [] for name in (*self._columns, REPLAYS)}
        self._items = {column.name: column.items for column in index.columns}
        """Stored rows, including buffered ones."""
        self._names = {name: place for place, name in enumerate(index.names)}
        self.lines = _read_lines(folder, index.replays)
        self.done = {line.name for line in self.lines}
        """Replays that are not read again, including those that were skipped."""
        episodes = ReplayDataset.open(folder).episodes
        self.num_decisions = int(episodes.decisions.sum())
        self.num_decisions_made = int(episodes.length.sum())
        """Decisions that the seats made, including those that were left out."""
        self._uncommitted = 0

    @property
    def num_episodes(self) -> int:
        return self._items["episode.rows"]

    @property
    def num_bytes(self) -> int:
        return self._buffered_bytes + self.committed_bytes

    @property
    def committed_bytes(self) -> int:
        return sum(column.num_bytes for column in (*self._columns.values(), self._index.replays))

    @property
    def _buffered_bytes(self) -> int:
        return sum(len(piece) for pieces in self._buffered.values() for piece in pieces)

    def dropped(self) -> Counter[str]:
        """Seats that were left out, by filter."""
        return sum((Counter(line.dropped) for line in self.lines), Counter())

    def left_out(self) -> Counter[str]:
        """Actions that the dataset cannot hold, by reason."""
        return sum((Counter(line.left_out) for line in self.lines), Counter())

    def skipped(self) -> dict[str, str]:
        """Replays that could not be read or played, with the reason."""
        latest = {line.name: line.skipped for line in self.lines}
        return {name: reason for name, reason in latest.items() if reason}

    def retry_skipped(self) -> None:
        """Let replays that were skipped be added after all: they may have been repaired since."""
        self.done.difference_update(self.skipped())

    def add(self, replay: DecodedReplay) -> None:
        """Add one replay. Raises `DatasetError` if the disk is full."""
        if replay.name in self.done:
            raise DatasetError(f"{self.folder} has the replay {replay.name} already")
        for episode in replay.episodes:
            _require_columns(self._kind, episode)
        self._know_values(replay.episodes)  # may commit, so before anything of this replay is buffered
        number = len(self.lines)
        for episode in replay.episodes:
            self._append(episode, number)
        line = ReplayLine(
            name=replay.name,
            episodes=len(replay.episodes),
            dropped=dict(replay.dropped),
            left_out=dict(replay.left_out),
            skipped=replay.skipped,
        )
        self._buffered[REPLAYS].append(msgspec.json.encode(line) + b"\n")
        self.lines.append(line)
        self.done.add(replay.name)
        self._uncommitted += 1
        if self._buffered_bytes >= COMMIT_BYTES or self._uncommitted >= COMMIT_REPLAYS:
            self.commit()

    def _append(self, episode: Episode, replay: int) -> None:
        columns, facts = episode.columns, episode.facts
        self.num_decisions += episode.num_decisions
        self.num_decisions_made += facts.length
        for name in column_specs(self._kind):
            column = self._columns[name]
            lengths = columns[length_name(name)] if column.storage == "ragged" else None
            if lengths is not None:
                begin = self._items[name] + np.cumsum(lengths, dtype=np.int64) - lengths
                self._put(start_name(name), begin[:, None])
            self._put(name, as_stored(column, columns[name], lengths))
        outcome = 0.0 if facts.outcome is None else OUTCOMES[facts.outcome]
        one: dict[str, Any] = {
            "rows": len(columns["reward"]),
            "decisions": episode.num_decisions,
            "length": facts.length,
            "seat": facts.seat,
            "outcome": outcome,
            "score": facts.score,
            "replay": replay,
            "player": self._place(facts.player),
            "matchup": self._place(" vs ".join(facts.matchup)),
            "map": self._place(facts.map),
            "version": self._place(facts.version),
        }
        if "episode.built" in self._columns:
            one |= {"build_order": episode.build_order, "built": episode.built}
        if "episode.build_place" in self._columns:
            one["build_place"] = episode.build_place
        for name, value in one.items():
            column = self._columns[f"episode.{name}"]
            self._put(column.name, as_stored(column, np.array(value, column.dtype)[None]))

    def _put(self, name: str, stored: Array) -> None:
        self._buffered[name].append(stored.tobytes())
        self._items[name] += len(stored)

    def _place(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _know_values(self, episodes: Iterable[Episode]) -> None:
        """Give every new value of a coded column a code. A column with too many values is stored without codes."""
        for column in [column for column in self._columns.values() if column.storage == "codes"]:
            for episode in episodes:
                more = new_codes(column, episode.columns[column.name])
                if len(column.codes) + len(more) > MOST_CODES:
                    self._uncode(column.name)
                    break
                if more:
                    column = msgspec.structs.replace(column, codes=(*column.codes, *more))
                    self._columns[column.name] = column

    def _uncode(self, name: str) -> None:
        self.commit()
        coded, target = self._columns[name], uncoded(self._columns[name])
        self._require_room(coded.items * target.row_bytes)
        rows, crc = map_column(self.folder, coded), 0
        with (self.folder / target.file).open("wb") as file:
            for start in range(0, coded.items, _PIECE_ROWS):
                content = as_read(coded, rows[start : start + _PIECE_ROWS]).tobytes()
                crc = zlib.crc32(content, crc)
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._columns[name] = msgspec.structs.replace(target, items=coded.items, crc=crc)
        self._write_index(self._index.replays)
        (self.folder / coded.file).unlink(missing_ok=True)

    def commit(self) -> None:
        """Write everything that was added so far to disk."""
        if not self._uncommitted:
            return
        self._require_room(self._buffered_bytes)
        for name, column in self._columns.items():
            self._columns[name] = self._appended(column, self._buffered[name])
        replays = self._appended(self._index.replays, self._buffered[REPLAYS])
        sync_folder(self.folder)
        self._write_index(replays)
        self._uncommitted = 0

    def _appended(self, column: Column, pieces: list[bytes]) -> Column:
        content = b"".join(pieces)
        pieces.clear()
        if not content:
            return column
        path = self.folder / column.file
        try:
            with path.open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
        return msgspec.structs.replace(
            column, items=column.items + len(content) // column.row_bytes, crc=zlib.crc32(content, column.crc)
        )

    def _write_index(self, replays: Column) -> None:
        self._index = msgspec.structs.replace(
            self._index, columns=tuple(self._columns.values()), replays=replays, names=tuple(self._names)
        )
        atomic_write(self.folder / INDEX, msgspec.json.encode(self._index))

    def _require_room(self, needed: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < needed + SPARE_BYTES:
            raise DatasetError(
                f"{self.folder}: {needed >> 20} MiB more are needed and {free >> 20} MiB are free; "
                "what was written counts: make room and give the same command again"
            )

    def write_strategies(self) -> None:
        """Write the build orders of all episodes to a file for games that show them as strategies."""
        episodes = ReplayDataset.open(self.folder).episodes
        if episodes.build_order is None or episodes.built is None:
            return
        content = io.BytesIO()
        where = {} if episodes.build_place is None else {"build_place": episodes.build_place}
        arrays = {"build_order": episodes.build_order, "built": episodes.built, "outcome": episodes.outcome, **where}
        np.savez(content, **arrays)  # type: ignore[arg-type]
        atomic_write(self.folder / STRATEGIES, content.getvalue())


def _begin(folder: Path, fresh: Index) -> Index:
    """Read the index of a folder, or write a `fresh` one, and cut the files to the length that it states."""
    clean_temporaries(folder)
    if not (folder / INDEX).exists():
        if any(folder.iterdir()):
            raise DatasetError(f"{folder} is neither empty nor a dataset; choose another folder")
        atomic_write(folder / INDEX, msgspec.json.encode(fresh))
    index = read_index(folder)
    for what in ("game", "kind", "settings"):
        name, old, new = "it", getattr(index, what), getattr(fresh, what)
        if old != new:
            if isinstance(old, dict):
                name = next(key for key in (*old, *new) if old.get(key) != new.get(key))
                old, new = old.get(name), new.get(name)
            change = f"{name} was {old!r} and is {new!r}"
            raise DatasetError(f"{folder} was begun with other {what}: {change}; choose another folder")
    for column in (*index.columns, index.replays):
        _cut(folder, column)
    used = {column.file for column in index.columns}
    for left in folder.glob("*.bin"):
        if left.name not in used:
            left.unlink()  # its writer died before it replaced the index
    return index


def _cut(folder: Path, column: Column) -> None:
    path = folder / column.file
    size = path.stat().st_size if path.exists() else 0
    if size < column.num_bytes:
        raise DatasetError(f"{path} is cut short: {size} bytes, should be {column.num_bytes}; make it anew")
    if size > column.num_bytes:
        os.truncate(path, column.num_bytes)


def _read_lines(folder: Path, column: Column) -> list[ReplayLine]:
    if not column.items:
        return []
    content = (folder / column.file).read_bytes()[: column.num_bytes]
    return [msgspec.json.decode(line, type=ReplayLine) for line in content.splitlines()]


def _require_columns(kind: SeatKind, episode: Episode) -> None:
    """Check the arrays of a source against its kind of seat: wrong ones would corrupt the files."""
    specs, rows = column_specs(kind), len(episode.columns["reward"])
    for name, spec in specs.items():
        array = episode.columns.get(name)
        if array is None or array.shape != (rows, *spec.shape) or array.dtype != spec.dtype:
            given = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise DatasetError(
                f"{episode.facts.replay}: column {name!r} should be {spec.dtype}{[rows, *spec.shape]}, got {given}"
            )
    actions = {head: episode.columns[f"action.{head}"] for head in kind.action.heads}
    for head, values in actions.items():
        if (box := kind.action.boxes.get(head)) is not None:
            decided = head_counts(kind, head, actions, rows) & (np.arange(rows) < episode.num_decisions)
            for row, number in np.argwhere(box.outside(values) & decided[:, None]).tolist():
                why = box.refusal(values[row, number], number)
                raise DatasetError(f"{episode.facts.replay}: column 'action.{head}' is {why}")
            continue
        options = kind.num_options(head)
        if values.size and not -1 <= values.min() <= values.max() < options:
            raise DatasetError(
                f"{episode.facts.replay}: column 'action.{head}' should be from -1 to {options - 1}, "
                f"got {values.min()} to {values.max()}"
            )
