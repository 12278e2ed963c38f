"""The buffer of one learning player: its trajectories that wait for the learner, and the lead of each actor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.data.trajectory import SlotPool
from ludus.data.trees import IntArray
from ludus.workers.buffer_worker import Recomputing

_KIND, _SLOT, _ACTOR, _DECISIONS, _VERSION, _USES = range(6)
"""Columns of the table of waiting trajectories. The version is that of the newest decision."""
_EMPTY = np.zeros((0, 6), np.int64)


class Buffer:
    """Holds slot numbers by kind of seat. When it overflows, the oldest trajectories are dropped and counted."""

    def __init__(
        self,
        pools: tuple[SlotPool, ...],
        *,
        max_decisions: int,
        max_slots: int,
        free: Callable[[int, IntArray], None],
        num_actors: int = 1,
        max_lag: int = 0,
        uses: int = 1,
        recomputing: Recomputing | None = None,
    ) -> None:
        """`max_slots` is per actor, since short trajectories take many slots. `uses`: how often a trajectory may be
        taken. With `recomputing`, trajectories go to the buffer worker first."""
        self._pools = pools
        self._max_decisions = max_decisions
        self._max_slots = max_slots
        self._free = free
        self._num_actors = num_actors
        self._max_lag = max_lag
        self._uses = uses
        self._recomputing = recomputing
        self._pieces: list[IntArray] = []
        """Rows of the table, oldest first; concatenated when it is read."""
        self._taken = _EMPTY
        self._leads = [ActorLead(max_lag) for _ in range(num_actors)]
        self.consumed = np.zeros(num_actors, np.int64)
        """By actor: decisions that were used or dropped."""
        self.decisions = 0
        """Waiting decisions, including those at the buffer worker and those that wait for another use."""
        self.dropped = 0
        """Decisions dropped before their first use because the buffer was full."""

    def put(self, kind: int, slots: IntArray) -> None:
        pool = self._pools[kind]
        rows = np.zeros((len(slots), 6), np.int64)
        rows[:, _KIND], rows[:, _SLOT] = kind, slots
        rows[:, _ACTOR] = slots // (pool.num_slots // self._num_actors)
        rows[:, _DECISIONS] = pool.num_decisions(slots)
        rows[:, _VERSION] = pool.newest_version(slots)
        self._pieces.append(rows)
        self.decisions += int(rows[:, _DECISIONS].sum())
        for actor, count in enumerate(self._by_actor(rows).tolist()):
            self._leads[actor].decisions += count
        if self._recomputing is not None:
            self._recomputing.ask(kind, slots)
        if self.decisions > self._max_decisions or sum(map(len, self._pieces)) > self._max_slots:
            self.dropped += self._drop(self._overflowing())

    def complete(self, actor: int = 0) -> None:
        """A hand-over of this actor, its share of a batch, is complete."""
        self._leads[actor].complete()

    def held_up(self) -> NDArray[np.bool_]:
        """By actor: whether it waits for the learner because of this player."""
        leads = zip(self._leads, self.consumed.tolist(), strict=True)
        return np.array([lead.is_too_long(consumed) for lead, consumed in leads])

    @property
    def ready(self) -> int:
        """Decisions that can be taken now."""
        if self._recomputing is None:
            return self.decisions
        table = self._table()
        return int(table[self._is_ready(table), _DECISIONS].sum())

    @property
    def is_preparing(self) -> bool:
        """Some waiting trajectories are at the buffer worker."""
        return self._recomputing is not None and not self._is_ready(self._table()).all()

    def recompute_older_than(self, version: int) -> None:
        """Send trajectories that older weights have recomputed to the buffer worker again."""
        if self._recomputing is None:
            return
        for kind, rows in _by_kind(self._table()):
            slots = rows[:, _SLOT]
            done, versions = self._recomputing.is_done(kind, slots), self._recomputing.versions(kind, slots)
            old = done & (versions < version)
            if old.any():
                self._recomputing.ask(kind, slots[old])

    def take(self, enough: int | None = None) -> dict[int, Taken]:
        """Take all ready trajectories, or the newest with `enough` decisions together, by kind, until `give_back`."""
        table = self._table()
        ready = np.flatnonzero(self._is_ready(table))
        first = 0
        if enough is not None:
            newer = np.cumsum(table[ready[::-1], _DECISIONS])
            first = max(0, len(ready) - 1 - int(np.searchsorted(newer, enough)))
        self._taken = table[ready[first:]]
        self._keep(np.delete(table, ready[first:], axis=0))
        taken = {}
        for kind, rows in _by_kind(self._taken):
            slots = rows[:, _SLOT]
            versions = None if self._recomputing is None else self._recomputing.versions(kind, slots)
            taken[kind] = Taken(slots, rows[:, _DECISIONS], rows[:, _USES] == 0, versions)
        self._consume(self._taken)
        return taken

    def give_back(self, refused: Mapping[int, IntArray] | None = None) -> None:
        """Return the taken trajectories. Used-up ones, and slots that were `refused`, by kind, are freed."""
        rows, self._taken = self._taken, _EMPTY
        rows[:, _USES] += 1
        done = rows[:, _USES] >= self._uses
        for kind, slots in (refused or {}).items():
            done |= (rows[:, _KIND] == kind) & np.isin(rows[:, _SLOT], slots)
        self._keep(np.concatenate((self._table(), rows[~done])))
        self._free_all(rows[done])

    def drop_older_than(self, version: int) -> int:
        """Free trajectories that are too old; returns how many of their decisions were never used."""
        return self._drop(self._table()[:, _VERSION] < version)

    def clear(self) -> None:
        """Free all trajectories, including unused ones."""
        self._drop(np.ones(len(self._table()), np.bool_))

    def forget(self, actor: int) -> None:
        """Drop the trajectories of an actor that has died. Another one takes its place."""
        table = self._table()
        self._retract(table[table[:, _ACTOR] == actor])
        self._keep(table[table[:, _ACTOR] != actor])
        self._leads[actor] = ActorLead(self._max_lag)
        self.consumed[actor] = 0

    def save(self) -> dict[str, Any]:
        """The waiting slots, to be loaded together with the same pools."""
        return {
            "waiting": self._table().tolist(),
            "leads": [[lead.decisions, *lead.marks] for lead in self._leads],
            "consumed": self.consumed.tolist(),
            "dropped": self.dropped,
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        self._keep(np.array(facts["waiting"], np.int64).reshape(-1, 6))
        for lead, (decisions, *marks) in zip(self._leads, facts["leads"], strict=True):
            lead.decisions = decisions
            lead.marks.clear()
            lead.marks.extend(marks)
        self.consumed[:] = facts["consumed"]
        self.dropped = facts["dropped"]

    def _table(self) -> IntArray:
        if len(self._pieces) != 1:
            self._pieces = [np.concatenate((_EMPTY, *self._pieces))]
        return self._pieces[0]

    def _keep(self, table: IntArray) -> None:
        self._pieces = [table]
        self.decisions = int(table[:, _DECISIONS].sum())

    def _by_actor(self, rows: IntArray) -> IntArray:
        return np.bincount(rows[:, _ACTOR], rows[:, _DECISIONS], self._num_actors).astype(np.int64)

    def _overflowing(self) -> NDArray[np.bool_]:
        """Rows of the oldest trajectories that overflow. The newest one always stays."""
        table = self._table()
        newer = np.cumsum(table[::-1, _DECISIONS])[::-1]
        drop = newer > self._max_decisions
        for actor in range(self._num_actors):
            mine = np.flatnonzero(table[:, _ACTOR] == actor)
            drop[mine[: max(0, len(mine) - self._max_slots)]] = True
        drop[-1] = False
        return drop

    def _drop(self, which: NDArray[np.bool_]) -> int:
        """Free these rows of the table; returns how many of their decisions were never used."""
        if not which.any():
            return 0
        table = self._table()
        rows = table[which]
        self._keep(table[~which])
        unused = self._consume(rows)
        self._free_all(rows)
        return unused

    def _consume(self, rows: IntArray) -> int:
        unused = self._by_actor(rows[rows[:, _USES] == 0])
        self.consumed += unused
        return int(unused.sum())

    def _is_ready(self, table: IntArray) -> NDArray[np.bool_]:
        """By row: not at the buffer worker."""
        ready = np.ones(len(table), np.bool_)
        if self._recomputing is not None:
            for kind in range(len(self._pools)):
                mine = table[:, _KIND] == kind
                ready[mine] = self._recomputing.is_done(kind, table[mine, _SLOT])
        return ready

    def _retract(self, rows: IntArray) -> None:
        if self._recomputing is not None:
            for kind, own in _by_kind(rows):
                self._recomputing.retract(kind, own[:, _SLOT])

    def _free_all(self, rows: IntArray) -> None:
        self._retract(rows)
        for kind, own in _by_kind(rows):
            self._free(kind, own[:, _SLOT])


def _by_kind(table: IntArray) -> Iterator[tuple[int, IntArray]]:
    for kind in np.unique(table[:, _KIND]).tolist():
        yield kind, table[table[:, _KIND] == kind]


class Taken(NamedTuple):
    """Trajectories of one kind of seat that the learner trains on."""

    slots: IntArray
    decisions: IntArray
    """By trajectory."""
    is_new: NDArray[np.bool_]
    """By trajectory: not trained on before."""
    recomputed: IntArray | None = None
    """By trajectory: version of the weights that recomputed it, if there is a buffer worker."""


class ActorLead:
    """The lead of an actor over the learner for one player, in decisions; both keep one. An actor may be `max_lag`
    hand-overs ahead; with 0 it waits until everything that it has handed over is used."""

    def __init__(self, max_lag: int) -> None:
        self.decisions = 0
        self.marks: deque[int] = deque(maxlen=max_lag + 1)
        """`decisions` at the end of each of the latest hand-overs."""

    def complete(self) -> None:
        self.marks.append(self.decisions)

    def is_too_long(self, consumed: int) -> bool:
        """Whether the actor must wait if `consumed` of its decisions have been used or dropped."""
        return len(self.marks) == self.marks.maxlen and consumed < self.marks[0]


def statistics_of(chosen: Mapping[int, Taken], version: int, uses: int) -> dict[str, float]:
    """`reused`: the share of decisions trained on before; `recompute_lag`: the mean age of recomputing weights."""
    taken = chosen.values()
    total = max(sum(int(one.decisions.sum()) for one in taken), 1)
    found: dict[str, float] = {}
    if uses > 1:
        found["reused"] = sum(int(one.decisions[~one.is_new].sum()) for one in taken) / total
    ages = [one.decisions * (version - one.recomputed) for one in taken if one.recomputed is not None]
    if ages:
        found["recompute_lag"] = sum(int(age.sum()) for age in ages) / total
    return found
