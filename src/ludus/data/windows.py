"""Windows of a dataset: copied as they are stored, then expanded to a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ludus.data.batch import Batch
from ludus.data.dataset_format import Column, as_read, start_name
from ludus.data.specs import length_name
from ludus.data.trees import Array, IntArray, Tree, under

_LONG_ROW = 128
"""Bytes from which on a window is copied as one piece; shorter rows of all windows are gathered at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """The rows of all windows one after the other, in the form of their columns' files."""

    columns: Mapping[str, Column]
    stored: Tree
    rows: IntArray
    """[windows]: rows of each, a bootstrap row after its last decision included where there is one."""
    decisions: IntArray
    """[windows]: how many of them are decisions to learn from."""
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
            log_prob=None,
            value=None,
            reward=dense["reward"],
            rewards=dense.get("rewards"),
            elapsed=dense["elapsed"],
            over=dense["over"],
            valid=decision.swapaxes(0, 1),
            follows=follows.swapaxes(0, 1),
            first=first.swapaxes(0, 1),
            version=None,
            state={},
            extra={"episode": np.repeat(self.episode[None], shape[1], axis=0)},
        )

    def _dense(self, name: str, places: IntArray) -> Array:
        """[length + 1, windows, ...]; `places` of the rows, window by window."""
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


def copy_windows(
    columns: Mapping[str, Column],
    files: Mapping[str, Array],
    *,
    first_row: IntArray,
    rows: IntArray,
    decisions: IntArray,
    length: int,
    episode: IntArray,
) -> Windows:
    """`rows[i]` rows from `first_row[i]` on, of every column of decisions."""
    hidden = {start_name(name) for name, column in columns.items() if column.storage == "ragged"}
    chosen = {
        name: column
        for name, column in columns.items()
        if not name.startswith("episode.") and name not in hidden
    }
    until = np.cumsum(rows)
    pieces = list(zip(first_row.tolist(), (until - rows).tolist(), until.tolist(), strict=True))
    gathered = np.arange(until[-1]) + np.repeat(first_row - (until - rows), rows)
    last_row = first_row + rows - 1
    stored: Tree = {}
    for name, column in chosen.items():
        if column.storage == "ragged":
            begin = files[start_name(name)][first_row, 0]
            end = files[start_name(name)][last_row, 0] + files[length_name(name)][last_row, 0]
            stored[name] = _copied(files[name], begin, end - begin)
        elif column.row_bytes < _LONG_ROW:
            stored[name] = files[name].take(gathered, 0)
        else:
            stored[name] = _copied_pieces(files[name], pieces)
    return Windows(
        columns=chosen, stored=stored, rows=rows, decisions=decisions, length=length, episode=episode
    )


def _copied(source: Array, begin: IntArray, sizes: IntArray) -> Array:
    until = np.cumsum(sizes)
    return _copied_pieces(
        source, list(zip(begin.tolist(), (until - sizes).tolist(), until.tolist(), strict=True))
    )


def _copied_pieces(source: Array, pieces: list[tuple[int, int, int]]) -> Array:
    """(from, to, end) of each piece: rows from `from` on go to rows `to` to `end`."""
    target = np.empty((pieces[-1][2], source.shape[1]), source.dtype)
    for begin, start, stop in pieces:
        target[start:stop] = source[begin : begin + stop - start]
    return target
