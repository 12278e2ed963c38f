"""Scripted players that score every option and play the best."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array, Tree
from ludus.games.bots import StrategyBot


class GreedyBot(StrategyBot):
    """Plays a legal option of the highest value; ties are broken uniformly at random."""

    @abstractmethod
    def values(self, observation: Tree) -> Array:
        """[rows, options]: what each option is worth; illegal ones may have any value."""

    def probabilities(self, observation: Tree, legal: NDArray[np.bool_]) -> NDArray[np.float64]:
        values = np.where(legal, self.values(observation).astype(np.float64), -np.inf)
        best = values == values.max(axis=1, keepdims=True)
        probs: NDArray[np.float64] = best / best.sum(axis=1, keepdims=True)
        return probs
