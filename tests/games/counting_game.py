"""A small game that keeps every promise, with a place to spoil what it shows.

Seats take turns to name 0, 1 or 2 (never what was named before) until four numbers are named. If their sum
plus a number drawn by the seed is even, seat 0 wins. Naming n takes 1 + n units of time. Episodes from
odd seeds are cut off instead of being over. Entities: the numbers named so far. Critics see the number drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import CHANCE, OVER, TreeState
from ludus.data.specs import ActionSpec, Choice, Entities, GameSpec, ObservationSpec, Vector
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Bot, TableView

MOVES = 4
OPTIONS = 3
SPEC = GameSpec.symmetric(
    name="counting",
    num_seats=2,
    observation=ObservationSpec(
        parts={"now": Vector(size=3), "named": Entities(maximum=MOVES, features=1)},
        critic={"draw": Vector(size=1)},
        common=("draw",),
    ),
    action=ActionSpec(heads={"number": Choice(num=OPTIONS)}),
    max_length=MOVES,
    timed=True,
)


@dataclass(frozen=True)
class CountingState:
    """One history; the draw is a chance node, hidden from both seats."""

    draw: int | None = None
    named: tuple[int, ...] = ()

    def seat(self) -> int:
        if self.draw is None:
            return CHANCE
        return OVER if len(self.named) == MOVES else len(self.named) % 2

    def legal_actions(self) -> Sequence[int]:
        return [option for option in range(OPTIONS) if option != (self.named or (-1,))[-1]]

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        return [(0, 0.5), (1, 0.5)]

    def child(self, action: int) -> CountingState:
        if self.draw is None:
            return replace(self, draw=action)
        return replace(self, named=(*self.named, action))

    def returns(self) -> Sequence[float]:
        won = 1.0 if (sum(self.named) + (self.draw or 0)) % 2 == 0 else -1.0
        return (won, -won)

    def information_state(self) -> tuple[int, ...]:
        return self.named

    def observation(self) -> Tree:
        named = np.zeros((MOVES, 1), np.float32)
        named[: len(self.named), 0] = self.named
        now = np.array([len(self.named), sum(self.named), self.seat()], np.float32)
        length = np.array(len(self.named), np.int32)
        return {"now": now, "named": named, "named_length": length, "critic.draw": np.array([self.draw], np.float32)}


class CountingTables:
    """Keeps one tree state per table and shows it; then the spoilers may have their way."""

    def __init__(self, source: Counting, num_tables: int) -> None:
        self.source = source
        self.spec = source.spec
        self.num_tables = num_tables
        self.view = TableView.allocate(self.spec, num_tables)
        self.states = [CountingState()] * num_tables
        self.odd = np.zeros(num_tables, np.bool_)
        self.last_actions: NDArray[np.int32] = np.zeros((num_tables, 2), np.int32)

    def tree_state(self, table: int) -> TreeState:
        return self.states[table]

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            self.states[table] = CountingState(draw=seed // 2 % 2)
            self.odd[table] = seed % 2
            self.view.clock[table] = 0
            self._show(table)
        self.source.spoil_reset(self)

    def step(self, actions: Actions) -> None:
        self.last_actions = actions[0]["number"]
        for table in np.flatnonzero(~(self.view.over | self.view.truncated)).tolist():
            state = self.states[table]
            named = int(self.last_actions[table, state.seat()])
            self.states[table] = state.child(named)
            self.view.clock[table] += 1 + named
            self._show(table)
        self.source.spoil_step(self)

    def close(self) -> None:
        pass

    def _show(self, table: int) -> None:
        state, view = self.states[table], self.view
        ended = state.seat() == OVER
        view.over[table] = ended and not self.odd[table]
        view.truncated[table] = ended and self.odd[table]
        view.to_act[table] = np.arange(2) == state.seat()
        view.reward[table] = view.score[table] = state.returns() if ended else 0.0
        for seat in (0, 1) if ended else (state.seat(),):
            for name, array in state.observation().items():
                view.observation[0][name][table, seat] = array
            view.legal[0]["number"][table, seat] = np.isin(np.arange(OPTIONS), state.legal_actions())


def nothing(tables: CountingTables) -> None:
    """Spoils nothing."""


@dataclass(frozen=True, kw_only=True)
class Counting:
    spec_given: GameSpec = SPEC
    spoil_reset: Callable[[CountingTables], None] = nothing
    spoil_step: Callable[[CountingTables], None] = nothing
    make_tables: Callable[[Counting, int], CountingTables] = CountingTables
    players: Mapping[str, Bot] = field(default_factory=lambda: {"random": RandomBot()})
    root: TreeState = field(default_factory=CountingState)

    @cached_property
    def spec(self) -> GameSpec:
        return self.spec_given

    def tables(self, num_tables: int) -> CountingTables:
        return self.make_tables(self, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return self.players

    def tree(self) -> TreeState | None:
        return self.root
