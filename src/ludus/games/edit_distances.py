"""Edit distances between sequences that grow and the beginnings of others, many side by side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import IntArray


class EditDistances:
    """Levenshtein distances at `shape` places, each between a sequence and as much of its goal as is as long.

    Sequences and goals hold up to `size` items from 0 on, and -1 after the end. An item that was appended
    stays, so that a new one costs a single row of the usual table.
    """

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        self._goals = np.full((*shape, size), -1, np.int16)
        self._goal_lengths = np.zeros(shape, np.int64)
        self._lengths = np.zeros(shape, np.int64)
        self._rows = np.zeros((*shape, size + 1), np.int16)
        """Entry j: distance of the sequence to the first j items of the goal, as far as it has so many."""

    def begin(self, places: IntArray, goals: NDArray[np.int16]) -> None:
        """Empty sequences with these goals; `places` is an index of the first axis."""
        self._goals[places] = goals
        self._goal_lengths[places] = (goals >= 0).sum(-1)
        self._lengths[places] = 0
        self._rows[places] = np.arange(self._rows.shape[-1])

    def of(self, sequences: NDArray[np.int16]) -> NDArray[np.int16]:
        """The distances of sequences [*shape, size], each what it was or longer."""
        lengths = (sequences >= 0).sum(-1)
        while (behind := np.nonzero(self._lengths < lengths))[0].size:
            self._append(behind, sequences[(*behind, self._lengths[behind])])
        prefix = np.minimum(self._lengths, self._goal_lengths)
        return np.take_along_axis(self._rows, prefix[..., None], -1)[..., 0]

    def _append(self, places: tuple[IntArray, ...], items: NDArray[np.int16]) -> None:
        before = self._rows[places]
        replaced = before[:, :-1] + (self._goals[places] != items[:, None])
        best = np.concatenate((before[:, :1] + 1, np.minimum(replaced, before[:, 1:] + 1)), 1)
        # The least of best[k] + j - k over k <= j: items of the goal that the sequence leaves out.
        steps = np.arange(best.shape[1])
        self._rows[places] = np.minimum.accumulate(best - steps, 1) + steps
        self._lengths[places] += 1
