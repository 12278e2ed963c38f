"""Base classes of games: `GameDefaults` for a source, `ArrayTables` for a batch, `WrappedTables` around a batch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ludus.data.game_tree import TreeState
from ludus.data.specs import GameSpec
from ludus.data.trees import Array, IntArray
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch, TableView, lost_tables


class GameDefaults:
    """Defaults of a `GameSource`: its only bot is `random`, and its game tree cannot be walked."""

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None


class WrappedTables:
    """Base of a `GameBatch` that wraps another one, as its attribute `game`."""

    def __init__(self, game: GameBatch) -> None:
        self.game = game
        self.num_tables = game.num_tables

    @property
    def lost(self) -> Mapping[int, str]:
        return lost_tables(self.game)

    def close(self) -> None:
        self.game.close()


class ArrayTables:
    """Base of a `GameBatch` that writes the arrays of its view itself."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self.view = TableView.allocate(spec, num_tables)
        self.view.over[:] = True  # no table can be stepped before its first reset

    def close(self) -> None:
        """Tables in memory have nothing to release."""

    def _require_legal(
        self, head: str, tables: IntArray, columns: Array, chosen: Array, *, kind: int = 0, counts: Array | bool = True
    ) -> None:
        """Raise `ValueError` for the first of the chosen options that counts and is illegal. The arrays broadcast."""
        num, mask = self.spec.kinds[kind].num_options(head), self.view.legal[kind].get(head)
        inside = (chosen >= 0) & (chosen < num)
        legal = inside
        if mask is not None:  # `take` of the flat mask is several times faster than an index of three arrays
            legal = inside & mask.reshape(-1).take((tables * mask.shape[1] + columns) * num + chosen, mode="clip")
        illegal = ~legal & counts
        if illegal.any():
            row = tuple(np.argwhere(illegal)[0])
            table, column = (np.broadcast_to(index, chosen.shape)[row] for index in (tables, columns))
            options = f"0 to {num - 1}" if mask is None else np.flatnonzero(mask[table, column]).tolist()
            raise ValueError(
                f"{self.spec.name}: table {table}, seat {self.spec.seats_of_kind[kind][column]}: "
                f"{head} {chosen[row]} is not one of {options}"
            )

    def _start_episodes(self, tables: IntArray) -> None:
        """Start an episode in the view: every seat acts, nothing has been paid, nothing has ended."""
        view = self.view
        for array in (view.reward, view.score, view.over, view.truncated, view.clock):
            array[tables] = 0
        view.to_act[tables] = True
