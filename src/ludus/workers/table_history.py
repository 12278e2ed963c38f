"""What brings running tables back after a stop: their seeds, and the actions of the latest steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.trees import Array, IntArray, Tree, take, under
from ludus.games.game import Actions, GameBatch, allocate_actions


class TableHistory:
    """A table depends on its seed and its actions only, so no game has to know how to save itself."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self._blank = allocate_actions(spec, num_tables)
        self._actions: deque[Actions] = deque(maxlen=spec.max_length)
        self._seeds = np.zeros(num_tables, np.uint64)

    def begin(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        """New episodes start at these tables."""
        self._seeds[tables] = seeds

    def played(self, actions: Actions) -> None:
        """All tables are stepped with these actions."""
        self._actions.append(tuple({name: array.copy() for name, array in tree.items()} for tree in actions))

    def replay(self, game: GameBatch, steps: IntArray) -> None:
        """Play every table again up to now, `steps[table]` steps after its reset.

        A table with fewer steps starts later, so that all arrive at the present together.
        """
        num_steps = int(steps.max(initial=0))
        for ago in range(num_steps, -1, -1):
            starting = np.nonzero(steps == ago)[0]
            if len(starting):
                game.reset(starting, self._seeds[starting])
            if ago:
                game.step(self._actions[-ago])

    def save(self) -> Tree:
        saved = {"table_seeds": self._seeds}
        for kind, tree in enumerate(self._blank):
            for head, blank in tree.items():
                played = [actions[kind][head] for actions in self._actions]
                saved[f"history.{kind}.{head}"] = np.stack(played) if played else blank[None][:0]
        return saved

    def load(self, saved: Mapping[str, Array]) -> None:
        self._seeds[...] = saved["table_seeds"]
        history = tuple(under(f"history.{kind}.", saved) for kind in range(len(self._blank)))
        num_steps = len(next(iter(history[0].values())))
        self._actions.clear()
        self._actions.extend(tuple(take(tree, step) for tree in history) for step in range(num_steps))
