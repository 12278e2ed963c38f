"""Interfaces: `Game` (one table, plain Python), `GameBatch` (many tables, arrays in place), `GameSource` and `Bot`.

Actors know only `GameBatch`; `games/lift.py` turns a `Game` into one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import ExactTree, TreeState
from ludus.data.specs import GameSpec
from ludus.data.trees import Array, IntArray, Tree, allocate

Seat = int
NewArray = Callable[[tuple[int, ...], np.dtype[Any]], Array]
Observation = Mapping[str, Array] | Array
"""Part name -> array; a game with a single part may return just its array."""
Legal = Mapping[str, Array] | Array
"""Head name -> bool mask; a game with one head may return just the mask."""
Action = Any
"""An int for a game with a single one-number head, a float32 array [size] for one with a single `Box`; else head name
-> int or array."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """The result of `reset` and `step` of a `Game`."""

    observations: Mapping[Seat, Observation]
    """Observations of the seats that must act now; after a truncation, of every seat that has acted (to bootstrap)."""
    legal: Mapping[Seat, Legal] = field(default_factory=dict)
    """Masks of those seats; a seat without a mask may choose any option."""
    reward: Mapping[Seat, float] | Sequence[float] = ()
    """Rewards since the previous turn, for any seat, whether or not it acted."""
    rewards: Mapping[Seat, Sequence[float]] = field(default_factory=dict)
    """Further rewards since the previous turn, in the order of the seat's `SeatKind.rewards`."""
    over: bool = False
    """The episode ended by the rules: nothing follows, draws included."""
    truncated: bool = False
    """The episode was cut off: the future still has value."""
    score: Sequence[float] | None = None
    """Final score per team, when over or truncated."""
    clock: int = 0
    """Game time; read only if the spec is `timed`."""


class Game(Protocol):
    """One table in plain Python."""

    @property
    def spec(self) -> GameSpec: ...
    def reset(self, seed: int) -> Turn: ...
    def step(self, actions: Mapping[Seat, Action]) -> Turn: ...


@dataclass(frozen=True, slots=True)
class TableView:
    """The arrays of a `GameBatch`, allocated once and written in place.

    Per-kind trees are indexed by kind and hold arrays [tables, seats of that kind, ...].
    The rows of tables that are over or truncated stay as they are until `reset`.
    """

    observation: tuple[Tree, ...]
    legal: tuple[Tree, ...]
    to_act: NDArray[np.bool_]
    """[tables, seats]: whether a seat must act now; all False at a table that is over or truncated."""
    reward: NDArray[np.float32]
    """[tables, seats]: reward of the latest `step` only."""
    over: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    score: NDArray[np.float32]
    """[tables, teams]: final score, meaningful when over or truncated."""
    clock: NDArray[np.int64]
    """[tables]: game time since reset, for timed games."""
    rewards: tuple[NDArray[np.float32], ...]
    """Per kind [tables, seats of that kind, further rewards]: of the latest `step` only, like `reward`."""

    @classmethod
    def allocate(cls, spec: GameSpec, num_tables: int, new: NewArray = np.zeros) -> TableView:
        """`new` makes a zeroed array from a shape and a dtype."""
        kinds = [(kind, (num_tables, len(seats))) for kind, seats in zip(spec.kinds, spec.seats_of_kind, strict=True)]
        return cls(
            observation=tuple(allocate(kind.observation.arrays, rows, new) for kind, rows in kinds),
            legal=tuple(allocate(kind.legal_arrays, rows, new) for kind, rows in kinds),
            to_act=new((num_tables, spec.num_seats), np.dtype(np.bool_)),
            reward=new((num_tables, spec.num_seats), np.dtype(np.float32)),
            over=new((num_tables,), np.dtype(np.bool_)),
            truncated=new((num_tables,), np.dtype(np.bool_)),
            score=new((num_tables, spec.num_teams), np.dtype(np.float32)),
            clock=new((num_tables,), np.dtype(np.int64)),
            rewards=tuple(new((*rows, len(kind.rewards)), np.dtype(np.float32)) for kind, rows in kinds),
        )

    def named(self) -> Tree:
        """Every array by name, such as `observation[0].board`."""
        named: Tree = {
            f"{part}[{kind}].{name}": array
            for part in ("observation", "legal")
            for kind, tree in enumerate(getattr(self, part))
            for name, array in tree.items()
        }
        named |= {part: getattr(self, part) for part in ("to_act", "reward", "over", "truncated", "score", "clock")}
        return named | {f"rewards[{kind}]": array for kind, array in enumerate(self.rewards)}

    def silence(self, tables: list[int]) -> None:
        """Show that nobody acts and nothing happens at lost tables, whatever was written there last."""
        self.to_act[tables] = self.over[tables] = self.truncated[tables] = False
        for reward in (self.reward, *self.rewards):
            reward[tables] = 0.0


Actions = tuple[Tree, ...]
"""Per kind: head name -> int32 array [tables, seats of that kind, ...], or float32 for a `Box`; rows not `to_act` are
ignored."""


def allocate_actions(spec: GameSpec, num_tables: int, new: NewArray = np.zeros) -> Actions:
    return tuple(
        allocate(kind.action.arrays, (num_tables, len(seats)), new)
        for kind, seats in zip(spec.kinds, spec.seats_of_kind, strict=True)
    )


