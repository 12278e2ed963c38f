"""Base classes of games: `GameDefaults` for a source, `ArrayTables` for a batch, `WrappedTables` around a batch."""

from __future__ import annotations

from collections.abc import Mapping

from ludus.data.specs import GameSpec
from ludus.data.tree import TreeState
from ludus.data.trees import IntArray
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

    def _start_episodes(self, tables: IntArray) -> None:
        """Start an episode in the view: every seat acts, nothing has been paid, nothing has ended."""
        view = self.view
        for array in (view.reward, view.score, view.over, view.truncated, view.clock):
            array[tables] = 0
        view.to_act[tables] = True
