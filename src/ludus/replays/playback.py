"""Playback: replays are played again at several tables, and watched seats record what they see and do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.replay import Episode, EpisodeFacts, Packed, Replay, column_specs
from ludus.data.specs import Box, GameSpec, SeatKind
from ludus.data.trees import Array, IntArray, Tree, allocate
from ludus.games.bots import head_counts
from ludus.games.game import Actions, GameBatch, GameSource, HasStrategy, StrategyView, allocate_actions
from ludus.games.recording import ViewDigest


class PlaybackError(ValueError):
    """A replay that the game does not play as it was recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedSeat:
    """A seat that is recorded, and which of its decisions to keep."""

    facts: EpisodeFacts
    kept: NDArray[np.bool_]


def play_replays(
    source: GameSource, replays: Sequence[tuple[Replay, Sequence[WatchedSeat]]]
) -> list[tuple[Episode, ...] | PlaybackError]:
    """The episodes of the watched seats, or why a replay failed. Replays are played together, each at its own table.
    Raises `PlaybackError` if one cannot be of this game."""
    game = source.tables(len(replays))
    try:
        playing = {table: ReplayedTable(game.spec, *one) for table, one in enumerate(replays)}
        ended: dict[int, tuple[Episode, ...] | PlaybackError] = {}
        actions, seen = allocate_actions(game.spec, len(replays)), ViewDigest(game.spec, len(replays))
        game.reset(np.arange(len(replays)), np.array([replay.seed for replay, _ in replays], np.uint64))
        while playing:
            for table, one in playing.items():
                try:
                    one.decide(table, game, actions)
                except PlaybackError as error:
                    ended[table] = error
            seen.add(game.view)
            game.step(actions)
            for table, one in playing.items():
                if table not in ended:
                    one.credit(table, game)
                    if game.view.over[table] or game.view.truncated[table]:
                        ended[table] = one.finish(table, game, seen.of(table))
            playing = {table: one for table, one in playing.items() if table not in ended}
    finally:
        game.close()
    return [ended[table] for table in range(len(replays))]


class ReplayedTable:
    """The replay that one table plays."""

    def __init__(self, spec: GameSpec, replay: Replay, watched: Sequence[WatchedSeat]) -> None:
        require_same_game(spec, replay)
        self._replay = replay
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
        self._streams = {one.facts.seat: _Stream(spec, one) for one in watched}
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

    def finish(self, table: int, game: GameBatch, seen: int) -> tuple[Episode, ...] | PlaybackError:
        """The episodes, or the first difference to what was recorded."""
        view, replay = game.view, self._replay
        if self._step != replay.num_steps:
            return PlaybackError(f"it ends after {self._step} steps, not {replay.num_steps}")
        if seen != replay.seen:
            return PlaybackError("the seats see something else")
        score = tuple(view.score[table].tolist())
        if score != replay.score or replay.truncated != (not view.over[table]):
            return PlaybackError(f"it ends with score {score}, not {replay.score}")
        strategy = game.strategy if isinstance(game, HasStrategy) else None
        return tuple(stream.finish(table, game, strategy) for stream in self._streams.values())


class _Stream:
    """One watched seat."""

    def __init__(self, spec: GameSpec, watched: WatchedSeat) -> None:
        self._facts, self._kept = watched.facts, watched.kept
        self._seat = watched.facts.seat
        self._kind = spec.seats[self._seat]
        self._column = spec.column_of_seat[self._seat]
        self._timed = spec.timed
        self._rows = int(watched.kept.sum())
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

    def finish(self, table: int, game: GameBatch, strategy: StrategyView | None) -> Episode:
        columns, cut = self._columns, not game.view.over[table]
        columns["elapsed"][: self._rows] = self._elapsed(int(game.view.clock[table]))
        columns["over"][self._rows - 1] = not cut
        if cut:
            self._look(table, game, self._rows)
            for name, array in columns.items():
                if name.startswith("legal."):
                    array[self._rows] = False  # a bootstrap row has no decision
            columns["elapsed"][self._rows] = 1
        return Episode(
            facts=self._facts,
            columns={name: array[: self._rows + cut] for name, array in columns.items()},
            has_bootstrap=cut,
            build_order=None if strategy is None else strategy.build_order[table, self._seat].copy(),
            built=None if strategy is None else strategy.built[table, self._seat].copy(),
            build_place=None
            if strategy is None or strategy.build_place is None
            else strategy.build_place[table, self._seat].copy(),
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
    """Raises `PlaybackError` unless seats, teams and heads are those of the game, and actions are in range."""
    if len(replay.seats) != spec.num_seats or replay.teams != spec.teams:
        raise PlaybackError(f"it has {len(replay.seats)} seats; {spec.name} has {spec.num_seats}")
    if len(replay.score) != spec.num_teams or len(replay.action) != len(spec.kinds):
        raise PlaybackError(f"its teams or kinds of seat are not those of {spec.name}")
    _, seats = replay.decisions()
    kinds = np.array(spec.seats)[seats]
    for number, (kind, heads) in enumerate(zip(spec.kinds, replay.action, strict=True)):
        if set(heads) != set(kind.action.heads):
            raise PlaybackError(f"its heads are {', '.join(heads)}, not {', '.join(kind.action.heads)}")
        for name, packed in heads.items():
            rows = packed.array()
            if rows.shape != (int((kinds == number).sum()), *kind.action.arrays[name].shape):
                raise PlaybackError(f"head {name!r} has actions of shape {list(rows.shape[1:])}")
            if (rows.dtype.kind == "f") != (name in kind.action.boxes):
                raise PlaybackError(f"head {name!r} has actions of {rows.dtype}")
            if (box := kind.action.boxes.get(name)) is not None:
                _require_within(kind, name, box, heads)
            elif rows.size and not -1 <= int(rows.min()) <= int(rows.max()) < kind.num_options(name):
                raise PlaybackError(f"head {name!r} has actions beyond its {kind.num_options(name)} options")


def _require_within(kind: SeatKind, head: str, box: Box, heads: Mapping[str, Packed]) -> None:
    """Raises `PlaybackError` for a number beyond its bounds in a decision in which the head counts."""
    rows = {name: packed.array() for name, packed in heads.items()}
    counts = head_counts(kind, head, rows, len(rows[head]))
    for row, number in np.argwhere(box.outside(rows[head]) & counts[:, None]).tolist():
        raise PlaybackError(f"decision {row}: head {head!r} is {box.refusal(rows[head][row, number], number)}")