class GameBatch(Protocol):
    """Many tables stepped together. A table depends only on its seed and its actions."""

    @property
    def spec(self) -> GameSpec: ...
    @property
    def num_tables(self) -> int: ...
    @property
    def view(self) -> TableView: ...
    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        """Start a new episode at these tables; the others are untouched."""

    def step(self, actions: Actions) -> None:
        """Advance every table that is neither over nor truncated until a seat must act or it ends."""

    def close(self) -> None: ...


@runtime_checkable
class HasTrees(Protocol):
    """A `GameBatch` whose tables can be searched as game trees."""

    def tree_state(self, table: int) -> TreeState: ...


@runtime_checkable
class HasPositions(Protocol):
    """A `GameBatch` whose positions can be copied from table to table, so that a network can search ahead."""

    def positions(self, tables: IntArray) -> Tree:
        """A copy of all that the game knows of these tables: arrays with a row for each. The arrays of objects among
        them hold objects that nobody changes."""

    def set_positions(self, tables: IntArray, positions: Tree) -> None:
        """Put positions of any tables of the same game on these tables."""


@runtime_checkable
class HasPicture(Protocol):
    """A `GameBatch` whose tables can be drawn."""

    def render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        """RGB [height, width, 3] of what the seat sees; None: everything."""


PLACE_GRID = 128
"""Cells along a side of the map in the places of a build order."""


@dataclass(frozen=True, slots=True)
class StrategyView:
    """What each seat has built so far; the game writes it in place."""

    build_order: NDArray[np.int16]
    """[tables, seats, places]: the first things built, in order; -1 after the end."""
    built: NDArray[np.bool_]
    """[tables, seats, facts]: whether a thing has been built, or in a certain number."""
    build_place: NDArray[np.int16] | None = None
    """[tables, seats, places]: the cell in which each of the first things was built, `row * PLACE_GRID + column`; -1
    if it has none. None: the game does not say."""

    @property
    def sizes(self) -> tuple[int, int, bool]:
        """Length of a build order, number of facts, and whether there are places."""
        return self.build_order.shape[-1], self.built.shape[-1], self.build_place is not None


@runtime_checkable
class HasStrategy(Protocol):
    """A `GameBatch` in which seats build things, which describe their strategy."""

    @property
    def strategy(self) -> StrategyView: ...


@runtime_checkable
class CanLoseTables(Protocol):
    """A `GameBatch` whose tables run elsewhere (another process, another machine) and can be lost there."""

    @property
    def lost(self) -> Mapping[int, str]:
        """Table -> reason. No seat acts there, the table is neither over nor truncated, and `reset` restores it."""


def lost_tables(game: GameBatch) -> Mapping[int, str]:
    """Table -> reason of its loss; empty for games whose tables cannot be lost."""
    return game.lost if isinstance(game, CanLoseTables) else {}


@runtime_checkable
class HostsBots(Protocol):
    """A `GameBatch` whose tables run elsewhere together with their bots."""

    def bot_act(self, bot: str, tables: IntArray, seats: IntArray, seed: int) -> Tree:
        """`Bot.act` of the bot with this name, with a random generator from the seed."""


class Bot(Protocol):
    """A scripted player. It uses numpy only, so that a machine without torch can run it."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        """Actions for rows (tables[i], seats[i]), all seats of one kind: head -> [rows, ...]."""


@runtime_checkable
class GameSource(Protocol):
    """Makes tables of one game; this is what an experiment holds. Usually a frozen dataclass with the options."""

    @property
    def spec(self) -> GameSpec: ...
    def tables(self, num_tables: int) -> GameBatch: ...
    def bots(self) -> Mapping[str, Bot]:
        """Bots by name; every game has at least `random`."""

    def tree(self) -> TreeState | None:
        """The root of the game tree for exact computations; None if it cannot be walked."""


@runtime_checkable
class HasExactTree(Protocol):
    """A `GameSource` that computes exactly what walking its `tree` would take too long for."""

    def exact_tree(self) -> ExactTree | None: ...


@dataclass(frozen=True, slots=True)
class PositionSet:
    """Positions of one stage of a game, with the exact outcome of every move."""

    name: str
    moves: tuple[tuple[int, ...], ...]
    """Per position, the actions that lead to it from the beginning."""
    scores: NDArray[np.float64]
    """[positions, options]: outcome of each move for the seat to move, if both seats play perfectly from there; NaN
    where it is illegal. Its sign says win, draw or loss; of two wins (losses) the quicker (slower) has the higher."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What a game measures the strength of a single player by."""

    sets: tuple[PositionSet, ...]
    opponents: tuple[str, ...]
    """Bots of the game that a player is also measured against."""


@runtime_checkable
class HasYardstick(Protocol):
    """A `GameSource` with positions whose outcome is known: two seats in turn, one `Choice` head, no chance."""

    def yardstick(self) -> Yardstick: ...


@runtime_checkable
class NeedsMore(Protocol):
    """A `GameSource` that needs programs of the user, such as a server or the game itself."""

    def missing(self, num_tables: int) -> Sequence[str]:
        """What is missing for this many tables, each with the way to provide it. Starts no game."""
