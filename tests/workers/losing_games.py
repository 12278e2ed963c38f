"""A game whose tables are lost at given steps, without any process that would have to die for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import TreeState
from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import HostedBot
from ludus.games.game import Actions, Bot, GameBatch, GameSource


@dataclass(frozen=True)
class Losing:
    """A `GameSource`: another one's game."""

    game: GameSource
    when: Mapping[int, Sequence[int]]
    """Step of the tables -> those that are lost in it; step 0 is the first reset."""
    always: bool = False
    """Table 0 is lost at every step."""
    by_bots: frozenset[int] = frozenset()
    """In which of their calls bots lose the first table that they act at."""

    @property
    def spec(self) -> GameSpec:
        return self.game.spec

    def tables(self, num_tables: int) -> GameBatch:
        return LosingTables(self, self.game.tables(num_tables))

    def bots(self) -> Mapping[str, Bot]:
        return {name: HostedBot(name) for name in self.game.bots()}

    def tree(self) -> TreeState | None:
        return None


class LosingTables:
    def __init__(self, source: Losing, batch: GameBatch) -> None:
        self._source, self._batch, self._steps, self._calls = source, batch, 0, 0
        self._bots = source.game.bots()
        self.spec, self.num_tables, self.view = batch.spec, batch.num_tables, batch.view
        self.lost: dict[int, str] = {}
        self.resets = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._batch.reset(tables, seeds)
        for table in tables.tolist():
            self.lost.pop(table, None)
        if self.resets == 0:
            self.lose(self._source.when.get(0, ()))
        self.resets += 1

    def step(self, actions: Actions) -> None:
        self._batch.step(actions)
        self._steps += 1
        self.lose(self._source.when.get(self._steps, ()))
        if self._source.always:
            self.lose([0])

    def bot_act(self, bot: str, tables: IntArray, seats: IntArray, seed: int) -> Tree:
        self._calls += 1
        chosen = self._bots[bot].act(self._batch, tables, seats, np.random.default_rng(seed))
        if self._calls in self._source.by_bots:
            self.lose(tables[:1].tolist())
        return chosen

    def close(self) -> None:
        self._batch.close()

    def lose(self, tables: Sequence[int]) -> None:
        view = self.view
        for table in tables:
            if table < self.num_tables:
                self.lost[table] = f"crashed: at step {self._steps}"
                view.to_act[table] = view.over[table] = view.truncated[table] = False
                view.reward[table] = 0.0
