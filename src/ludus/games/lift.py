"""Lifts a plain-Python `Game` (one table) into a `GameBatch`: many copies behind one set of arrays.

Values that a game returns are converted and checked here, so that errors name the table and the seat.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import TreeState
from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray, Tree, put, take
from ludus.games.bots import RandomBot
from ludus.games.game import Action, Actions, Bot, Game, GameBatch, Turn
from ludus.games.seat_rows import GameError, SeatRows
from ludus.games.tables import ArrayTables, GameDefaults


@dataclass(frozen=True)
class Lifted:
    """Makes tables of a game from a function (usually the game's class) that makes one table."""

    factory: Callable[[], Game]
    name: str | None = field(default=None, kw_only=True)
    """Replaces the name in the game's own spec."""
    extra_bots: Mapping[str, Bot] = field(default_factory=dict, kw_only=True)
    """Bots in addition to those of the game's own `bots()`."""
    root: Callable[[], TreeState] | None = field(default=None, kw_only=True)
    """Makes the root of the game tree; default: the game's own `tree()`, if it has one."""

    @cached_property
    def spec(self) -> GameSpec:
        spec = getattr(self.factory, "spec", None)
        if not isinstance(spec, GameSpec):
            spec = _ask(self.factory(), lambda game: game.spec)
        return spec if self.name is None else replace(spec, name=self.name)

    def tables(self, num_tables: int) -> GameBatch:
        return LiftedBatch(self.spec, [self.factory() for _ in range(num_tables)])

    def bots(self) -> Mapping[str, Bot]:
        own: Mapping[str, Bot] = _ask(self.factory(), lambda game: game.bots() if hasattr(game, "bots") else {})
        return {"random": RandomBot(), **own, **self.extra_bots}

    def tree(self) -> TreeState | None:
        if self.root is not None:
            return self.root()
        root: TreeState | None = _ask(self.factory(), lambda game: game.tree() if hasattr(game, "tree") else None)
        return root


@dataclass(frozen=True)
class BatchSource(GameDefaults):
    """Makes tables of a game from its `GameBatch` class, or from a function that takes the number of tables."""

    factory: Callable[[int], GameBatch]

    @cached_property
    def spec(self) -> GameSpec:
        spec = getattr(self.factory, "spec", None)
        return spec if isinstance(spec, GameSpec) else _ask(self.factory(1), lambda batch: batch.spec)

    def tables(self, num_tables: int) -> GameBatch:
        return self.factory(num_tables)

    def bots(self) -> Mapping[str, Bot]:
        own: Mapping[str, Bot] = _ask(self.factory(1), lambda batch: batch.bots() if hasattr(batch, "bots") else {})
        return {**super().bots(), **own}


class LiftedBatch(ArrayTables):
    """Copies of a one-table game, stepped one after the other."""

    def __init__(self, spec: GameSpec, games: Sequence[Game]) -> None:
        super().__init__(spec, len(games))
        self._num_seats = spec.num_seats
        self._games: list[Any] = list(games)
        self._has_rewards = any(kind.rewards for kind in spec.kinds)
        self._rows = [SeatRows.of_table(spec, self.view, table) for table in range(len(games))]
        self._seats: list[tuple[int, ...]] = [()] * len(games)
        self._acted: list[set[int]] = [set() for _ in games]
        self._reward = [[0.0] * spec.num_seats for _ in games]
        self._total = [[0.0] * spec.num_seats for _ in games]
        # With these attributes, and only then, the batch is a `HasPicture` or a `HasTrees`.
        if all(hasattr(game, "render") for game in games):
            self.render = lambda table, seat=None: self._games[table].render(seat)
        if all(hasattr(game, "tree_state") for game in games):
            self.tree_state = lambda table: self._games[table].tree_state()
        if spec.chance is False:  # else a copy would know the chances to come
            self.positions, self.set_positions = self._positions, self._set_positions  # a `HasPositions`

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        view = self.view
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            view.over[table] = view.truncated[table] = False
            view.score[table] = 0.0
            self._total[table] = [0.0] * self.spec.num_seats
            self._acted[table] = set()
            try:
                turn = self._games[table].reset(seed)
            except Exception as error:
                error.add_note(f"raised by {self.spec.name}, table {table}, in reset({seed})")
                raise
            self._show(table, turn)
            if any(self._reward[table]) or any(array[table].any() for array in view.rewards):
                raise self._wrong(table, f"reward {turn.reward} at reset, before any seat has acted")

    def step(self, actions: Actions) -> None:
        self._require_within_bounds(actions)
        by_seat = self._actions_by_seat(actions)
        for table, seats in enumerate(self._seats):
            if seats:
                chosen = {seat: by_seat[seat][table] for seat in seats}
                try:
                    turn = self._games[table].step(chosen)
                except Exception as error:
                    error.add_note(f"raised by {self.spec.name}, table {table}, in step({chosen})")
                    raise
                self._show(table, turn)

    def close(self) -> None:
        for game in self._games:
            _close(game)

    def _positions(self, tables: IntArray) -> Tree:
        """Copies of the games by `copy.deepcopy`; a game may define `__deepcopy__` to make them cheap."""
        copies = np.empty(len(tables), object)
        copies[:] = [copy.deepcopy(self._held(table)) for table in tables.tolist()]
        return {**take(self.view.named(), tables), "games": copies}

    def _set_positions(self, tables: IntArray, positions: Tree) -> None:
        put(self.view.named(), tables, positions)
        for table, held in zip(tables.tolist(), positions["games"], strict=True):
            game, self._seats[table], self._acted[table], self._reward[table], self._total[table] = copy.deepcopy(held)
            self._games[table] = game

    def _held(self, table: int) -> tuple[Any, ...]:
        """What the view does not show of a table."""
        held = (self._seats, self._acted, self._reward, self._total)
        return self._games[table], *(by_table[table] for by_table in held)

    def _actions_by_seat(self, actions: Actions) -> list[Sequence[Action]]:
        """Per seat and table, the action for its game. One list per step is faster than array reads per table."""
        by_seat: list[Sequence[Action]] = []
        for kind, column in zip(self.spec.seats, self.spec.column_of_seat, strict=True):
            heads = {
                name: array[:, column].tolist() if array.ndim == 2 else array[:, column].copy()
                for name, array in actions[kind].items()
            }
            values = list(heads.values())
            if len(values) == 1 and (isinstance(values[0], list) or self.spec.kinds[kind].action.boxes):
                by_seat.append(list(values[0]))
            else:
                by_seat.append([dict(zip(heads, row, strict=True)) for row in zip(*values, strict=True)])
        return by_seat

    def _show(self, table: int, turn: Turn) -> None:
        if not isinstance(turn, Turn):
            raise self._wrong(table, f"reset and step give a Turn, got {turn!r}")
        view, rows, legal = self.view, self._rows[table], turn.legal
        ended = turn.over or turn.truncated
        for seat, observation in turn.observations.items():
            if not 0 <= seat < len(rows):
                raise self._wrong(table, f"observation for seat {seat}; seats are 0 to {len(rows) - 1}")
            rows[seat].write_observation(observation)
            if not ended:
                rows[seat].write_legal(legal.get(seat))
        self._add_reward(table, turn.reward)
        if self._has_rewards:
            self._show_rewards(table, turn.rewards)
        seats = () if ended else tuple(turn.observations)
        if seats != self._seats[table]:
            for seat in self._seats[table]:
                view.to_act[table, seat] = False
            for seat in seats:
                view.to_act[table, seat] = True
            self._seats[table] = seats
            self._acted[table].update(seats)
        if self.spec.timed:
            view.clock[table] = turn.clock
        if ended:
            self._end(table, turn)
        elif not seats:
            raise self._wrong(table, "no seat must act, but the turn is neither over nor truncated")

    def _add_reward(self, table: int, reward: Mapping[int, float] | Sequence[float]) -> None:
        num_seats = self._num_seats
        if type(reward) is tuple or type(reward) is list:
            row = list(reward)
        elif isinstance(reward, Mapping):
            row = [reward.get(seat, 0.0) for seat in range(num_seats)]
            unknown = [seat for seat in reward if seat not in range(num_seats)]
            if unknown:
                raise self._wrong(table, f"reward for seat {unknown[0]}; seats are 0 to {num_seats - 1}")
        else:
            row = np.asarray(reward).tolist()
        if len(row) != num_seats:
            if row:
                raise self._wrong(table, f"reward has {len(row)} numbers for {num_seats} seats: {reward}")
            row = [0.0] * num_seats
        # Most rewards are 0, so the view is written only where it changes.
        if row != self._reward[table]:
            try:
                self.view.reward[table] = row
            except (TypeError, ValueError) as error:
                raise self._wrong(table, f"a reward is a number, got {row}") from error
            self._reward[table] = row
        if any(row):
            self._total[table] = [old + new for old, new in zip(self._total[table], row, strict=True)]

    def _show_rewards(self, table: int, rewards: Mapping[int, Sequence[float]]) -> None:
        for array in self.view.rewards:
            array[table] = 0.0
        spec = self.spec
        for seat, row in rewards.items():
            names = spec.kinds[spec.seats[seat]].rewards if 0 <= seat < self._num_seats else ()
            if len(row) != len(names):
                raise self._wrong(table, f"rewards of seat {seat} are {list(row)}, but it has {list(names) or 'none'}")
            self.view.rewards[spec.seats[seat]][table, spec.column_of_seat[seat]] = row

    def _end(self, table: int, turn: Turn) -> None:
        view, spec = self.view, self.spec
        if turn.over and turn.truncated:
            raise self._wrong(table, "a turn cannot be both over and truncated")
        missing = self._acted[table] - set(turn.observations)
        if turn.truncated and missing:
            raise self._wrong(
                table,
                f"truncated without an observation for seat {min(missing)}, which has acted: "
                f"got observations for seats {sorted(turn.observations)}",
            )
        score: Sequence[float] | None = turn.score
        if score is None:
            if not spec.reward_is_score:
                raise self._wrong(table, "ended without a score; one is needed if reward_is_score is off")
            total = self._total[table]
            score = [sum(total[seat] for seat in seats) / len(seats) for seats in spec.seats_of_team]
        elif len(score) != spec.num_teams:
            raise self._wrong(table, f"score has {len(score)} numbers for {spec.num_teams} teams: {score}")
        view.over[table], view.truncated[table], view.score[table] = turn.over, turn.truncated, score

    def _wrong(self, table: int, what: str) -> GameError:
        return GameError(f"{self.spec.name}, table {table}: {what}")


def _ask(made: Any, question: Callable[[Any], Any]) -> Any:
    """The answer of a game or batch that is made only for it."""
    try:
        return question(made)
    finally:
        _close(made)


def _close(game: Any) -> None:
    if hasattr(game, "close"):
        game.close()
