"""A small game in which seats build things: the parts of a game that strategies need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, SeatKind, Vector
from ludus.data.trees import IntArray
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Bot, GameBatch, StrategyView, TableView
from ludus.games.seeding import randbelow

THINGS, PLACES, FACTS, STEPS = 3, 5, 4, 9


def _kind(name: str, *rewards: str) -> SeatKind:
    return SeatKind(
        name=name,
        observation=ObservationSpec(parts={"built": Vector(size=THINGS)}),
        action=ActionSpec(heads={"build": Choice(num=THINGS + 1)}),
        rewards=rewards,
    )


@dataclass(frozen=True, kw_only=True)
class Building:
    """Three seats of two kinds build one of three things, or nothing, at every step; whoever has built the
    most by the end wins. The seed says how many steps there are; each takes two units of time."""

    timed: bool = True

    @property
    def spec(self) -> GameSpec:
        return GameSpec(
            name="building",
            kinds=(_kind("mason"), _kind("smith", "iron")),
            seats=(0, 1, 0),
            teams=(0, 1, 2),
            max_length=STEPS,
            zero_sum=False,
            reward_is_score=False,
            timed=self.timed,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return BuildingTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), "steady": Steady()}

    def tree(self) -> None:
        return None


class BuildingTables:
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self.view = TableView.allocate(spec, num_tables)
        self.view.over[:] = True
        self.strategy = StrategyView(
            build_order=np.full((num_tables, 3, PLACES), -1, np.int16), built=np.zeros((num_tables, 3, FACTS), np.bool_)
        )
        self.counts = np.zeros((num_tables, 3, THINGS), np.int64)
        self._left = np.zeros(num_tables, np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        view = self.view
        self._left[tables] = 2 + randbelow(seeds, 0, STEPS - 1)
        self.counts[tables] = 0
        self.strategy.build_order[tables] = -1
        self.strategy.built[tables] = False
        for array in (view.reward, view.score, view.clock, view.over, *view.rewards):
            array[tables] = 0
        view.to_act[tables] = True
        self._show()

    def step(self, actions: Actions) -> None:
        view = self.view
        for table in np.flatnonzero(~view.over):
            for seat, kind in enumerate(self.spec.seats):
                thing = int(actions[kind]["build"][table, self.spec.column_of_seat[seat]]) - 1
                if thing >= 0:
                    order = self.strategy.build_order[table, seat]
                    if (length := int((order >= 0).sum())) < PLACES:
                        order[length] = thing
                    self.counts[table, seat, thing] += 1
            self.strategy.built[table] = np.append(
                self.counts[table] > 0, self.counts[table].sum(-1, keepdims=True) > 3, -1
            )
            view.rewards[1][table, 0] = actions[1]["build"][table, 0] == 1
            view.clock[table] += 2
            self._left[table] -= 1
            if self._left[table] == 0:
                view.over[table], view.to_act[table] = True, False
                totals = self.counts[table].sum(-1)
                view.score[table] = totals == totals.max()
        self._show()

    def _show(self) -> None:
        for kind, seats in enumerate(self.spec.seats_of_kind):
            self.view.observation[kind]["built"][:] = self.counts[:, seats]
            self.view.legal[kind]["build"][:] = True

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True)
class Steady:
    """Builds thing 0 for ever; wants the tables of the game itself."""

    def act(
        self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator
    ) -> dict[str, NDArray[np.int32]]:
        assert isinstance(game, BuildingTables)
        return {"build": np.ones(len(tables), np.int32)}
