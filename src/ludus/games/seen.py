"""A digest of all that the seats of a table see when they decide: the same if two episodes were alike."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec, length_name
from ludus.data.trees import Array, IntArray
from ludus.games.game import TableView
from ludus.games.seeding import mix

_WORD = 8


class Seen:
    """The digest of the running episode at each table. Guards against accidents, not against forgery."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self._kinds = [np.array(seats) for seats in spec.seats_of_kind]
        self._digest = np.zeros(num_tables, np.uint64)

    def reset(self, tables: IntArray) -> None:
        self._digest[tables] = 0

    def of(self, table: int) -> int:
        return int(self._digest[table])

    def add(self, view: TableView) -> None:
        """Every seat that must act sees its observation and its masks."""
        total = np.zeros_like(self._digest)
        for kind, seats in enumerate(self._kinds):
            tables, columns = np.nonzero(view.to_act[:, seats])
            if not len(tables):
                continue
            observation, legal = view.observation[kind], view.legal[kind]
            rows = seats[columns].astype(np.uint64)
            for name, array in observation.items():
                lengths = observation.get(length_name(name))
                shown = array[tables, columns]
                if lengths is not None:  # what lies behind the last entity is nobody's promise
                    shown[np.arange(shown.shape[1]) >= lengths[tables, columns][:, None]] = 0
                rows = mix(rows + _row_sums(shown), 0)
            for mask in legal.values():
                rows = mix(rows + _row_sums(mask[tables, columns]), 1)
            np.add.at(total, tables, rows)
        acting = view.to_act.any(axis=1)
        self._digest[acting] = mix(self._digest[acting] + total[acting], 2)


def _row_sums(rows: Array) -> NDArray[np.uint64]:
    """Words of each row times odd weights: whichever single word changes, the sum does."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    flat = flat.view(np.uint8) if flat.dtype != np.uint8 else flat
    missing = -flat.shape[1] % _WORD
    if missing:
        flat = np.pad(flat, ((0, 0), (0, missing)))
    words = flat.view(np.uint64)
    sums: NDArray[np.uint64] = (words * _weights(words.shape[1])).sum(axis=1, dtype=np.uint64)
    return sums


@lru_cache(maxsize=64)
def _weights(number: int) -> NDArray[np.uint64]:
    return mix(np.arange(number, dtype=np.uint64), 3) | np.uint64(1)
