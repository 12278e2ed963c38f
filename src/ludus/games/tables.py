"""Base classes of games: `GameDefaults` and `WrappedGame` for sources, `ArrayTables` and `WrappedTables` for batches.

`Table` plays one table of any game from plain Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import TreeState
from ludus.data.specs import CRITIC_PREFIX, GameSpec
from ludus.data.trees import Array, IntArray, Tree, put, take
from ludus.games.bots import RandomBot, require_within_bounds
from ludus.games.game import (
    Action,
    Actions,
    Bot,
    GameBatch,
    GameSource,
    Legal,
    Observation,
    Seat,
    StrategyView,
    TableView,
    Turn,
    allocate_actions,
    lost_tables,
)

_TABLE = np.array([0])


class GameDefaults:
    """Defaults of a `GameSource`: its only bot is `random`, and its game tree cannot be walked."""

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None


@dataclass(frozen=True)
class WrappedGame:
    """Base of a `GameSource` that wraps another one and passes on what it does not change."""

    game: GameSource

    @cached_property
    def spec(self) -> GameSpec:
        return self.game.spec

    def bots(self) -> Mapping[str, Bot]:
        return self.game.bots()

    def tree(self) -> TreeState | None:
        return self.game.tree()


def change_innermost(source: GameSource, change: Callable[[GameSource], GameSource]) -> GameSource:
    """The same wrappers around what `change` makes of the innermost game."""
    inner = getattr(source, "game", None)
    if not isinstance(inner, GameSource):
        return change(source)
    wrapper: Any = source
    changed: GameSource = replace(wrapper, game=change_innermost(inner, change))
    return changed


class WrappedTables:
    """Base of a `GameBatch` that wraps another one, as its attribute `game`, and passes on its optional methods."""

    PASSED_ON: ClassVar[tuple[str, ...]] = (
        "render", "tree_state", "bot_act", "strategy", "positions", "set_positions"
    )  # fmt: skip
    render: Callable[[int, Seat | None], NDArray[np.uint8]]
    tree_state: Callable[[int], TreeState]
    bot_act: Callable[[str, IntArray, IntArray, int], Tree]
    strategy: StrategyView
    positions: Callable[[IntArray], Tree]
    set_positions: Callable[[IntArray, Tree], None]

    def __init__(self, game: GameBatch, spec: GameSpec | None = None) -> None:
        self.game = game
        self.spec: GameSpec = spec or game.spec
        self.view: TableView = game.view
        self.num_tables: int = game.num_tables
        for name in self.PASSED_ON:
            if hasattr(game, name):
                setattr(self, name, getattr(game, name))

    @property
    def lost(self) -> Mapping[int, str]:
        return lost_tables(self.game)

    def close(self) -> None:
        self.game.close()


@dataclass(frozen=True)
class InnerBot:
    """A bot at tables whose wrapper changes the spec; it sees the game that it was written for."""

    bot: Bot

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        if isinstance(game, WrappedTables) and game.spec is not game.game.spec:
            game = game.game
        kinds = np.asarray(game.spec.seats)[seats]
        actions: Tree = {}
        for kind in np.unique(kinds):
            rows = np.flatnonzero(kinds == kind)
            for head, chosen in self.bot.act(game, tables[rows], seats[rows], rng).items():
                whole = actions.setdefault(head, np.zeros((len(seats), *chosen.shape[1:]), chosen.dtype))
                whole[rows] = chosen
        return actions


class ArrayTables:
    """Base of a `GameBatch` that writes the arrays of its view itself."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self.view = TableView.allocate(spec, num_tables)
        self.view.over[:] = True  # no table can be stepped before its first reset

    def close(self) -> None:
        """Tables in memory have nothing to release."""

    def _require_legal(
        self, head: str, tables: IntArray, columns: Array, chosen: Array, *, kind: int = 0, counts: Array | bool = True
    ) -> None:
        """Raise `ValueError` for the first of the chosen options that counts and is illegal. The arrays broadcast."""
        num, mask = self.spec.kinds[kind].num_options(head), self.view.legal[kind].get(head)
        legal = (chosen >= 0) & (chosen < num)
        if mask is not None:  # `take` of the flat mask is several times faster than an index of three arrays
            legal &= mask.reshape(-1).take((tables * mask.shape[1] + columns) * num + chosen, mode="clip")
        illegal = np.greater(counts, legal)
        if illegal.any():
            row = tuple(np.argwhere(illegal)[0])
            table, column = (np.broadcast_to(index, chosen.shape)[row] for index in (tables, columns))
            options = f"0 to {num - 1}" if mask is None else np.flatnonzero(mask[table, column]).tolist()
            raise ValueError(
                f"{self.spec.name}: table {table}, seat {self.spec.seats_of_kind[kind][column]}: "
                f"{head} {chosen[row]} is not one of {options}"
            )

    def _require_within_bounds(self, actions: Actions) -> None:
        """Raise `ValueError` for the first number of a `Box` that counts and is NaN or beyond its bounds."""
        require_within_bounds(self.spec, self.view.to_act, actions)

    def _start_episodes(self, tables: IntArray) -> None:
        """Start an episode in the view: every seat acts, nothing has been paid, nothing has ended."""
        view = self.view
        for array in (view.reward, view.score, view.over, view.truncated, view.clock):
            array[tables] = 0
        view.to_act[tables] = True


