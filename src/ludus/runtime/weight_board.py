"""Where learners publish the newest weights of their players and actors look for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ludus.data.records import ModelId
from ludus.data.trees import Array, Tree


class WeightBoard(Protocol):
    """Newest weights by player. Publishing never waits for readers."""

    def publish(self, model: ModelId, weights: Mapping[str, Array]) -> None: ...
    def newest(self, player: str) -> ModelId | None: ...
    def fetch(self, player: str) -> tuple[ModelId, Tree]: ...


class LocalBoard:
    """A board inside one process."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[ModelId, Tree]] = {}

    def publish(self, model: ModelId, weights: Mapping[str, Array]) -> None:
        self._entries[model.player] = (model, {name: np.array(array) for name, array in weights.items()})

    def newest(self, player: str) -> ModelId | None:
        entry = self._entries.get(player)
        return entry[0] if entry else None

    def fetch(self, player: str) -> tuple[ModelId, Tree]:
        return self._entries[player]
