"""The recorder: decisions and rewards of the learning seats, cut into trajectories for their learners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ludus.data.search import SEARCH_POLICY
from ludus.data.specs import ArraySpec, GameSpec
from ludus.data.trajectory import SlotPool, TrajectoryWriter
from ludus.data.trees import Array, IntArray, Tree, allocate, put, take, under
from ludus.games.game import TableView
from ludus.workers.inference import ActingRows, InferenceResult
from ludus.workers.seating import Seating


class SeatMemory:
    """Memory of the policies, by (table, column among the seats of a kind). It changes when a decision is played."""

    def __init__(self, kinds: Sequence[tuple[Mapping[str, ArraySpec], tuple[int, int]]]) -> None:
        """Per kind of seat: the arrays of one row, and (tables, seats of the kind)."""
        self._next = tuple(allocate(specs, leading) for specs, leading in kinds)
        self._before_latest = tuple(allocate(specs, leading) for specs, leading in kinds)
        self._made: list[tuple[int, tuple[IntArray, IntArray], Tree]] = []

    def read(self, kind: int, tables: IntArray, columns: IntArray) -> Tree:
        return take(self._next[kind], (tables, columns))

    def made(self, kind: int, tables: IntArray, columns: IntArray, after: Tree) -> None:
        if after:
            self._made.append((kind, (tables, columns), after))

    def forget_made(self) -> None:
        """The decisions since the last `commit` are made again."""
        self._made.clear()

    def commit(self) -> None:
        """The decisions that were made are played."""
        for kind, at, after in self._made:
            put(self._before_latest[kind], at, take(self._next[kind], at))
            put(self._next[kind], at, after)
        self._made.clear()

    def before_decision(self, kind: int, tables: IntArray, columns: IntArray, to_act: NDArray[np.bool_]) -> Tree:
        """Before each row's latest decision; that of a row which is `to_act` is made but not yet played."""
        at = (tables, columns)
        return {
            name: np.where(to_act.reshape(-1, *(1,) * (array.ndim - 2)), array[at], self._before_latest[kind][name][at])
            for name, array in self._next[kind].items()
        }

    def reset(self, tables: IntArray) -> None:
        for tree in self._next:
            for array in tree.values():
                array[tables] = 0

    def save(self) -> Tree:
        saved: Tree = {}
        for kind, (after, before) in enumerate(zip(self._next, self._before_latest, strict=True)):
            saved |= {f"state.{kind}.{name}": array for name, array in after.items()}
            saved |= {f"before.{kind}.{name}": array for name, array in before.items()}
        return saved

    def load(self, saved: Mapping[str, Array]) -> None:
        for kind, (after, before) in enumerate(zip(self._next, self._before_latest, strict=True)):
            put(after, ..., under(f"state.{kind}.", saved))
            put(before, ..., under(f"before.{kind}.", saved))


