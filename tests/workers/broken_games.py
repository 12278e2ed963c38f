"""Games that now and then show or pay what is no number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.games.game import Turn


class Flickering:
    """Counts to three; in half of the episodes the second turn is broken."""

    spec = GameSpec.symmetric(
        name="flickering",
        num_seats=1,
        observation=ObservationSpec(parts={"turn": Vector(size=2)}),
        action=ActionSpec(heads={"move": Choice(num=2)}),
        max_length=3,
        zero_sum=False,
    )
    shown: float = np.nan
    paid: float = 0.0

    def reset(self, seed: int) -> Turn:
        self._turn = 0
        self._breaks = seed % 2 == 0
        return Turn(observations={0: np.zeros(2, np.float32)})

    def step(self, actions: Mapping[int, Any]) -> Turn:
        self._turn += 1
        broken = self._breaks and self._turn == 2
        observation = np.array([self._turn, self.shown if broken else 0.0], np.float32)
        reward = self.paid if broken else 0.25
        return Turn(observations={0: observation}, reward=(reward,), over=self._turn == 3, score=(1.0,))


class Paying(Flickering):
    shown = 0.0
    paid = np.nan
