"""A player of the run at a person's table: it decides for its seats, and says what it thinks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ludus.data.trees import Tree, take
from ludus.games.game import GameBatch, Seat
from ludus.workers.opinion import Opinion, opinion_of
from ludus.workers.shelf import SeatedPlayer

TABLE = np.array([0])


class Agent:
    """Of one game. It remembers each seat apart, those that it only looks at included."""

    def __init__(self, seated: SeatedPlayer, *, seed: int) -> None:
        self._seated = seated
        self._rng = np.random.default_rng(seed)
        self._memory: dict[Seat, Tree] = {}

    @property
    def model(self) -> str:
        """Id of its weights; empty for a bot."""
        return self._seated.model_name

    @property
    def thinks(self) -> bool:
        """Bots have no values, and no probabilities that they would tell."""
        return bool(self._seated.policies)

    def decide(self, tables: GameBatch, seats: Sequence[Seat]) -> dict[Seat, tuple[Tree, Opinion | None]]:
        """What the seats, which are to act at table 0, do: trees of one row."""
        if self._seated.bot is None:
            return {seat: self._consider(tables, seat) for seat in seats}
        decided: dict[Seat, tuple[Tree, Opinion | None]] = {}
        for own in tables.spec.seats_of_kind:
            here = [seat for seat in seats if seat in own]
            if here:
                actions = self._seated.bot.act(
                    tables, np.zeros(len(here), np.int64), np.array(here), self._rng
                )
                decided |= {seat: (take(actions, slice(row, row + 1)), None) for row, seat in enumerate(here)}
        return decided

    def look(self, tables: GameBatch, seat: Seat) -> Opinion | None:
        """What it thinks of a decision that is another's. Once for each: it remembers what it sees."""
        return self._consider(tables, seat)[1] if self.thinks else None

    def _consider(self, tables: GameBatch, seat: Seat) -> tuple[Tree, Opinion]:
        kind, column = tables.spec.seats[seat], tables.spec.column_of_seat[seat]
        policy = self._seated.policies[kind]
        observation = take(tables.view.observation[kind], (TABLE, column))
        legal = take(tables.view.legal[kind], (TABLE, column))
        before = self._memory.get(seat) or policy.initial_state(1)
        uniforms = self._rng.random((1, policy.num_draws), np.float32)
        acted = policy.act(observation, legal, before, uniforms, greedy=self._seated.greedy, want_value=False)
        self._memory[seat] = acted.state
        return acted.action, opinion_of(policy, observation, legal, before, acted.action)