class StreamNumbers:
    """Numbers of trajectory streams. A stream follows its side through the rotation of seats, over several episodes."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self._num_tables = num_tables
        self._sides = spec.num_teams
        self._place = np.zeros(spec.num_seats, np.int64)
        self._places = [0] * len(spec.kinds)
        self._seats_of_kind = tuple(np.array(seats) for seats in spec.seats_of_kind)
        for team in spec.seats_of_team:
            seen = [0] * len(spec.kinds)
            for seat in team:
                kind = spec.seats[seat]
                self._place[seat] = seen[kind]
                seen[kind] += 1
                self._places[kind] = max(self._places[kind], seen[kind])

    def count(self, kind: int) -> int:
        return self._num_tables * self._sides * self._places[kind]

    def of(self, kind: int, tables: IntArray, seats: IntArray, sides: IntArray) -> IntArray:
        return (tables * self._sides + sides) * self._places[kind] + self._place[seats]

    def places(self, kind: int, streams: IntArray, side_of_seat: IntArray) -> tuple[IntArray, IntArray]:
        """(table, seat) where each stream sits now; any seat for one whose side has none of the kind now."""
        place = streams % self._places[kind]
        side = streams // self._places[kind] % self._sides
        tables = streams // (self._places[kind] * self._sides)
        seats_of_kind = self._seats_of_kind[kind]
        is_side = side_of_seat[tables][:, seats_of_kind] == side[:, None]
        fits = is_side & (self._place[seats_of_kind] == place[:, None])
        return tables, seats_of_kind[fits.argmax(1)]


class TrajectoryClient(Protocol):
    """Where trajectories go: the learner that hosts the player, or a client of it."""

    def put(self, player: str, kind: int, slots: IntArray) -> None: ...
    def complete(self, player: str) -> None:
        """A hand-over has ended: all that belongs to it has been put."""


class CutShort(NamedTuple):
    """Streams of one kind whose episodes were truncated, and the places that they come from."""

    kind: int
    streams: IntArray
    tables: IntArray
    columns: IntArray


class SeatRecorder:
    """Writes a stream of trajectories for each learning seat; the seating says which seats learn."""

    def __init__(
        self,
        spec: GameSpec,
        seating: Seating,
        pools: Sequence[SlotPool],
        trajectories: TrajectoryClient,
        slots: Sequence[range] | None,
    ) -> None:
        """`slots`: per kind, the trajectory slots that may be used; None: all."""
        self._seating = seating
        self._seats = tuple(np.array(seats) for seats in spec.seats_of_kind)
        self._column_of_seat = np.array(spec.column_of_seat)
        self._timed = spec.timed
        self._streams = StreamNumbers(spec, len(seating.owner_of_seat))
        self._pools = pools
        self.writers = tuple(
            TrajectoryWriter(
                pool, self._streams.count(kind), self._handing_over(kind), None if slots is None else slots[kind]
            )
            for kind, pool in enumerate(pools)
        )
        self._trajectories = trajectories
        self._collected: dict[int, int] = {}
        """Decisions of each learning player (by number) since its last hand-over."""

    @property
    def has_room(self) -> bool:
        """Whether there are slots for whatever the next step may need: one more for each stream."""
        return all(writer.num_free >= len(writer.owner) for writer in self.writers)

    @property
    def dropped_reward(self) -> float:
        """Sum of |reward| that came before a learning seat's first decision of an episode."""
        return sum(writer.dropped_reward for writer in self.writers)

    def free(self, kind: int, slots: IntArray) -> None:
        """The learner has used these slots."""
        self.writers[kind].free(slots)

    def record(
        self,
        rows: ActingRows,
        answer: InferenceResult,
        tables: IntArray,
        columns: IntArray,
        view: TableView,
        *,
        again: bool,
    ) -> None:
        """Record the decisions of learning seats. `again`: they replace decisions that were not played."""
        kind = rows.kind
        seats = self._seats[kind][columns]
        owners = self._seating.owner_of_seat[tables, seats]
        trained = _span(owners >= 0)
        if trained is None:
            return
        tables, seats, owners = tables[trained], seats[trained], owners[trained]
        self.writers[kind].record(
            self._of(kind, tables, seats),
            take(_columns(rows, answer), trained),
            take(rows.state, trained),
            self._clock(view, tables),
            replace=again,
        )
        if not again:
            for owner, count in enumerate(np.bincount(owners).tolist()):
                if count:
                    self._collected[owner] = self._collected.get(owner, 0) + count

    def credit(self, view: TableView) -> None:
        """Add the rewards of a step to the open decisions of learning seats."""
        trains = self._seating.owner_of_seat >= 0
        for kind, seats_of_kind in enumerate(self._seats):
            rewards = view.rewards[kind]
            earned = view.reward[:, seats_of_kind] != 0
            if rewards.shape[-1]:
                earned |= rewards.any(-1)
            tables, columns = np.nonzero(trains[:, seats_of_kind] & earned)
            if len(tables):
                seats = seats_of_kind[columns]
                further = rewards[tables, columns] if rewards.shape[-1] else None
                self.writers[kind].credit(self._of(kind, tables, seats), view.reward[tables, seats], further)

    def end(self, ended: IntArray, view: TableView) -> Iterator[CutShort]:
        """End the episodes at these tables. Yields the truncated ones, which need a bootstrap value."""
        trains = self._seating.owner_of_seat[ended] >= 0
        for kind, seats_of_kind in enumerate(self._seats):
            rows, columns = np.nonzero(trains[:, seats_of_kind])
            if not len(rows):
                continue
            tables, seats = ended[rows], seats_of_kind[columns]
            streams = self._of(kind, tables, seats)
            over = view.over[tables]
            self.writers[kind].end(streams[over])
            cut = ~over & self.writers[kind].open[streams]
            if cut.any():
                yield CutShort(kind, streams[cut], tables[cut], columns[cut])

    def truncate(self, cut: CutShort, rows: ActingRows, answer: InferenceResult, view: TableView) -> None:
        """The value of the last observation stands for the future that was cut."""
        columns = _columns(rows, answer)
        self.writers[cut.kind].truncate(cut.streams, columns, self._clock(view, cut.tables))

    def drop(self, tables: IntArray) -> None:
        """Drop what is open at these tables: it is not trained on."""
        for kind, (_, _, streams) in enumerate(self._everybody(tables)):
            self.writers[kind].drop(streams)

    def renew_owners(self, tables: IntArray) -> None:
        """Between two episodes: hand over the trajectories of players that no longer learn at these tables."""
        for writer, (here, seats, streams) in zip(self.writers, self._everybody(tables), strict=True):
            owners = self._seating.owner_of_seat[here, seats]
            changed = writer.owner[streams] != owners
            if changed.any():
                writer.flush(streams[changed], {})  # between episodes nothing is open: no memory is needed
                writer.owner[streams[changed]] = owners[changed]

    def hand_over(self, after: int | Mapping[str, int], memory: SeatMemory, view: TableView) -> bool:
        """Hand over all trajectories of every player with at least `after` decisions. Returns whether there was one."""
        players = self._seating.player_ids
        due = [
            owner
            for owner, count in self._collected.items()
            if count >= (after if isinstance(after, int) else after[players[owner]])
        ]
        for owner in due:
            for kind, writer in enumerate(self.writers):
                streams = np.nonzero(writer.owner == owner)[0]
                tables, seats = self._streams.places(kind, streams, self._seating.side_of_seat)
                to_act = view.to_act[tables, seats]
                state = memory.before_decision(kind, tables, self._column_of_seat[seats], to_act)
                writer.flush(streams, state)
            self._collected[owner] = 0
            self._trajectories.complete(players[owner])
        return bool(due)

    def _handing_over(self, kind: int) -> Callable[[int, IntArray], None]:
        return lambda owner, slots: self._trajectories.put(self._seating.player_ids[owner], kind, slots)

    def _of(self, kind: int, tables: IntArray, seats: IntArray) -> IntArray:
        return self._streams.of(kind, tables, seats, self._seating.side_of_seat[tables, seats])

    def _everybody(self, tables: IntArray) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Per kind: table, seat and stream of every seat at these tables."""
        for kind, seats_of_kind in enumerate(self._seats):
            here = np.repeat(tables, len(seats_of_kind))
            seats = np.tile(seats_of_kind, len(tables))
            yield here, seats, self._of(kind, here, seats)

    def _clock(self, view: TableView, tables: IntArray) -> IntArray | None:
        return view.clock[tables] if self._timed else None

    def save(self) -> tuple[Tree, dict[str, Any]]:
        saved: Tree = {}
        for kind, (writer, pool) in enumerate(zip(self.writers, self._pools, strict=True)):
            saved |= {f"writer.{kind}.{name}": array for name, array in writer.save().items()}
            saved |= {f"rows.{kind}.{name}": array for name, array in pool.rows.items()}
            saved |= {f"slots.{kind}.{name}": array for name, array in pool.slots.items()}
        return saved, {str(owner): count for owner, count in self._collected.items()}

    def load(self, saved: Mapping[str, Array], collected: Mapping[str, int]) -> None:
        for kind, (writer, pool) in enumerate(zip(self.writers, self._pools, strict=True)):
            writer.load(under(f"writer.{kind}.", saved))
            put(pool.rows, ..., under(f"rows.{kind}.", saved))
            put(pool.slots, ..., under(f"slots.{kind}.", saved))
        self._collected = {int(owner): count for owner, count in collected.items()}


def _columns(rows: ActingRows, answer: InferenceResult) -> Tree:
    acted = answer.acted
    return {
        **{f"observation.{name}": array for name, array in rows.observation.items()},
        **{f"legal.{name}": array for name, array in rows.legal.items()},
        **{f"action.{name}": array for name, array in acted.action.items()},
        "log_prob": acted.log_prob,
        "value": acted.value,
        "version": answer.version,
        **({} if answer.search_policy is None else {SEARCH_POLICY: answer.search_policy}),
    }


def _span(chosen: NDArray[np.bool_]) -> IntArray | slice | None:
    """An index for the chosen rows; a slice where they lie side by side, as mostly, which copies nothing."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return None
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows
