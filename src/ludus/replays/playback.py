"""Playback: replays are played again at several tables, and watched seats record what they see and do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.replay import Replay, column_specs
from ludus.data.specs import GameSpec, SeatKind
from ludus.data.trees import Array, IntArray, Tree, allocate
from ludus.games.game import Actions, GameBatch, HasStrategy, StrategyView, allocate_actions
from ludus.games.recording import ViewDigest


class PlaybackError(ValueError):
    """A replay that the game does not play as it was recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatPlan:
    """A seat to watch, and which of its decisions to keep."""

    seat: int
    kept: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatView:
    """The observations and actions of a watched seat; see `data.replay.Episode`."""

    seat: int
    columns: Tree
    has_bootstrap: bool
    build_order: NDArray[np.int16] | None
    built: NDArray[np.bool_] | None


class Playback:
    """Tables that play replays again. Give a free table a replay with `start`, then `step` all tables."""

    def __init__(self, game: GameBatch) -> None:
        self.game = game
        self._actions = allocate_actions(game.spec, game.num_tables)
        self._seen = ViewDigest(game.spec, game.num_tables)
        self._tables: list[_Table | None] = [None] * game.num_tables

    @property
    def free(self) -> list[int]:
        return [table for table, playing in enumerate(self._tables) if playing is None]

    def start(self, table: int, replay: Replay, plans: Sequence[SeatPlan]) -> None:
        """Raises `PlaybackError` if the replay cannot be one of this game."""
        self._tables[table] = None
        playing = _Table(self.game.spec, replay, plans)
        self.game.reset(np.array([table]), np.array([replay.seed], np.uint64))
        self._seen.reset(np.array([table]))
        self._tables[table] = playing

    def step(self) -> dict[int, tuple[SeatView, ...] | PlaybackError]:
        """Step all tables. Returns, by table, the views of a replay that has ended or the error that ended it."""
        view = self.game.view
        ended: dict[int, tuple[SeatView, ...] | PlaybackError] = {}
        for table, playing in enumerate(self._tables):
            if playing is not None:
                try:
                    playing.decide(table, self.game, self._actions)
                except PlaybackError as error:
                    ended[table] = error
        self._seen.add(view)
        self.game.step(self._actions)
        for table, playing in enumerate(self._tables):
            if playing is None or table in ended:
                continue
            playing.credit(table, self.game)
            if view.over[table] or view.truncated[table]:
                try:
                    ended[table] = playing.finish(table, self.game, self._seen.of(table))
                except PlaybackError as error:
                    ended[table] = error
        for table in ended:
            self._tables[table] = None
        return ended


class _Table:
    """The replay that one table plays."""

    def __init__(self, spec: GameSpec, replay: Replay, plans: Sequence[SeatPlan]) -> None:
        require_same_game(spec, replay)
        self._replay = replay
        self._spec = spec
        step, self._seat = replay.decisions()
        self._until = np.searchsorted(step, np.arange(replay.num_steps + 1)).tolist()
        """By step: number of decisions before it."""
        self._heads = [{head: packed.array() for head, packed in heads.items()} for heads in replay.action]
        kind_of = np.array(spec.seats)[self._seat]
        place = np.zeros(len(kind_of), np.int64)
        for kind in range(len(spec.kinds)):
            place[kind_of == kind] = np.arange((kind_of == kind).sum())
        self._decisions = list(
            zip(
                self._seat.tolist(),
                kind_of.tolist(),
                np.array(spec.column_of_seat)[self._seat].tolist(),
                place.tolist(),
                strict=True,
            )
        )
        self._streams = {plan.seat: _Stream(spec, plan) for plan in plans}
        self._step = 0

    def decide(self, table: int, game: GameBatch, actions: Actions) -> None:
        """Write the actions of this step, and record the observations of watched seats."""
        if self._step >= self._replay.num_steps:
            raise PlaybackError(f"it goes on after its {self._replay.num_steps} recorded steps")
        start, stop = self._until[self._step], self._until[self._step + 1]
        expected = sorted(self._seat[start:stop].tolist())
        acting = np.flatnonzero(game.view.to_act[table]).tolist()
        if acting != expected:
            raise PlaybackError(f"at step {self._step} seats {acting} must act, but {expected} did")
        for seat, kind, column, place in self._decisions[start:stop]:
            for head, rows in self._heads[kind].items():
                actions[kind][head][table, column] = rows[place]
            stream = self._streams.get(seat)
            if stream is not None:
                stream.see(table, game, {head: rows[place] for head, rows in self._heads[kind].items()})
        self._step += 1

    def credit(self, table: int, game: GameBatch) -> None:
        for stream in self._streams.values():
            stream.credit(table, game)

    def finish(self, table: int, game: GameBatch, seen: int) -> tuple[SeatView, ...]:
        """Raises `PlaybackError` if anything differs from what was recorded."""
        view, replay = game.view, self._replay
        if self._step != replay.num_steps:
            raise PlaybackError(f"it ends after {self._step} steps, not {replay.num_steps}")
        if seen != replay.seen:
            raise PlaybackError("the seats see something else")
        score = tuple(view.score[table].tolist())
        if score != replay.score or replay.truncated != (not view.over[table]):
            raise PlaybackError(f"it ends with score {score}, not {replay.score}")
        strategy = game.strategy if isinstance(game, HasStrategy) else None
        return tuple(stream.finish(table, game, strategy) for stream in self._streams.values())


class _Stream:
    """One watched seat."""

    def __init__(self, spec: GameSpec, plan: SeatPlan) -> None:
        self._seat, self._kept = plan.seat, plan.kept
        self._kind = spec.seats[plan.seat]
        self._column = spec.column_of_seat[plan.seat]
        self._timed = spec.timed
        self._rows = int(plan.kept.sum())
        self._columns = allocate(column_specs(spec.kinds[self._kind]), (self._rows + 1,))
        self._clock = np.zeros(self._rows, np.int64)
        self._decision = 0
        self._row = -1
        """The latest kept decision."""

    def see(self, table: int, game: GameBatch, action: Mapping[str, Array]) -> None:
        kept = self._kept[self._decision]
        self._decision += 1
        if not kept:
            return
        self._row += 1
        self._look(table, game, self._row)
        for head, value in action.items():
            self._columns[f"action.{head}"][self._row] = value
        self._clock[self._row] = game.view.clock[table]

    def credit(self, table: int, game: GameBatch) -> None:
        """Add the reward of this step to the latest kept decision."""
        if self._row < 0:
            return
        self._columns["reward"][self._row] += game.view.reward[table, self._seat]
        if "rewards" in self._columns:
            self._columns["rewards"][self._row] += game.view.rewards[self._kind][table, self._column]

    def finish(self, table: int, game: GameBatch, strategy: StrategyView | None) -> SeatView:
        columns, cut = self._columns, not game.view.over[table]
        columns["elapsed"][: self._rows] = self._elapsed(int(game.view.clock[table]))
        columns["over"][self._rows - 1] = not cut
        if cut:
            self._look(table, game, self._rows)
            for name, array in columns.items():
                if name.startswith("legal."):
                    array[self._rows] = False  # a bootstrap row has no decision
            columns["elapsed"][self._rows] = 1
        return SeatView(
            seat=self._seat,
            columns={name: array[: self._rows + cut] for name, array in columns.items()},
            has_bootstrap=cut,
            build_order=None if strategy is None else strategy.build_order[table, self._seat].copy(),
            built=None if strategy is None else strategy.built[table, self._seat].copy(),
        )

    def _look(self, table: int, game: GameBatch, row: int) -> None:
        for name, array in game.view.observation[self._kind].items():
            self._columns[f"observation.{name}"][row] = array[table, self._column]
        for name, array in game.view.legal[self._kind].items():
            self._columns[f"legal.{name}"][row] = array[table, self._column]

    def _elapsed(self, end: int) -> IntArray:
        """Time from each kept decision to the next, across those that were left out."""
        if self._timed:
            return np.diff(np.append(self._clock, end))
        return np.diff(np.append(np.flatnonzero(self._kept), len(self._kept)))


def decisions_of_seat(spec: GameSpec, replay: Replay, seat: int) -> Tree:
    """The actions of one seat in order, by head. The replay must be one of this game."""
    kind = spec.seats[seat]
    _, seats = replay.decisions()
    own = seats[np.isin(seats, spec.seats_of_kind[kind])] == seat
    return {head: packed.array()[own] for head, packed in replay.action[kind].items()}


def require_same_game(spec: GameSpec, replay: Replay) -> None:
    """Raises `PlaybackError` unless seats, teams and heads are those of the game."""
    if len(replay.seats) != spec.num_seats or replay.teams != spec.teams:
        raise PlaybackError(f"it has {len(replay.seats)} seats; {spec.name} has {spec.num_seats}")
    if len(replay.score) != spec.num_teams or len(replay.action) != len(spec.kinds):
        raise PlaybackError(f"its teams or kinds of seat are not those of {spec.name}")
    _, seats = replay.decisions()
    kinds = np.array(spec.seats)[seats]
    for number, (kind, heads) in enumerate(zip(spec.kinds, replay.action, strict=True)):
        _require_same_heads(
            kind, {head: packed.array() for head, packed in heads.items()}, int((kinds == number).sum())
        )


def _require_same_heads(kind: SeatKind, heads: Mapping[str, Array], decisions: int) -> None:
    if set(heads) != set(kind.action.heads):
        raise PlaybackError(f"its heads are {', '.join(heads)}, not {', '.join(kind.action.heads)}")
    for name, rows in heads.items():
        if rows.shape != (decisions, *kind.action.arrays[name].shape):
            raise PlaybackError(f"head {name!r} has actions of shape {list(rows.shape[1:])}")
        if rows.size and not -1 <= int(rows.min()) <= int(rows.max()) < kind.num_options(name):
            raise PlaybackError(f"head {name!r} has actions beyond its {kind.num_options(name)} options")
