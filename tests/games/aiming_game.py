"""Small games whose actions are real numbers: `Guessing`, and `Aiming`, where they count only after a choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ludus.data.specs import ActionSpec, Box, Choice, GameSpec, ObservationSpec, Vector, When
from ludus.data.trees import Array
from ludus.games.game import Turn

ROUNDS = 6
WAIT, SHOOT = range(2)
LOW, HIGH = (0.1, -2.0), (0.7, 3.0)
"""Of the aim. Neither 0.1 nor 0.7 is a number in float32, and 0 is not within the bounds of the first number."""


class Guessing:
    """Both seats guess a number at the same time, and the nearer one takes the point. One head: a bare array."""

    spec = GameSpec.symmetric(
        name="guessing",
        num_seats=2,
        observation=ObservationSpec(parts={"hint": Vector(size=1)}),
        action=ActionSpec(heads={"guess": Box(size=1, low=-1.0, high=1.0)}),
        max_length=ROUNDS,
    )

    def reset(self, seed: int) -> Turn:
        self._rng = np.random.default_rng(seed)
        self._rounds = 0
        return self._ask(())

    def step(self, actions: Mapping[int, Array]) -> Turn:
        for guess in actions.values():
            assert isinstance(guess, np.ndarray)
            assert (guess.dtype, guess.shape) == (np.float32, (1,))
        self._rounds += 1
        off = [abs(float(actions[seat][0]) - self._number) for seat in range(2)]
        nearer = float(np.sign(off[1] - off[0]))
        return self._ask((nearer, -nearer))

    def _ask(self, reward: tuple[float, ...]) -> Turn:
        self._number = float(self._rng.uniform(-1, 1))
        hint = np.array([self._number + 0.1 * self._rng.standard_normal()], np.float32)
        if self._rounds == ROUNDS:
            return Turn(observations={}, reward=reward, over=True)
        return Turn(observations={0: hint, 1: hint}, reward=reward)


class Aiming:
    """One seat waits for the target to come near, or shoots at it: where counts only in a shot. A head of each kind:
    a mapping."""

    spec = GameSpec.symmetric(
        name="aiming",
        num_seats=1,
        observation=ObservationSpec(parts={"target": Vector(size=2)}),
        action=ActionSpec(
            heads={
                "order": Choice(num=2),
                "aim": Box(size=2, low=LOW, high=HIGH, when=When(head="order", values=(SHOOT,))),
            }
        ),
        max_length=ROUNDS,
        zero_sum=False,
    )

    def reset(self, seed: int) -> Turn:
        self._rng = np.random.default_rng(seed)
        self._rounds = 0
        return self._turn(0.0)

    def step(self, actions: Mapping[int, Mapping[str, Any]]) -> Turn:
        order, aim = actions[0]["order"], actions[0]["aim"]
        assert type(order) is int
        assert (aim.dtype, aim.shape) == (np.float32, (2,))
        self._rounds += 1
        return self._turn(-float(np.abs(aim - self._target).sum()) if order == SHOOT else -1.0)

    def _turn(self, reward: float) -> Turn:
        self._target = self._rng.uniform(LOW, HIGH).astype(np.float32)
        ended = self._rounds == ROUNDS
        may_wait = np.array([self._rounds < ROUNDS - 1, True])  # the last round is for a shot
        return Turn(observations={0: self._target}, legal={0: may_wait}, reward=(reward,), truncated=ended)
