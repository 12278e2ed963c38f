"""Where learners publish the newest weights of their players and actors look for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ludus.data.records import ModelId
from ludus.data.specs import ArraySpec
from ludus.data.trees import Array, Tree, allocate


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


class SharedBoard:
    """A board in shared memory, with one publisher and any number of readers; neither waits for the other.

    Each player has two copies of its weights. The publisher fills the one that is not the newest and then
    says so; a reader whose copy is being filled again meanwhile reads once more.
    """

    def __init__(
        self,
        new: Callable[[tuple[int, ...], np.dtype[Any]], Array],
        weights: Mapping[str, Mapping[str, ArraySpec]],
    ) -> None:
        self._published = {player: new((1,), np.dtype(np.int64)) for player in weights}
        """How often the player was published; copy number published % 2 is the newest."""
        self._filling = {player: new((1,), np.dtype(np.int64)) for player in weights}
        """Number of the publication that is being, or was last, written."""
        self._ids = {player: new((2, 2), np.dtype(np.int64)) for player in weights}
        """[copy, (incarnation, step)]"""
        self._copies = {player: allocate(specs, (2,), new) for player, specs in weights.items()}

    def publish(self, model: ModelId, weights: Mapping[str, Array]) -> None:
        player = model.player
        number = int(self._published[player][0]) + 1
        self._filling[player][0] = number
        for name, array in self._copies[player].items():
            array[number % 2] = weights[name]
        self._ids[player][number % 2] = model.incarnation, model.step
        self._published[player][0] = number

    def newest(self, player: str) -> ModelId | None:
        if player not in self._published or not self._published[player][0]:
            return None
        return self._model(player, int(self._published[player][0]))

    def fetch(self, player: str) -> tuple[ModelId, Tree]:
        while True:
            number = int(self._published[player][0])
            # Not .copy(): of a weight without axes the index gives a number, and its copy is no array.
            weights = {name: np.array(array[number % 2]) for name, array in self._copies[player].items()}
            model = self._model(player, number)
            if self._filling[player][0] <= number + 1:  # our copy is filled again by number + 2 only
                return model, weights

    def _model(self, player: str, number: int) -> ModelId:
        incarnation, step = self._ids[player][number % 2].tolist()
        return ModelId(player, incarnation, step)
