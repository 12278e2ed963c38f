"""OpenSpiel's states as a game tree: what a seat sees, what it knows, and where its actions lead."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyspiel
from numpy.typing import NDArray
from open_spiel.python.observation import INFO_STATE_OBS_TYPE, make_observation

from ludus.data.tree_game import CHANCE, OVER
from ludus.data.trees import Tree


class Seen:
    """Reads what a seat of a game sees. The tensor is written in place by OpenSpiel."""

    def __init__(self, game: Any, name: Literal["information", "observation"]) -> None:
        kind = game.get_type()
        self.game = game
        self.name = name
        if name == "information":
            observer, shape = (
                make_observation(game, INFO_STATE_OBS_TYPE),
                game.information_state_tensor_shape(),
            )
        else:
            observer, shape = make_observation(game), game.observation_tensor_shape()
        self.tensor: NDArray[np.float32] = observer.tensor
        self.size = math.prod(shape)
        self.shape: tuple[int, ...] = tuple(shape) if len(shape) == 3 else (self.size,)
        # The one inside does the same without a second call through Python.
        self.look = getattr(observer, "_observation", observer).set_from
        hides = kind.information == pyspiel.GameType.Information.IMPERFECT_INFORMATION
        self.draws_itself = kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC
        self.has_trees = not self.draws_itself and (kind.provides_information_state_string or not hides)
        self.keyed_by_history = not hides

    def __reduce__(self) -> tuple[Any, ...]:
        return Seen, (self.game, self.name)

    def of(self, state: Any, seat: int) -> Tree:
        self.look(state, seat)
        return {self.name: self.tensor.reshape(self.shape).copy()}


@dataclass(frozen=True, slots=True, eq=False)
class OpenSpielState:
    """A history. Seats that move at the same time do so in order, without seeing what the others chose."""

    seen: Seen
    state: Any
    chosen: tuple[int, ...] = ()
    """By the first seats, where all move at the same time."""

    def seat(self) -> int:
        player = int(self.state.current_player())
        if player >= 0:
            return player
        if player == pyspiel.PlayerId.SIMULTANEOUS:
            return len(self.chosen)
        return CHANCE if player == pyspiel.PlayerId.CHANCE else OVER

    def legal_actions(self) -> Sequence[int]:
        legal: Sequence[int] = self.state.legal_actions(self.seat())
        return legal

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        outcomes: Sequence[tuple[int, float]] = self.state.chance_outcomes()
        return [(outcome, probability) for outcome, probability in outcomes if probability > 0.0]

    def child(self, action: int) -> OpenSpielState:
        if self.state.current_player() != pyspiel.PlayerId.SIMULTANEOUS:
            return OpenSpielState(self.seen, self.state.child(action))
        chosen = (*self.chosen, action)
        if len(chosen) < self.seen.game.num_players():
            return OpenSpielState(self.seen, self.state, chosen)
        after = self.state.clone()
        after.apply_actions(chosen)
        return OpenSpielState(self.seen, after)

    def returns(self) -> Sequence[float]:
        returns: Sequence[float] = self.state.returns()
        return returns

    def information_state(self) -> Hashable:
        if self.seen.keyed_by_history:
            return tuple(self.state.history())
        key: str = self.state.information_state_string(self.seat())
        return key

    def observation(self) -> Tree:
        return self.seen.of(self.state, self.seat())


def is_small(root: OpenSpielState, most: int) -> bool:
    """Whether there are at most this many histories."""
    found, waiting = 0, [root]
    while waiting:
        state = waiting.pop()
        found += 1
        if found + len(waiting) > most:
            return False
        seat = state.seat()
        if seat == CHANCE:
            waiting += [state.child(outcome) for outcome, _ in state.chance_outcomes()]
        elif seat != OVER:
            waiting += [state.child(action) for action in state.legal_actions()]
    return True
