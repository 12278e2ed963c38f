"""What the learning seats of an actor live through, cut into trajectories that go to their learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.trajectory import SlotPool, TrajectoryWriter
from ludus.data.trees import Array, IntArray, Tree, put, take, under
from ludus.games.game import TableView
from ludus.workers.inference import Answer, Rows
from ludus.workers.seat_memory import SeatMemory
from ludus.workers.seating import Seating
from ludus.workers.streams import StreamNumbers


class TrajectoryDesk(Protocol):
    """Where trajectories go: the learner that hosts the player, or a way to it."""

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
    """A stream of trajectories for each seat that learns; who learns at which seat, the seating says."""

    def __init__(
        self,
        spec: GameSpec,
        seating: Seating,
        pools: Sequence[SlotPool],
        trajectories: TrajectoryDesk,
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
                pool,
                self._streams.count(kind),
                self._handing_over(kind),
                None if slots is None else slots[kind],
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

    # --- what happens at the tables ---

    def record(
        self,
        rows: Rows,
        answer: Answer,
        tables: IntArray,
        columns: IntArray,
        view: TableView,
        *,
        again: bool,
    ) -> None:
        """The decisions of those rows that are trained on. `again`: they were made before, and are made
        anew."""
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
        """What the step has brought to those who learn."""
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
        """Episodes that have ended at these tables. Those that were truncated come back: they need the value
        of what was cut."""
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

    def truncate(self, cut: CutShort, rows: Rows, answer: Answer, view: TableView) -> None:
        """The value of the last observation stands for the future that was cut."""
        columns = _columns(rows, answer)
        self.writers[cut.kind].truncate(cut.streams, columns, self._clock(view, cut.tables))

    def drop(self, tables: IntArray) -> None:
        """Nothing of what is open at these tables is trained on."""
        for kind, (_, _, streams) in enumerate(self._everybody(tables)):
            self.writers[kind].drop(streams)

    def renew_owners(self, tables: IntArray) -> None:
        """Between two episodes at these tables: what belongs to who learns no longer here is handed over."""
        for writer, (here, seats, streams) in zip(self.writers, self._everybody(tables), strict=True):
            owners = self._seating.owner_of_seat[here, seats]
            changed = writer.owner[streams] != owners
            if changed.any():
                writer.flush(streams[changed], {})  # between episodes nothing is open: no memory is needed
                writer.owner[streams[changed]] = owners[changed]

    # --- handing over ---

    def hand_over(self, after: int, memory: SeatMemory, view: TableView) -> bool:
        """All trajectories of every player with so many decisions, at once. Whether there was one."""
        due = [owner for owner, count in self._collected.items() if count >= after]
        for owner in due:
            for kind, writer in enumerate(self.writers):
                streams = np.nonzero(writer.owner == owner)[0]
                tables, seats = self._streams.places(kind, streams, self._seating.side_of_seat)
                to_act = view.to_act[tables, seats]
                state = memory.before_decision(kind, tables, self._column_of_seat[seats], to_act)
                writer.flush(streams, state)
            self._collected[owner] = 0
            self._trajectories.complete(self._seating.player_ids[owner])
        return bool(due)

    def _handing_over(self, kind: int) -> Callable[[int, IntArray], None]:
        return lambda owner, slots: self._trajectories.put(self._seating.player_ids[owner], kind, slots)

    # --- places ---

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

    # --- what survives a stop ---

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


def _columns(rows: Rows, answer: Answer) -> Tree:
    """What a trajectory keeps of each row."""
    acted = answer.acted
    return {
        **{f"observation.{name}": array for name, array in rows.observation.items()},
        **{f"legal.{name}": array for name, array in rows.legal.items()},
        **{f"action.{name}": array for name, array in acted.action.items()},
        "log_prob": acted.log_prob,
        "value": acted.value,
        "version": answer.version,
    }


def _span(chosen: NDArray[np.bool_]) -> IntArray | slice | None:
    """An index for the chosen rows; a slice where they lie side by side, as mostly, which copies nothing."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return None
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows
