"""Datasets of replays: random windows of episodes, read from memory-mapped files, as batches."""

from __future__ import annotations

import hashlib
import mmap
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.batch import Batch
from ludus.data.replay import FORMAT, INDEX, Column, DatasetError, Index, as_read, start_name
from ludus.data.specs import Entities, SeatKind, differences, kind_from_json, length_name
from ludus.data.trees import Array, IntArray, Tree, under
from ludus.store.files import open_file, read_file

_LONG_ROW = 128
"""Bytes of a row from which on each window is copied as one piece. Shorter rows are gathered at once."""


class ReplayDataset:
    """All episodes of a dataset, or some of them: `split` and `where` return views that share the files. Several
    threads may read, each with its own generator."""

    def __init__(self, index: Index, path: Path, files: Mapping[str, Array], episodes: IntArray | None = None) -> None:
        self.path = path
        self.game = index.game
        self.names = index.names
        """Names of players, match-ups, maps and versions, by the numbers in `episodes`."""
        self._index = index
        self._files = files
        self._columns = {column.name: column for column in index.columns}
        self.kind: SeatKind = kind_from_json(index.kind)
        rows = self._read("episode.rows").astype(np.int64)
        self._numbers = np.arange(len(rows)) if episodes is None else episodes
        """Numbers of the episodes in this view."""
        self.num_episodes = len(self._numbers)
        self._start = (np.cumsum(rows) - rows)[self._numbers]
        self._rows = rows[self._numbers]

    @classmethod
    def open(cls, path: str | Path) -> ReplayDataset:
        """Raises `DatasetError` if there is no dataset, or its index or the sizes of its files are wrong."""
        folder = Path(path)
        index = read_index(folder)
        try:
            kind_from_json(index.kind)
        except (ValueError, TypeError, LookupError) as error:
            raise DatasetError(f"{folder / INDEX} is damaged: its kind of seat is {error}") from error
        return cls(index, folder, {column.name: map_column(folder, column) for column in index.columns})

    @property
    def num_decisions(self) -> int:
        return int(self.episodes.decisions.sum())

    @cached_property
    def episodes(self) -> Episodes:
        found: dict[str, Any] = {
            field.name: self._read(f"episode.{field.name}") if f"episode.{field.name}" in self._columns else None
            for field in fields(Episodes)
        }
        return Episodes(**found).take(self._numbers)

    @cached_property
    def digest(self) -> str:
        """Digest of the whole dataset, whichever episodes are in this view."""
        return hashlib.sha256(msgspec.json.encode(self._index)).hexdigest()

    def damaged(self) -> list[str]:
        """Columns whose checksum is wrong. Reads everything."""
        return [name for name, column in self._columns.items() if zlib.crc32(self._files[name].data) != column.crc]

    def require_fit(self, kind: SeatKind, filled: Collection[str] = ()) -> None:
        """Raises `DatasetError` with the first difference between the dataset and a kind of seat. The dataset may
        lack further rewards, and the observation parts in `filled`, which the caller adds."""
        for path, (here, there) in differences(self.kind, kind).items():
            part, _, rest = path.partition(".")
            if part == "rewards" or (part == "observation" and rest.partition(".")[0] in filled):
                continue
            in_dataset, in_game = ("missing" if value is None else value for value in (here, there))
            raise DatasetError(
                f"{self.path} was made from {self.game} and does not fit {kind.name!r}: {path} is {in_dataset} "
                f"in the dataset and {in_game} in the game"
            )

    def types(self, part: str) -> IntArray:
        """The types of entity that occur in an `Entities` part, sorted."""
        spec = self.kind.observation.parts.get(part)
        if not isinstance(spec, Entities) or not spec.types:
            raise DatasetError(f"{part!r} of {self.path} is not a list of entities with types")
        name = f"observation.{part}"
        lengths, starts = self._files[f"{name}_length"], self._files[f"{name}.start"]
        found: set[int] = set()
        for start, rows in zip(self._start.tolist(), self._rows.tolist(), strict=True):
            last = start + rows - 1
            begin, end = int(starts[start, 0]), int(starts[last, 0]) + int(lengths[last, 0])
            found.update(np.unique(self._files[name][begin:end, 0]).astype(np.int64).tolist())
        return np.array(sorted(found), np.int64)

    def actions(self, head: str) -> IntArray:
        """The values of a head in decisions that use it, sorted, without the -1 after the last pick."""
        if head not in self.kind.action.heads:
            heads = ", ".join(self.kind.action.heads)
            raise DatasetError(f"{self.path} has no head {head!r}; there are {heads}")
        rows = self._decision_rows
        counts = np.ones(len(rows), np.bool_)
        when = self.kind.action.heads[head].when
        while when is not None:
            counts &= np.isin(self._files[f"action.{when.head}"][rows, 0], when.values)
            when = self.kind.action.heads[when.head].when
        values = np.unique(self._files[f"action.{head}"][rows[counts]]).astype(np.int64)
        return values[values >= 0]

    def where(self, chosen: NDArray[np.bool_]) -> ReplayDataset:
        """Only the episodes for which `chosen` [num_episodes] is true."""
        return ReplayDataset(self._index, self.path, self._files, self._numbers[chosen])

    def split(self, validation: float = 0.1, seed: int = 0) -> tuple[ReplayDataset, ReplayDataset]:
        """Two views, for training and for validation. All seats of a game are in the same view, and each view
        has a game if there are at least two."""
        if not 0.0 <= validation < 1.0:
            raise ValueError(f"validation must be at least 0 and below 1, got {validation}")
        replays = np.unique(self.episodes.replay)
        shuffled = np.random.default_rng(seed).permutation(replays)
        least = int(validation > 0.0 and len(replays) > 1)
        number = min(max(round(validation * len(replays)), least), len(replays) - 1)
        held_out = np.isin(self.episodes.replay, shuffled[:number])
        return self.where(~held_out), self.where(held_out)

    def windows(self, rng: np.random.Generator, count: int, length: int) -> Batch:
        """A batch of random windows of up to `length` decisions, [length + 1, count, ...], with a last row for
        bootstraps. A window lies within one episode; rows beyond its end are zero and not valid. Memory starts from
        zero in row 0. `extra["episode"]` is the index in `episodes`. `log_prob`, `value` and `version` are None."""
        return self.read(rng, count, length).batch()

    def read(self, rng: np.random.Generator, count: int, length: int) -> Windows:
        """The same windows in stored form, which is several times smaller; `batch` expands them."""
        return self.read_at(*self.draw(rng, count, length), length)

    def draw(self, rng: np.random.Generator, count: int, length: int) -> tuple[IntArray, IntArray]:
        """(episode, first decision) of random windows. A window is equally likely to begin at any decision, or up to
        length - 1 decisions before the first, and is then moved into the episode: all windows are as long as
        possible, and openings, where memory really starts from zero, are drawn often."""
        if not self.num_episodes:
            raise DatasetError(f"{self.path}: no episode to read windows from")
        decisions = self.episodes.decisions.astype(np.int64)
        until = np.cumsum(decisions + length - 1)
        place = rng.integers(0, until[-1], count)
        episode = np.searchsorted(until, place, side="right")
        start = place - (until[episode] - decisions[episode])
        return episode, np.clip(start, 0, np.maximum(decisions[episode] - length, 0))

    def read_at(self, episode: IntArray, start: IntArray, length: int) -> Windows:
        """Windows that begin at these decisions of these episodes (indices into `episodes`)."""
        files = self._files
        rows = np.minimum(self._rows[episode] - start, length + 1)
        decisions = np.minimum(self.episodes.decisions[episode] - start, length)
        first_row = self._start[episode] + start
        last_row = first_row + rows - 1
        pieces = _pieces(first_row, rows)
        before = np.cumsum(rows) - rows
        gathered = np.arange(rows.sum()) + np.repeat(first_row - before, rows)
        stored: Tree = {}
        for name, column in self._row_columns.items():
            if column.storage == "ragged":
                starts = files[start_name(name)][:, 0]
                begin, end = starts[first_row], starts[last_row] + files[length_name(name)][last_row, 0]
                stored[name] = _copied(files[name], _pieces(begin, end - begin))
            elif column.row_bytes < _LONG_ROW:
                stored[name] = files[name].take(gathered, 0)
            else:
                stored[name] = _copied(files[name], pieces)
        return Windows(
            columns=self._row_columns, stored=stored, rows=rows, decisions=decisions, length=length, episode=episode
        )

    @cached_property
    def _row_columns(self) -> Mapping[str, Column]:
        """The columns with a row per decision, without those that say where ragged rows start."""
        ragged = {start_name(name) for name, column in self._columns.items() if column.storage == "ragged"}
        return {
            name: column
            for name, column in self._columns.items()
            if not name.startswith("episode.") and name not in ragged
        }

    @cached_property
    def _decision_rows(self) -> IntArray:
        counts = self.episodes.decisions.astype(np.int64)
        before = np.cumsum(counts) - counts
        rows: IntArray = np.arange(counts.sum()) + np.repeat(self._start - before, counts)
        return rows

    def _read(self, name: str) -> Array:
        return as_read(self._columns[name], self._files[name])


@dataclass(frozen=True, slots=True)
class Episodes:
    """Facts of the episodes of a dataset, by episode: one seat's view of one game."""

    decisions: NDArray[np.int32]
    """Decisions in the dataset."""
    length: NDArray[np.int32]
    """Decisions that the seat made, including those that were left out."""
    seat: NDArray[np.int32]
    outcome: NDArray[np.float32]
    """1 won, 0 drawn (or a game of one team), -1 lost."""
    score: NDArray[np.float32]
    """Score of the seat's team."""
    replay: NDArray[np.int32]
    """Number of the replay, which all seats of a game share."""
    player: NDArray[np.int32]
    """Like `matchup`, `map` and `version`, an index into `ReplayDataset.names`."""
    matchup: NDArray[np.int32]
    map: NDArray[np.int32]
    version: NDArray[np.int32]
    build_order: NDArray[np.int16] | None
    """[episodes, length]: what the seat built, -1 after the end; None if the game does not report it."""
    built: NDArray[np.bool_] | None
    build_place: NDArray[np.int16] | None = None

    def take(self, chosen: IntArray) -> Episodes:
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        taken: dict[str, Any] = {name: None if array is None else array[chosen] for name, array in arrays.items()}
        return Episodes(**taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """The rows of all windows one after the other, in stored form."""

    columns: Mapping[str, Column]
    stored: Tree
    rows: IntArray
    """[windows]: rows of each window, including the bootstrap row after the last decision where there is one."""
    decisions: IntArray
    """[windows]: rows that are decisions."""
    length: int
    episode: IntArray

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.stored.values())

    def batch(self) -> Batch:
        """Dense arrays [length + 1, windows, ...], zero beyond a window's end."""
        shape = (len(self.rows), self.length + 1)
        places = np.flatnonzero(np.arange(shape[1]) < self.rows[:, None])
        dense = {name: self._dense(name, places) for name in self.columns}
        decision = np.arange(shape[1]) < self.decisions[:, None]
        follows = np.zeros(shape, np.bool_)
        follows[:, :-1] = decision[:, :-1] & decision[:, 1:]
        first = np.zeros(shape, np.bool_)
        first[:, 0] = True
        return Batch(
            observation=under("observation.", dense),
            legal=under("legal.", dense),
            action=under("action.", dense),
            reward=dense["reward"],
            rewards=dense.get("rewards"),
            elapsed=dense["elapsed"],
            over=dense["over"],
            valid=decision.swapaxes(0, 1),
            follows=follows.swapaxes(0, 1),
            first=first.swapaxes(0, 1),
            extra={"episode": np.repeat(self.episode[None], shape[1], axis=0)},
        )

    def _dense(self, name: str, places: IntArray) -> Array:
        """[length + 1, windows, ...]; `places` are those of the stored rows in the dense array."""
        column, stored = self.columns[name], self.stored[name]
        shape = (len(self.rows), self.length + 1, *column.shape)
        if column.storage == "ragged":
            lengths = self.stored[length_name(name)][:, 0].astype(np.int64)
            before = np.cumsum(lengths) - lengths
            entity = np.arange(len(stored)) + np.repeat(places * column.shape[0] - before, lengths)
            dense = np.zeros((shape[0] * shape[1] * shape[2], *shape[3:]), column.dtype)
            dense[entity] = stored
        elif len(places) == shape[0] * shape[1]:
            dense = as_read(column, stored)
        else:
            dense = np.zeros((shape[0] * shape[1], *shape[2:]), column.dtype)
            dense[places] = as_read(column, stored)
        return dense.reshape(shape).swapaxes(0, 1)


