"""Tables that count their episodes and can be lost by a bot from outside: what such bots play at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.tree_game import TreeState
from ludus.data.trees import IntArray, Tree
from ludus.games.game import Actions, GameBatch, Seat, StrategyView, TableView, lost_tables


class CountedTables:
    """A `GameBatch`: another one's tables. What else those can do, these can too."""

    render: Callable[[int, Seat | None], NDArray[np.uint8]]
    tree_state: Callable[[int], TreeState]
    bot_act: Callable[[str, IntArray, IntArray, int], Tree]
    strategy: StrategyView

    def __init__(self, game: GameBatch) -> None:
        self.game = game
        self.spec: GameSpec = game.spec
        self.num_tables: int = game.num_tables
        self.episodes = np.zeros(game.num_tables, np.int64)
        """[tables]: how many episodes have begun there."""
        self._scores: dict[int, tuple[int, list[float]]] = {}
        """Table -> number and final score of the latest episode that was played to its end."""
        self._lost: dict[int, str] = {}
        for name in ("render", "tree_state", "bot_act", "strategy"):
            if hasattr(game, name):
                setattr(self, name, getattr(game, name))
        own = TableView.allocate(game.spec, game.num_tables)
        # A lost table shows other ends and rewards than the game, which has gone on for one more step.
        self.view: TableView = replace(
            game.view,
            to_act=own.to_act,
            reward=own.reward,
            over=own.over,
            truncated=own.truncated,
            rewards=own.rewards,
        )

    @property
    def lost(self) -> dict[int, str]:
        return {**lost_tables(self.game), **self._lost}

    def lose(self, tables: Iterable[int], reason: str) -> None:
        """Give these tables up after the present step; `reset` brings them back."""
        self._lost.update((table, reason) for table in tables)

    def final_score(self, table: int, episode: int) -> list[float] | None:
        """Of that episode, the latest one that was played to its end; None: it was broken off."""
        number, score = self._scores.get(table, (0, []))
        return score if number == episode else None

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self.game.reset(tables, seeds)
        self.episodes[tables] += 1
        for table in tables.tolist():
            self._lost.pop(table, None)
        self._show()

    def step(self, actions: Actions) -> None:
        self.game.step(actions)
        self._show()
        for table in np.flatnonzero(self.view.over | self.view.truncated).tolist():
            self._scores[table] = (int(self.episodes[table]), self.view.score[table].tolist())

    def close(self) -> None:
        self.game.close()

    def _show(self) -> None:
        shown, inner = self.view, self.game.view
        pairs: list[tuple[Any, Any]] = [
            (shown.to_act, inner.to_act),
            (shown.reward, inner.reward),
            (shown.over, inner.over),
            (shown.truncated, inner.truncated),
            *zip(shown.rewards, inner.rewards, strict=True),
        ]
        lost = list(self._lost)
        for own, theirs in pairs:
            own[...] = theirs
            if lost:
                own[lost] = 0
