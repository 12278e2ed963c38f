"""Rock, paper, scissors: both seats choose at once, over one or more rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import OVER, TreeState
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import AlwaysBot, RandomBot
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.tables import ArrayTables, GameDefaults

ROCK, PAPER, SCISSORS = 0, 1, 2
WALKABLE_ROUNDS = 4
"""The tree has 9 ** rounds leaves; it is not offered for more rounds."""

PAYOFF = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32)
"""Reward of the row's choice against the column's."""
NO_ROUND = 9
"""A finished round is the number 3 * choice of seat 0 + choice of seat 1; this number is no round yet."""


def _encodings() -> NDArray[np.float32]:
    """[rounds, seats, 7]: observations: flag for no round yet, one-hot own and other choice."""
    table = np.zeros((10, 2, 7), np.float32)
    for first in range(3):
        for second in range(3):
            table[3 * first + second, 0, [1 + first, 4 + second]] = 1.0
            table[3 * first + second, 1, [1 + second, 4 + first]] = 1.0
    table[NO_ROUND, :, 0] = 1.0
    return table


REWARDS = np.append(np.stack([PAYOFF, PAYOFF.T], axis=2).reshape(9, 2), np.zeros((1, 2), np.float32), axis=0)
"""[rounds, seats], 0 before the first round."""
ENCODINGS = _encodings()


@dataclass(frozen=True, kw_only=True)
class RockPaperScissors(GameDefaults):
    """Each round won is worth 1. A seat sees the choices of the previous round."""

    rounds: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"RockPaperScissors.rounds must be at least 1, got {self.rounds}")

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="rock_paper_scissors",
            num_seats=2,
            observation=ObservationSpec(parts={"previous": Vector(size=7)}),
            action=ActionSpec(heads={"move": Choice(num=3)}),
            max_length=self.rounds,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return RockPaperScissorsTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {
            "random": RandomBot(),
            "rock": AlwaysBot(action=ROCK),
            "paper": AlwaysBot(action=PAPER),
            "scissors": AlwaysBot(action=SCISSORS),
        }

    def tree(self) -> TreeState | None:
        return RockPaperScissorsState(self.rounds) if self.rounds <= WALKABLE_ROUNDS else None


class RockPaperScissorsTables(ArrayTables):
    """Tables that all advance by one round per step; a table that is over stays at its last round."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self.view.legal[0]["move"][:] = True
        self._last_round = np.full(num_tables, NO_ROUND)
        self._num_played = np.zeros(num_tables, np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._last_round[tables] = NO_ROUND
        self._num_played[tables] = 0
        self.view.score[tables] = 0.0
        self._show()

    def step(self, actions: Actions) -> None:
        moves = actions[0]["move"]
        playing = ~self.view.over
        self._require_legal("move", np.arange(self.num_tables)[:, None], np.arange(2), moves, counts=self.view.to_act)
        self._last_round = np.where(playing, 3 * moves[:, 0] + moves[:, 1], self._last_round)
        self._num_played += playing
        self._show()
        self.view.score[:] += self.view.reward * playing[:, None]

    def _show(self) -> None:
        view, last = self.view, self._last_round
        REWARDS.take(last, axis=0, out=view.reward, mode="clip")
        ENCODINGS.take(last, axis=0, out=view.observation[0]["previous"], mode="clip")
        np.equal(self._num_played, self.spec.max_length, out=view.over)
        view.to_act[:] = ~view.over[:, None]


@dataclass(frozen=True, slots=True)
class RockPaperScissorsState:
    """Seat 0 chooses first; seat 1 does not see its choice until the round is over."""

    rounds: int
    moves: tuple[int, ...] = ()

    def seat(self) -> int:
        return OVER if len(self.moves) == 2 * self.rounds else len(self.moves) % 2

    def legal_actions(self) -> Sequence[int]:
        return (ROCK, PAPER, SCISSORS)

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        return ()

    def child(self, action: int) -> RockPaperScissorsState:
        return replace(self, moves=(*self.moves, action))

    def returns(self) -> Sequence[float]:
        won = float(sum(PAYOFF[self.moves[::2], self.moves[1::2]]))
        return [won, -won]

    def information_state(self) -> tuple[int, ...]:
        """The moves of the finished rounds."""
        return self.moves[: len(self.moves) // 2 * 2]

    def observation(self) -> Tree:
        finished = self.information_state()
        last = 3 * finished[-2] + finished[-1] if finished else NO_ROUND
        return {"previous": ENCODINGS[last, self.seat()].copy()}