def _pieces(begin: IntArray, sizes: IntArray) -> list[tuple[int, int, int]]:
    """Per piece: the source row at which it begins, and the target rows from which and up to which it goes."""
    until = np.cumsum(sizes)
    return list(zip(begin.tolist(), (until - sizes).tolist(), until.tolist(), strict=True))


def _copied(source: Array, pieces: list[tuple[int, int, int]]) -> Array:
    target = np.empty((pieces[-1][2], source.shape[1]), source.dtype)
    for begin, start, stop in pieces:
        target[start:stop] = source[begin : begin + stop - start]
    return target


def read_index(folder: Path) -> Index:
    file = folder / INDEX
    try:
        content = read_file(file)
    except FileNotFoundError:
        raise DatasetError(f"{folder} is not a dataset: it has no {INDEX} (`ludus convert` makes one)") from None
    try:
        index = msgspec.json.decode(content, type=Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DatasetError(f"{file} is damaged: {error}") from error
    if index.format != FORMAT:
        raise DatasetError(f"{file} has format {index.format}; this version of ludus reads {FORMAT}")
    return index


def map_column(folder: Path, column: Column) -> Array:
    """The committed rows of a column, [rows, width], without copying."""
    try:
        sound = np.dtype(column.stored).kind in "biuf" and column.row_bytes >= 1 and 0 <= column.num_bytes < 2**62
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{folder / INDEX} is damaged: {column.file!r} holds {column.stored!r}: {error}") from None
    if Path(column.file).name != column.file or "\0" in column.file or not sound or column.items < 0:
        raise DatasetError(f"{folder / INDEX} is damaged: it names the file {column.file!r}")
    shape = (column.items, column.width)
    if not column.items:
        return np.zeros(shape, column.stored)
    path = folder / column.file
    try:
        with open_file(path) as file:
            if file.seek(0, 2) < column.num_bytes:
                raise DatasetError(f"{path} is cut short: {file.tell()} bytes, should be {column.num_bytes}")
            mapped = mmap.mmap(file.fileno(), column.num_bytes, prot=mmap.PROT_READ)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing") from None
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    return np.frombuffer(mapped, column.stored).reshape(shape)
