"""Seats that share a policy: regroups the seats of a game, one kind of seat for each policy.

A player has one policy for each kind of seat, so networks, trajectories and learners follow the kinds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ArraySpec, GameSpec, patterns_of_seats
from ludus.data.trees import IntArray, Tree, allocate, put, take
from ludus.games.game import Actions, Bot, GameBatch, GameSource, HasPositions, allocate_actions
from ludus.games.tables import InnerBot, WrappedGame, WrappedTables

Grouping = Literal["shared", "per_seat", "per_place"]
SeatPolicies = Grouping | Mapping[str, str]
"""The policy of a player that acts for a seat.

"shared": one policy for all seats of a kind. "per_seat": one for every seat of the game. "per_place": one for every
place in a team, for all teams. Or pattern -> policy: the first pattern counts that matches one of the seat's names:
`team1/seat0` (its place in its team), `seat2` (in the whole game), or the name of its kind.
"""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def group_seats(game: GameSource, policies: SeatPolicies) -> GameSource:
    """The game with one kind of seat for each policy; the game itself if seats share by kind."""
    return game if policies == "shared" else SeatGroups(game, policies)


def seat_names(spec: GameSpec) -> tuple[tuple[str, str, str], ...]:
    """Per seat, the names that patterns are matched with."""
    return tuple(
        (f"team{team}/seat{spec.seats_of_team[team].index(seat)}", f"seat{seat}", spec.kinds[spec.seats[seat]].name)
        for seat, team in enumerate(spec.teams)
    )


def policy_of_seat(spec: GameSpec, policies: SeatPolicies) -> tuple[str, ...]:
    names = seat_names(spec)
    if isinstance(policies, Mapping):
        return _by_pattern(spec, policies)
    if policies == "shared":
        return tuple(kind for _, _, kind in names)
    if policies == "per_seat":
        return tuple(seat for _, seat, _ in names)
    if policies == "per_place":
        return tuple(f"{kind}_{place.rpartition('/seat')[2]}" for place, _, kind in names)
    raise ValueError(
        f"policies must be one of {', '.join(get_args(Grouping))}, or patterns of seats with the names of "
        f"their policies, got {policies!r}"
    )


def _by_pattern(spec: GameSpec, policies: Mapping[str, str]) -> tuple[str, ...]:
    for policy in policies.values():
        if not _NAME.fullmatch(policy):
            raise ValueError(
                f"policies: {policy!r} is no name for a policy: use ASCII letters, digits, '_', '-' and '.', "
                "and do not start with '-' or '.'"
            )
    chosen = patterns_of_seats(policies, seat_names(spec), f"policies for {spec.name}")
    return tuple(policies[pattern] for pattern in chosen)


def _grouped(spec: GameSpec, policies: SeatPolicies) -> GameSpec:
    policy_of = policy_of_seat(spec, policies)
    names = list(dict.fromkeys(policy_of))
    firsts = [policy_of.index(name) for name in names]
    for seat, policy in enumerate(policy_of):
        first = policy_of.index(policy)
        one, other = (spec.kinds[spec.seats[place]] for place in (first, seat))
        if replace(one, name=other.name) != other:
            one_place, other_place = (seat_names(spec)[place][0] for place in (first, seat))
            raise ValueError(
                f"policies: {policy!r} cannot act for both {one_place} ({one.name}) and {other_place} "
                f"({other.name}) of {spec.name}: they see or do different things"
            )
    kinds = tuple(replace(spec.kinds[spec.seats[first]], name=name) for name, first in zip(names, firsts, strict=True))
    seats = tuple(names.index(policy) for policy in policy_of)
    return replace(spec, kinds=kinds, seats=seats, team_roles=spec.roles)  # policies are no roles of the game


@dataclass(frozen=True)
class SeatGroups(WrappedGame):
    """A `GameSource` that wraps another one, with one kind of seat for each policy."""

    policies: SeatPolicies

    @cached_property
    def spec(self) -> GameSpec:
        return _grouped(self.game.spec, self.policies)

    def tables(self, num_tables: int) -> GameBatch:
        return GroupedTables(self.spec, self.game.tables(num_tables))

    def bots(self) -> Mapping[str, Bot]:
        return {name: InnerBot(bot) for name, bot in self.game.bots().items()}


_Columns = tuple[slice, slice | list[int]]  # an index of all tables and some columns


@dataclass(frozen=True)
class _Part:
    """The columns of a group that belong to one kind of the game."""

    kind: int
    source: _Columns
    target: _Columns


class GroupedTables(WrappedTables):
    """A `GameBatch` with another one's arrays by group. A group of evenly spaced columns of one kind, nearly every
    group, is a view of them; other groups are copied after each step."""

    def __init__(self, spec: GameSpec, game: GameBatch) -> None:
        super().__init__(game, spec)
        self._groups = tuple(_parts(game.spec, seats) for seats in spec.seats_of_kind)
        self._actions = allocate_actions(game.spec, game.num_tables)
        self._copies: list[tuple[Tree, tuple[Tree, ...], tuple[_Part, ...]]] = []
        rewards = tuple({"": array} for array in game.view.rewards)
        sizes = [{"": ArraySpec(shape=(len(kind.rewards),), dtype=np.dtype(np.float32))} for kind in spec.kinds]
        self.view = replace(
            game.view,
            observation=self._shown(game.view.observation, [kind.observation.arrays for kind in spec.kinds]),
            legal=self._shown(game.view.legal, [kind.legal_arrays for kind in spec.kinds]),
            rewards=tuple(tree[""] for tree in self._shown(rewards, sizes)),
        )
        if isinstance(game, HasPositions):
            self.set_positions = self._set_positions

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self.game.reset(tables, seeds)
        self._copy()

    def _set_positions(self, tables: IntArray, positions: Tree) -> None:
        assert isinstance(self.game, HasPositions)
        self.game.set_positions(tables, positions)
        self._copy()

    def step(self, actions: Actions) -> None:
        for parts, chosen in zip(self._groups, actions, strict=True):
            for part in parts:
                put(self._actions[part.kind], part.source, take(chosen, part.target))
        self.game.step(self._actions)
        self._copy()

    def _shown(self, sources: tuple[Tree, ...], specs: Sequence[Mapping[str, ArraySpec]]) -> tuple[Tree, ...]:
        """The arrays of each group, from those of the game by kind."""
        shown: list[Tree] = []
        for group, parts in enumerate(self._groups):
            part = parts[0]
            if len(parts) == 1 and isinstance(part.source[1], slice):
                shown.append(take(sources[part.kind], part.source))
            else:
                seats = self.spec.seats_of_kind[group]
                shown.append(allocate(specs[group], (self.num_tables, len(seats))))
                self._copies.append((shown[-1], sources, parts))
        return tuple(shown)

    def _copy(self) -> None:
        for target, sources, parts in self._copies:
            for part in parts:
                put(target, part.target, take(sources[part.kind], part.source))


def _parts(spec: GameSpec, seats: Sequence[int]) -> tuple[_Part, ...]:
    parts = []
    for kind in dict.fromkeys(spec.seats[seat] for seat in seats):
        here = [column for column, seat in enumerate(seats) if spec.seats[seat] == kind]
        columns = [spec.column_of_seat[seats[column]] for column in here]
        parts.append(_Part(kind, _index(columns), _index(here)))
    return tuple(parts)


def _index(columns: list[int]) -> _Columns:
    """An index of columns; evenly spaced ones give a slice, which copies nothing."""
    step = columns[1] - columns[0] if len(columns) > 1 else 1
    evenly = range(columns[0], columns[-1] + 1, step)
    return slice(None), slice(evenly.start, evenly.stop, step) if columns == list(evenly) else columns