class CopiedTables(ArrayTables):
    """Base of an `ArrayTables` whose positions can be copied, because `_state` and the view hold all there is."""

    def _state(self) -> Tree:
        """The game's own arrays [tables, ...]."""
        raise NotImplementedError

    @cached_property
    def _held(self) -> Tree:
        return {**self.view.named(), **self._state()}

    def positions(self, tables: IntArray) -> Tree:
        return take(self._held, tables)

    def set_positions(self, tables: IntArray, positions: Tree) -> None:
        put(self._held, tables, positions)


class Table:
    """A `Game` that plays one table of a `GameSource`; the opposite of `Lifted`.

        with Table(ConnectFour()) as table:
            turn = table.reset(seed=0)
            while not (turn.over or turn.truncated):
                turn = table.step({seat: choose(seat, turn) for seat in turn.observations})

    Many tables at once are faster: see `GameSource.tables`.
    """

    def __init__(self, source: GameSource) -> None:
        self._tables = source.tables(1)

    @property
    def spec(self) -> GameSpec:
        return self._tables.spec

    def reset(self, seed: int) -> Turn:
        """Start an episode."""
        self._tables.reset(_TABLE, np.array([seed], np.uint64))
        return self._turn()

    def step(self, actions: Mapping[Seat, Action]) -> Turn:
        """Play the actions of the seats that must act: an int or an array of numbers each, or head name to these."""
        view, spec = self._tables.view, self.spec
        arrays = allocate_actions(spec, 1)
        waiting = np.flatnonzero(view.to_act[0]).tolist()
        if set(actions) != set(waiting):
            raise ValueError(f"{spec.name}: seats {waiting} must act, got actions of seats {sorted(actions)}")
        for seat, action in actions.items():
            heads = arrays[spec.seats[seat]]
            given = action if isinstance(action, Mapping) else {next(iter(heads)): action}
            if set(given) != set(heads):
                raise ValueError(f"{spec.name}, seat {seat}: an action has the heads {list(heads)}, got {list(given)}")
            for name, value in given.items():
                row = heads[name][0, spec.column_of_seat[seat], ...]
                if np.shape(value) != row.shape:
                    wanted = f"{row.dtype}{list(row.shape)}" if row.ndim else "a number"
                    raise ValueError(f"{spec.name}, seat {seat}: head {name!r} takes {wanted}, got {value!r}")
                row[...] = value
        self._tables.step(arrays)
        return self._turn()

    def close(self) -> None:
        self._tables.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _turn(self) -> Turn:
        """A copy of what the table shows, which stays as it is after the next step."""
        view, spec = self._tables.view, self.spec
        over, truncated = bool(view.over[0]), bool(view.truncated[0])
        shown = range(spec.num_seats) if truncated else np.flatnonzero(view.to_act[0]).tolist()
        observations: dict[Seat, Observation] = {}
        legal: dict[Seat, Legal] = {}
        for seat in shown:
            kind, column = spec.seats[seat], spec.column_of_seat[seat]
            seen, masks = (
                {name: array[0, column, ...].copy() for name, array in tree.items()}
                for tree in (view.observation[kind], view.legal[kind])
            )
            observations[seat] = _alone(
                {name: array for name, array in seen.items() if not name.startswith(CRITIC_PREFIX)}
            )
            if masks:
                legal[seat] = _alone(masks) if len(spec.kinds[kind].action.heads) == 1 else masks
        return Turn(
            observations=observations,
            legal=legal,
            reward=view.reward[0].tolist(),
            over=over,
            truncated=truncated,
            score=view.score[0].tolist() if over or truncated else None,
            clock=int(view.clock[0]),
        )


def _alone(tree: Tree) -> Observation:
    """The array itself where there is only one."""
    return next(iter(tree.values())) if len(tree) == 1 else tree
