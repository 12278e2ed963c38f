"""Tables of an OpenSpiel game, behind one set of arrays."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyspiel
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.tree_game import TreeState
from ludus.data.trees import IntArray
from ludus.games.adapters.openspiel_tree import OpenSpielState, Seen
from ludus.games.game import Actions, TableView

_CHANCE = int(pyspiel.PlayerId.CHANCE)
_SIMULTANEOUS = int(pyspiel.PlayerId.SIMULTANEOUS)


class OpenSpielTables:
    """States that are changed in place, one per table, and the random numbers of their chances."""

    def __init__(self, spec: GameSpec, seen: Seen, num_tables: int, *, searchable: bool) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self.view = TableView.allocate(spec, num_tables)
        self.view.over[:] = True  # until the first reset nothing can be stepped
        self._game = seen.game
        self._seen = Seen(seen.game, seen.name)  # with a tensor of its own
        self._tensor = self._seen.tensor.reshape(seen.shape)
        self._pays_late = seen.game.get_type().reward_model == pyspiel.GameType.RewardModel.TERMINAL
        self._states: list[Any] = [None] * num_tables
        self._random = [Random() for _ in range(num_tables)]
        self._steps = [0] * num_tables
        self._paid = np.zeros((num_tables, spec.num_seats))
        self._acted = np.zeros((num_tables, spec.num_seats), np.bool_)
        seats, tables = range(spec.num_seats), range(num_tables)
        observation, legal = self.view.observation[0][seen.name], self.view.legal[0]["move"]
        self._shown = [[observation[table, seat] for seat in seats] for table in tables]
        self._legal = [[legal[table, seat] for seat in seats] for table in tables]
        if searchable:
            self.tree_state = self._tree_state  # with this, and only then, it is a `HasTrees`

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        view = self.view
        view.over[tables] = view.truncated[tables] = view.to_act[tables] = False
        view.reward[tables] = view.score[tables] = 0.0
        self._paid[tables] = 0.0
        self._acted[tables] = False
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            self._random[table].seed(seed)
            self._steps[table] = 0
            self._states[table] = self._new_state(seed)
            self._go_on(table)

    def step(self, actions: Actions) -> None:
        view, moves = self.view, actions[0]["move"]
        self._require_legal(moves)
        running = np.flatnonzero(view.to_act.any(axis=1)).tolist()
        self._acted |= view.to_act
        view.to_act[:] = False
        listed, states, steps = moves.tolist(), self._states, self._steps
        for table in running:
            state = states[table]
            player = state.current_player()
            if player == _SIMULTANEOUS:
                state.apply_actions(listed[table])
            else:
                state.apply_action(listed[table][player])
            steps[table] += 1
            self._go_on(table)
            if steps[table] == self.spec.max_length and not view.over[table]:
                self._cut_off(table)
            elif not self._pays_late or view.over[table]:
                self._pay(table)

    def close(self) -> None:
        """Nothing to release."""

    def _tree_state(self, table: int) -> TreeState:
        return OpenSpielState(self._seen, self._states[table].clone())

    def _new_state(self, seed: int) -> Any:
        if not self._seen.draws_itself:
            return self._game.new_initial_state()
        # The game draws its chances itself, so every episode is of a game of its own.
        parameters = {**self._game.get_parameters(), "rng_seed": seed % 2**31}
        return pyspiel.load_game(self._game.get_type().short_name, parameters).new_initial_state()

    def _go_on(self, table: int) -> None:
        """Draw chances until a seat must act, and show it what it sees, or the game is over."""
        state = self._states[table]
        player = state.current_player()
        while player == _CHANCE:
            state.apply_action(_drawn(state.chance_outcomes(), self._random[table].random()))
            player = state.current_player()
        if player >= 0:
            self._show(table, state, player)
        elif player == _SIMULTANEOUS:
            for seat in range(self.spec.num_seats):
                self._show(table, state, seat)
        else:
            self.view.over[table] = True

    def _show(self, table: int, state: Any, seat: int) -> None:
        self._seen.look(state, seat)
        self._shown[table][seat][...] = self._tensor
        mask = self._legal[table][seat]
        mask[:] = False
        mask[state.legal_actions(seat)] = True
        self.view.to_act[table, seat] = True

    def _pay(self, table: int) -> None:
        """What was won since the start, less what was paid before; the score, which counts at the end."""
        returns = self._states[table].returns()
        self.view.reward[table] = returns - self._paid[table]
        self._paid[table] = returns
        for team, seats in enumerate(self.spec.seats_of_team):
            self.view.score[table, team] = sum(returns[seat] for seat in seats) / len(seats)

    def _cut_off(self, table: int) -> None:
        self.view.to_act[table] = False
        self.view.truncated[table] = True
        for seat in np.flatnonzero(self._acted[table]).tolist():
            self._seen.look(self._states[table], seat)
            self._shown[table][seat][...] = self._tensor
        self._pay(table)

    def _require_legal(self, moves: IntArray) -> None:
        tables, seats = np.nonzero(self.view.to_act)
        chosen, legal = moves[tables, seats], self.view.legal[0]["move"]
        inside = (chosen >= 0) & (chosen < legal.shape[2])
        right = inside & legal[tables, seats, np.where(inside, chosen, 0)]
        if not right.all():
            row = int(right.argmin())
            table, seat = int(tables[row]), int(seats[row])
            raise ValueError(
                f"{self.spec.name}: {chosen[row]} is not a legal action of seat {seat} at table {table}; "
                f"legal are {np.flatnonzero(legal[table, seat]).tolist()}"
            )


def _drawn(outcomes: list[tuple[int, float]], draw: float) -> int:
    for outcome, probability in outcomes:
        draw -= probability
        if draw < 0.0:
            return outcome
    # Probabilities that add up to a little less than one.
    return max(outcomes, key=lambda pair: pair[1])[0]
